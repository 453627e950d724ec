"""What the project takes from others: versions are pinned, licences among those that are allowed."""

import re
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = re.compile(
    r"MIT|MIT License|MIT-CMU|0?BSD|BSD License|(3-Clause )?BSD( License)?|BSD-[23]-Clause|Apache[ -]2\.0|"
    r"Apache 2\.0 License|Apache Software License( 2\.0)?|Apache-2\.0 WITH LLVM-exception|PSF-2\.0|"
    r"Python Software Foundation License|ISC License \(ISCL\)|ISC|Zlib|CC0-1\.0|BSL-1\.0|CNRI-Python|HPND|"
    r"Mozilla Public License 2\.0 \(MPL 2\.0\)|MPL-2\.0|Academic Free License \(AFL\)|DFSG approved"
)
"""Licences that let the project be used and passed on under its own (Apache-2.0)."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {normal(line.partition("==")[0]): line.partition("==")[2] for line in lines if "==" in line}


def test_what_is_installed_is_what_is_pinned():
    others = {}
    for name, version in pinned().items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # of another platform
        if found.partition("+")[0] != version:
            others[name] = (version, found)
    assert others == {}


def test_every_pinned_file_has_its_hash():
    """All but what comes as another file for each kind of machine, or is built on it; the Makefile names those."""
    makefile = (ROOT / "Makefile").read_text()
    unhashed = set(re.search(r"^UNHASHED := (.*)$", makefile, re.MULTILINE)[1].split("|"))
    assert "--require-hashes -r $(HASHES)" in makefile
    assert re.search(r"^HASHES \?= hashes.txt$", makefile, re.MULTILINE)
    hashed: dict[str, list[str]] = {}
    for line in (ROOT / "hashes.txt").read_text().splitlines():
        if "==" in line:
            name, _, version = line.rstrip(" \\").partition("==")
            hashed[normal(name)] = [version]
        elif not line.startswith("#"):
            found = re.fullmatch(r"    --hash=sha256:([0-9a-f]{64})( \\)?", line)
            assert found, line
            list(hashed.values())[-1].append(found[1])
    assert {name: reported[0] for name, reported in hashed.items()} == {
        name: version for name, version in pinned().items() if name not in unhashed
    }
    assert all(len(reported) > 1 for reported in hashed.values())


def licences(name: str) -> list[str]:
    about = metadata.metadata(name)
    named = [entry.split(" :: ")[-1] for entry in about.get_all("Classifier") or [] if entry.startswith("License ::")]
    reported = about.get("License-Expression") or " AND ".join(entry for entry in named if entry != "OSI Approved")
    reported = reported or (about.get("License") or "none").split("\n")[0]
    return re.split(r" (?:AND|OR) ", reported)


def test_every_licence_is_allowed():
    refused = {}
    for name in pinned():
        try:
            others = [licence for licence in licences(name) if not ALLOWED.fullmatch(licence.strip())]
        except metadata.PackageNotFoundError:
            continue
        if others:
            refused[name] = others
    assert refused == {}
