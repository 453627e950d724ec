"""One text per item, made of title and description, with the empty and the equal ones counted."""

from collections.abc import Sequence
from dataclasses import dataclass

from minionerec.core.errors import DataError
from minionerec.sid.embed.items import HasItems


@dataclass(frozen=True)
class TextCounts:
    """What a list of item texts is made of.

    Attributes:
        texts: Number of texts, N.
        empty: Texts without any character but white space; such an item gets the zero vector.
        duplicate: Texts, empty ones apart, that equal the text of an earlier item; such items get equal vectors, so
            their SIDs collide before collisions are resolved.
    """

    texts: int
    empty: int
    duplicate: int


def count_texts(texts: Sequence[str]) -> TextCounts:
    """Count empty and repeated texts.

    Example:
        >>> count_texts(["oak table", "", "oak table", "lamp"])
        TextCounts(texts=4, empty=1, duplicate=1)
    """
    filled = [text for text in texts if text.strip()]
    return TextCounts(len(texts), len(texts) - len(filled), len(filled) - len(set(filled)))


def item_texts(corpus: HasItems) -> list[str]:
    """Title and description of each item, joined by one space; every run of white space becomes one space.

    Args:
        corpus: The corpus.

    Returns:
        N texts, text i of item index i; "" where an item has neither title nor description.

    Raises:
        DataError: If no item has any text.
    """
    items = corpus.items
    titles, descriptions = (items[name].fillna("").astype(str).tolist() for name in ("title", "description"))
    texts = [" ".join(f"{title} {text}".split()) for title, text in zip(titles, descriptions, strict=True)]
    if not any(texts):
        raise DataError(
            f"none of the {len(texts)} items has a title or a description, so no vector can be made from text. "
            "Give ready vectors instead (encoder: PATH.npy, one row per item)."
        )
    return texts
