"""Sizes in bytes, as people write them."""

import re

from minionerec.core.errors import ConfigError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"(\d{1,15})(\.\d{1,3})? ?([A-Za-z]*)")
LEAST_MEMORY = 256 * 2**20
"""Bytes below which no engine is started."""


def parse_size(text: str, name: str = "engine_memory") -> int:
    """Bytes of a size such as "4GB" (powers of ten) or "512MiB" (powers of two).

    Raises:
        ConfigError: If it is none, or less than `LEAST_MEMORY`.

    Example:
        >>> parse_size("4GB"), parse_size("512 MiB"), parse_size("1.5gb")
        (4000000000, 536870912, 1500000000)
    """
    found = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(found[3].upper()) if found else None
    if found is None or unit is None:
        raise ConfigError(f"{name} is {text!r}; it must be a size in bytes such as 4GB or 512MiB.")
    size = int(float(found[1] + (found[2] or "")) * unit)
    if size < LEAST_MEMORY:
        raise ConfigError(f"{name} is {text!r}; it must be at least {LEAST_MEMORY // 2**20}MiB.")
    return size
