"""What the project takes from others: versions are pinned, licences among those that are allowed."""

import contextlib
import re
from importlib import metadata

from support.paths import ROOT

ALLOWED = re.compile(
    r"MIT|MIT License|MIT-CMU|0?BSD|BSD License|(3-Clause )?BSD( License)?|BSD-[23]-Clause|Apache[ -]2\.0|"
    r"Apache 2\.0 License|Apache Software License( 2\.0)?|Apache-2\.0 WITH LLVM-exception|PSF-2\.0|"
    r"Python Software Foundation License|ISC License \(ISCL\)|ISC|Zlib|CC0-1\.0|BSL-1\.0|CNRI-Python|HPND|"
    r"Mozilla Public License 2\.0 \(MPL 2\.0\)|MPL-2\.0|Academic Free License \(AFL\)|DFSG approved"
)
"""Licences that let the project be used and passed on under its own (Apache-2.0)."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


FILES = ("quickstart", "develop", "unhashed")


def lines_of(*files: str) -> list[str]:
    return [line for name in files for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()]


def pinned() -> dict[str, str]:
    pins = [line.split(" ")[0].partition("==") for line in lines_of(*FILES) if "==" in line]
    return {normal(name): version for name, _, version in pins}


def installed() -> dict[str, str]:
    """What is pinned and is no package of another platform, and the versions that are installed."""
    found = {}
    for name in pinned():
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name).partition("+")[0]
    return found


def test_what_is_installed_is_what_is_pinned():
    pins = pinned()
    assert {name: (pins[name], found) for name, found in installed().items() if found != pins[name]} == {}


def test_every_pinned_file_has_its_hash():
    """All but what comes as another file for each kind of machine, or is built on it."""
    assert "--require-hashes $(HASHED:%=-r %)" in (ROOT / "Makefile").read_text()
    hashes: dict[str, list[str]] = {}
    for line in lines_of("quickstart", "develop"):
        if "==" in line:
            hashes[line.partition("==")[0]] = []
        elif not line.startswith("#"):
            match = re.fullmatch(r"    --hash=sha256:([0-9a-f]{64})( \\)?", line)
            assert match, line
            list(hashes.values())[-1].append(match[1])
    assert all(hashes.values()) and len(hashes) + 4 == len(pinned())


def licences(name: str) -> list[str]:
    about = metadata.metadata(name)
    named = [entry.split(" :: ")[-1] for entry in about.get_all("Classifier") or [] if entry.startswith("License ::")]
    reported = about.get("License-Expression") or " AND ".join(entry for entry in named if entry != "OSI Approved")
    reported = reported or (about.get("License") or "none").split("\n")[0]
    return re.split(r" (?:AND|OR) ", reported)


def test_every_licence_is_allowed():
    refused = {name: [each for each in licences(name) if not ALLOWED.fullmatch(each.strip())] for name in installed()}
    assert {name: others for name, others in refused.items() if others} == {}
