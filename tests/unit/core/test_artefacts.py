"""Artefacts: whole or not at all, equal when made alike, refused where they are not what is expected."""

import json
import time

import pytest

from minionerec.core.artefacts import (
    DIGEST,
    digest_of,
    fingerprint,
    open_artefact,
    package_versions,
    read_json,
    read_manifest,
    require_writable,
    verify_files,
    write_artefact,
    write_text_atomic,
)
from minionerec.core.errors import ArtefactError


def make(path, text="x", config=None, inputs=None):
    with write_artefact(path, "cups", config=config or {"a": 1}, inputs=inputs, seed=4, counts={"n": 1}) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "f.txt").write_text(text)


def test_artefacts_are_equal_when_made_alike(tmp_path):
    make(tmp_path / "one")
    make(tmp_path / "two")
    assert (tmp_path / "one" / "manifest.json").read_bytes() == (tmp_path / "two" / "manifest.json").read_bytes()
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two")
    make(tmp_path / "two", "y")
    assert fingerprint(tmp_path / "one") != fingerprint(tmp_path / "two")
    manifest = read_manifest(tmp_path / "one", "cups")
    assert (manifest["seed"], manifest["counts"], list(manifest["files"])) == (4, {"n": 1}, ["sub/f.txt"])


def test_a_failing_stage_leaves_the_old_output(tmp_path):
    make(tmp_path / "one")
    before = fingerprint(tmp_path / "one")
    with pytest.raises(RuntimeError), write_artefact(tmp_path / "one", "cups", config={}) as folder:
        (folder / "half").write_text("h")
        raise RuntimeError
    assert fingerprint(tmp_path / "one") == before
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_readers_refuse_what_is_not_theirs(tmp_path):
    make(tmp_path / "one")
    with pytest.raises(ArtefactError, match="holds a 'cups', expected a 'plates'"):
        read_manifest(tmp_path / "one", "plates")
    message = r"none: no such directory; expected the output of an earlier stage \(cups\)"
    with pytest.raises(ArtefactError, match=message):
        read_manifest(tmp_path / "none", "cups")
    (tmp_path / "bare").mkdir()
    with pytest.raises(ArtefactError, match=r"bare: has no manifest.json"):
        read_manifest(tmp_path / "bare")
    verify_files(tmp_path / "one")
    (tmp_path / "one" / "sub" / "f.txt").write_text("changed")
    with pytest.raises(ArtefactError, match=r"f.txt: differs from manifest.json"):
        verify_files(tmp_path / "one")
    (tmp_path / "one" / "sub" / "f.txt").unlink()
    with pytest.raises(ArtefactError, match=r"f.txt: listed in manifest.json but missing"):
        verify_files(tmp_path / "one")


def test_writers_replace_only_artefacts(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("precious")
    for write in (make, require_writable):
        with pytest.raises(ArtefactError, match="thesis: exists and is not an output of this project"):
            write(tmp_path / "thesis")
        (tmp_path / "file").write_text("x")
        with pytest.raises(ArtefactError, match="cannot be written"):
            write(tmp_path / "file" / "deeper")
    with pytest.raises(ArtefactError, match="cannot be written"):
        write_text_atomic(tmp_path / "file" / "deeper.txt", "x")
    assert (tmp_path / "thesis" / "chapter").read_text() == "precious"
    make(tmp_path / "one")
    require_writable(tmp_path / "one", "cups")
    with pytest.raises(ArtefactError, match="one: holds a 'cups', which a 'plates' must not replace"):
        require_writable(tmp_path / "one", "plates")


def test_broken_json_names_its_position(tmp_path):
    (tmp_path / "a.json").write_text('{"a":\n tru}')
    with pytest.raises(ArtefactError, match=r"a.json: not valid JSON .*line 2 column 2"):
        read_json(tmp_path / "a.json")
    with pytest.raises(ArtefactError, match=r"b.json: no such file"):
        read_json(tmp_path / "b.json")
    (tmp_path / "a.json").write_text(json.dumps([1]))
    assert read_json(tmp_path / "a.json") == [1]


def test_a_manifest_of_very_many_files_is_refused_soon(tmp_path):
    reported = {name: {} for name in ("config", "inputs", "counts", "versions")}
    manifest = {"kind": "corpus", "seed": None, **reported, "files": dict.fromkeys(map(str, range(100_000)), "0" * 64)}
    manifest[DIGEST] = digest_of(manifest)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    began = time.process_time()
    with pytest.raises(ArtefactError, match=r"/0: listed in manifest.json but missing"):
        open_artefact(tmp_path, "corpus", strangers=(".parquet",))
    assert time.process_time() - began < 1


@pytest.mark.parametrize("name", [None, "sha\ufeff256", "SHA256"])
def test_a_manifest_without_its_own_hash_does_not_pass(tmp_path, name):
    make(tmp_path / "one")
    file = tmp_path / "one" / "manifest.json"
    content = read_json(file)
    digest = content.pop(DIGEST)
    file.write_text(json.dumps(content | ({} if name is None else {name: digest})))
    with pytest.raises(ArtefactError, match=r"one/manifest\.json: was edited by hand"):
        open_artefact(tmp_path / "one", "cups")


def test_versions_that_a_caller_changed_are_not_those_of_the_next():
    versions = package_versions()
    package_versions().clear()
    assert package_versions() == versions and {"python", "torch"} <= versions.keys()
