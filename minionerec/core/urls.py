"""Texts that are, or name, URLs."""

import hashlib
import os
import re

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://.*", re.DOTALL)
_QUERY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+://[^\s?'\"]*)\?(?!sha256=[0-9a-f]{16}(?![^\s'\",)]))[^\s'\"]+")


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL, such as s3://bucket/corpus.

    Example:
        >>> is_remote("s3://shop/corpus"), is_remote("file:///data/corpus"), is_remote("runs/corpus")
        (True, True, False)
    """
    return isinstance(path, str) and _URL.fullmatch(path) is not None


def without_query(text: str) -> str:
    """A text with the query of every URL replaced by its hash, since queries may hold signatures and tokens.

    Example:
        >>> without_query("--items https://shop.example/items.csv?token=1")
        '--items https://shop.example/items.csv?sha256=4a4df60fa44efba7'
        >>> without_query("https://shop.example/items.csv?sha256=4a4df60fa44efba7")
        'https://shop.example/items.csv?sha256=4a4df60fa44efba7'
    """
    return _QUERY.sub(lambda match: f"{match[1]}?sha256={hashlib.sha256(match[0].encode()).hexdigest()[:16]}", text)
