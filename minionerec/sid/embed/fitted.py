"""The texts that TF-IDF was first fitted on, so that items which came later get vectors of the same space."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import read_json, unchanged_input, write_text_atomic
from minionerec.core.errors import DataError
from minionerec.sid.embed.items import HasItems, ItemTexts
from minionerec.sid.embed.texts import item_texts

FITTED_FILE = "fitted_items.json"


@dataclass(frozen=True)
class FittedTexts:
    """Items that TF-IDF was fitted on, in the order in which it met them, as a later corpus shows them.

    Attributes:
        item_ids: M item ids.
        texts: M texts.
        gone: Text of each of them that the later corpus has no more.
    """

    item_ids: Sequence[str]
    texts: Sequence[str]
    gone: Mapping[str, str] = field(default_factory=dict)

    def save(self, place: Path) -> None:
        """Write the ids, and the texts of those that are gone, into an artefact."""
        content = {"items": list(self.item_ids), "gone": dict(self.gone)}
        write_text_atomic(place / FITTED_FILE, json.dumps(content) + "\n")

    @classmethod
    def of(cls, folder: Path, own_items: Sequence[str], corpus: HasItems) -> "FittedTexts":
        """What the vectors behind an artefact were fitted on, found again.

        An artefact that was itself extended says so in a file; any other was fitted on the items that it has. Texts
        are those of `corpus`. An item that is not there any more has its text from that file, or from the corpus that
        the artefact was made from, where that lies unchanged at its old place.

        Args:
            folder: SIDs, or a checkpoint.
            own_items: Its items, in its order.
            corpus: The later corpus.

        Raises:
            DataError: If the text of an item is lost.
        """
        said: dict[str, Any] = {"items": list(own_items), "gone": {}}
        if (folder / FITTED_FILE).is_file():
            said = read_json(folder / FITTED_FILE)
        known = _texts(corpus)
        lost = [item for item in said["items"] if item not in known and item not in said["gone"]]
        before = _corpus_before(folder) if lost else None
        earlier = {} if before is None else _texts(before)
        missing = [item for item in lost if item not in earlier]
        if missing:
            raise DataError(
                f"{folder}: TF-IDF was fitted on {len(said['items'])} items, and {len(missing)} of them, such as "
                f"{missing[0]!r}, are neither in the new corpus nor found in the one of then. Keep them among the "
                "items, put that corpus back to its place, or build all SIDs anew."
            )
        gone = {item: text for item, text in {**said["gone"], **earlier}.items() if item not in known}
        gone = {item: gone[item] for item in said["items"] if item in gone}
        return cls(said["items"], [known[item] if item in known else gone[item] for item in said["items"]], gone)


def _texts(corpus: HasItems) -> dict[str, str]:
    return dict(zip(corpus.items["item_id"].astype(str).tolist(), item_texts(corpus), strict=True))


def _corpus_before(folder: Path) -> HasItems | None:
    """The corpus that an artefact was made from; None where it is no more what it was."""
    place = unchanged_input(folder, "corpus")
    return None if place is None else ItemTexts.load(place)
