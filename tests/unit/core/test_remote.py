"""URLs as inputs: copied into a cache whole, held against their hashes, and said in one line where that fails."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.paths import ROOT

from minionerec.core import remote, upload, urls
from minionerec.core.artefacts import (
    DIGEST,
    MANIFEST,
    digest_of,
    file_sha256,
    read_manifest,
    verify_files,
    write_artefact,
)
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.paths import find_path
from minionerec.core.remote import fetched, is_remote, local_path, look_again
from minionerec.core.settings import StageConfig, setting
from minionerec.core.upload import UNFINISHED, put

FILES = {"items.csv": "a,b\n" * 10, "parts/00000.bin": "x" * 3000, "parts/00001.bin": "y" * 5}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own, and an empty memory filesystem that counts what is opened."""
    monkeypatch.setenv("MINIONEREC_CACHE", str(tmp_path / "cache"))
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    look_again()
    yield tmp_path / "cache"
    MemoryFileSystem.store.clear()
    look_again()


@pytest.fixture
def opened(monkeypatch):
    """Names of the files that are read from the memory filesystem."""
    names = []
    whole, cat = MemoryFileSystem._open, MemoryFileSystem.cat_file

    def counting(self, path, mode="rb", **more):
        if mode == "rb":
            names.append(path.rpartition("/")[2])
        return whole(self, path, mode, **more)

    def counting_whole(self, path, **more):
        names.append(path.rpartition("/")[2])
        return cat(self, path, **more)

    monkeypatch.setattr(MemoryFileSystem, "_open", counting)
    monkeypatch.setattr(MemoryFileSystem, "cat_file", counting_whole)
    return names


def artefact(path, files=FILES, seed=1):
    with write_artefact(path, "corpus", config={"seed": seed}, seed=seed) as folder:
        for name, text in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
    return path


def memory():
    return fsspec.filesystem("memory")


def forge(url_path, **changes):
    """Change the manifest of an artefact in memory, its own hash with it."""
    manifest = json.loads(memory().cat_file(f"{url_path}/{MANIFEST}"))
    manifest |= changes
    manifest[DIGEST] = digest_of(manifest)
    memory().pipe_file(f"{url_path}/{MANIFEST}", json.dumps(manifest).encode())


def test_what_is_a_url():
    assert [path for path in ("s3://b/x", "hdfs://host:8020/x", "memory://x", "file:///x") if not is_remote(path)] == []
    local = ["runs/x", "/data/x", "C:/x", "C://x", "a:b", "://x", "", "Qwen/Qwen3", "x s3://b"]
    assert [path for path in [*local, Path("s3://b/x")] if is_remote(path)] == []


def test_an_artefact_comes_whole_once_and_is_read_like_any_other(tmp_path, cache, opened):
    mine = artefact(tmp_path / "corpus")
    assert put(mine, "memory://shop/corpus") == (4, 4)
    copy = fetched("memory://shop/corpus")
    assert copy.name == "corpus" and copy.is_relative_to(cache / "artefacts")
    verify_files(copy)
    for name in [*FILES, MANIFEST]:
        assert (copy / name).read_bytes() == (mine / name).read_bytes()
    before = len(opened)
    assert fetched("memory://shop/corpus") == copy
    assert opened[before:] == [MANIFEST]  # nothing else is read again
    assert sorted(path.name for path in copy.parent.iterdir()) == [".corpus.lock", "corpus"]


def test_paths_of_this_machine_stay(tmp_path, cache):
    mine = artefact(tmp_path / "corpus")
    assert fetched(f"file://{mine}") == find_path(f"file://{mine}") == mine
    assert fetched(mine) == mine and local_path("runs/x") == Path("runs/x")
    assert not cache.exists()


def test_a_new_content_is_another_copy(tmp_path):
    put(artefact(tmp_path / "corpus"), "memory://shop/corpus")
    one = fetched("memory://shop/corpus")
    other = artefact(tmp_path / "corpus", {"items.csv": "other"}, seed=2)
    put(other, "memory://shop/corpus", replace=True)
    two = fetched("memory://shop/corpus")
    assert two != one and (two / "items.csv").read_text() == "other" and (one / "items.csv").read_text() != "other"


def test_a_run_reads_one_state_and_the_next_looks_again(tmp_path):
    put(artefact(tmp_path / "corpus"), "memory://shop/corpus")
    one = find_path("memory://shop/corpus")
    forge("/shop/corpus", seed=5)
    assert find_path("memory://shop/corpus") == one
    look_again()
    assert read_manifest(find_path("memory://shop/corpus"))["seed"] == 5


def test_a_fetch_that_was_interrupted_leaves_nothing_to_be_found_and_resumes(tmp_path, cache, opened, monkeypatch):
    put(artefact(tmp_path / "corpus"), "memory://shop/corpus")
    whole = urls.RemotePath.blocks

    def interrupted(parts):
        yield next(parts)[:100]
        raise KeyboardInterrupt

    def breaking(self, path, *how):
        begin, parts = whole(self, path, *how)
        return begin, interrupted(parts) if path.endswith("00000.bin") else parts

    monkeypatch.setattr(urls.RemotePath, "blocks", breaking)
    with pytest.raises(KeyboardInterrupt):
        fetched("memory://shop/corpus")
    assert not list(cache.glob("artefacts/*/corpus"))
    assert [file.stat().st_size for file in cache.rglob("00000.bin")] == [100]
    monkeypatch.setattr(urls.RemotePath, "blocks", whole)
    opened.clear()
    verify_files(fetched("memory://shop/corpus"))
    assert opened == [MANIFEST, "00000.bin", "00001.bin"]  # items.csv had come


def test_a_copy_that_was_changed_is_mended(tmp_path, opened, caplog):
    put(artefact(tmp_path / "corpus"), "memory://shop/corpus")
    copy = fetched("memory://shop/corpus")
    (copy / "parts" / "00000.bin").write_text("z" * 3000)
    opened.clear()
    assert fetched("memory://shop/corpus") == copy
    verify_files(copy)
    assert opened == [MANIFEST, "00000.bin"] and "was changed since it was copied" in caplog.text
    (copy / MANIFEST).write_text("{")
    verify_files(fetched("memory://shop/corpus"))


def test_files_that_are_not_those_of_the_manifest_are_refused(tmp_path, cache):
    put(artefact(tmp_path / "corpus"), "memory://shop/corpus")
    memory().pipe_file("/shop/corpus/parts/00000.bin", b"x" * 2999 + b"!")
    with pytest.raises(ArtefactError, match=r"memory://shop/corpus: its file parts/00000.bin is not the one .*put"):
        fetched("memory://shop/corpus")
    memory().rm_file("/shop/corpus/parts/00000.bin")
    with pytest.raises(ArtefactError, match=r"memory://shop/corpus: its file parts/00000.bin is missing"):
        fetched("memory://shop/corpus")
    assert not list(cache.glob("artefacts/*/corpus"))


@pytest.mark.parametrize(
    "name", ["../out", "/etc/out", "a/../../out", "./out", "a//out", ".", "", "a\\out", MANIFEST, "out\0", "a/./out"]
)
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path, cache, name):
    put(artefact(tmp_path / "corpus"), "memory://shop/corpus")
    forge("/shop/corpus", files={name: "0" * 64})
    with pytest.raises(ArtefactError, match=r"shop/corpus/manifest.json: lists the file .* in a form that no stage"):
        fetched("memory://shop/corpus")
    assert not cache.exists()


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff\xfe", b'{"kind": "corpus"}', b"[" * 100_000, None])
def test_a_manifest_that_is_malformed_or_edited_by_hand_is_refused(tmp_path, cache, raw):
    put(artefact(tmp_path / "corpus"), "memory://shop/corpus")
    whole = memory().cat_file(f"/shop/corpus/{MANIFEST}")
    edited = whole.replace(b'"seed": 1', b'"seed": 2') if raw is None else raw
    memory().pipe_file(f"/shop/corpus/{MANIFEST}", edited)
    message = r"memory://shop/corpus/manifest.json: " + ("" if raw is not None else ".*edited by hand")
    with pytest.raises(ArtefactError, match=message):
        fetched("memory://shop/corpus")
    assert not cache.exists()


def test_a_plain_file_keeps_its_name_and_a_changed_one_is_fetched_again(opened):
    memory().pipe_file("/raw/ratings.csv", b"user,item\n")
    one = fetched("memory://raw/ratings.csv")
    assert (one.name, one.read_bytes()) == ("ratings.csv", b"user,item\n")
    opened.clear()
    assert fetched("memory://raw/ratings.csv") == one and opened == []
    memory().pipe_file("/raw/ratings.csv", b"user,item\n1,2\n")
    assert fetched("memory://raw/ratings.csv").read_bytes() == b"user,item\n1,2\n"
    one.write_bytes(b"short")
    memory().pipe_file("/raw/ratings.csv", b"user,item\n")


@pytest.mark.parametrize("folder", [False, True])
def test_a_file_that_is_replaced_while_it_is_fetched_is_not_kept_as_what_it_was(monkeypatch, cache, folder):
    memory().pipe_file("/raw/0.csv", b"user,item\n1,2\n")
    whole = MemoryFileSystem._open

    def replaced(self, path, mode="rb", **more):
        if mode == "rb":
            monkeypatch.setattr(MemoryFileSystem, "_open", whole)
            memory().pipe_file("/raw/0.csv", b"user,item\n8,9\n")
        return whole(self, path, mode, **more)

    monkeypatch.setattr(MemoryFileSystem, "_open", replaced)
    fetch = (lambda: remote.local_parts("memory://raw")) if folder else (lambda: fetched("memory://raw/0.csv"))
    with pytest.raises(ArtefactError, match=r"raw/0\.csv: was changed while it was fetched\. Run the same command"):
        fetch()
    assert not [path for path in cache.glob("files/*/*") if path.suffix == ".csv"]
    look_again()
    found = fetch()[0] if folder else fetch()
    assert found.read_bytes() == b"user,item\n8,9\n"


def test_a_file_of_which_nothing_tells_the_version_is_fetched_every_time(monkeypatch):
    memory().pipe_file("/raw/ratings.csv", b"one")
    monkeypatch.setattr(MemoryFileSystem, "info", lambda self, path, **more: {"type": "file", "size": 3})
    assert fetched("memory://raw/ratings.csv").read_bytes() == b"one"
    MemoryFileSystem.store["/raw/ratings.csv"].seek(0)
    MemoryFileSystem.store["/raw/ratings.csv"].write(b"two")
    assert fetched("memory://raw/ratings.csv").read_bytes() == b"two"


def test_a_file_that_comes_short_is_not_kept(cache, monkeypatch):
    memory().pipe_file("/raw/ratings.csv", b"user,item\n")
    monkeypatch.setattr(urls.RemotePath, "blocks", lambda self, *given: (0, iter([b"user"])))
    with pytest.raises(ArtefactError, match="only 4 of 10 bytes were received"):
        fetched("memory://raw/ratings.csv")
    assert not list(cache.glob("files/*/ratings.csv"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nope://b/corpus", "unknown protocol 'nope'"),
        ("S3://b/corpus", "unknown protocol 'S3'"),
        ("memory://", "no name of its own"),
        ("memory://shop/..", "no name of its own"),
        ("https://ann:secret@host/corpus", r"https://\.\.\.@host/corpus: holds a password"),
    ],
)
def test_urls_that_nothing_reads(url, message):
    with pytest.raises(ConfigError, match=message) as raised:
        fetched(url)
    assert "secret" not in str(raised.value)


def test_a_package_that_is_missing_is_named(monkeypatch):
    def missing(protocol):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(ConfigError, match=r"s3://b/corpus: the package that reads s3:// .* pip install s3fs\."):
        fetched("s3://b/corpus")


def test_nothing_there_and_a_folder_without_a_manifest(tmp_path):
    with pytest.raises(ArtefactError, match=r"memory://shop/corpus: no such artefact or file\. Fix the URL"):
        fetched("memory://shop/corpus")
    memory().pipe_file("/shop/corpus/items.csv", b"")
    with pytest.raises(ArtefactError, match=r"has no manifest.json, so it is not a finished artefact.*minionerec put"):
        fetched("memory://shop/corpus")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError("Access Denied"), r"memory://shop/corpus: no permission .*Access Denied\). Check the cred"),
        (RuntimeError("Unable to locate credentials"), "no permission .* environment"),
        (TimeoutError("timed out\nagain"), r"cannot be reached \(TimeoutError: timed out again\)\. Check the URL and"),
        (OSError(28, "strange"), "cannot be reached"),
    ],
)
def test_what_a_filesystem_raises_becomes_one_line(tmp_path, monkeypatch, error, message):
    def failing(self, *words, **more):
        raise error

    put(artefact(tmp_path / "corpus"), "memory://shop/corpus")
    monkeypatch.setattr(MemoryFileSystem, "info", failing)
    verify_files(fetched("memory://shop/corpus"))  # who may not list may still read
    look_again()
    monkeypatch.setattr(MemoryFileSystem, "cat_file", failing)
    with pytest.raises(ArtefactError, match=message):
        fetched("memory://shop/corpus")


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    put(artefact(tmp_path / "corpus"), "memory://shop/corpus")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINIONEREC_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ArtefactError, match=r"file/cache: the copy of memory://shop/corpus cannot .*MINIONEREC_CACHE"):
        fetched("memory://shop/corpus")


def test_the_cache_lies_in_the_home_unless_named(monkeypatch):
    monkeypatch.delenv("MINIONEREC_CACHE")
    assert remote.cache_folder() == Path.home() / ".cache" / "minionerec"


def test_of_several_at_once_one_copies(tmp_path, opened):
    put(artefact(tmp_path / "corpus"), "memory://shop/corpus")
    opened.clear()
    found = []
    threads = [threading.Thread(target=lambda: found.append(fetched("memory://shop/corpus"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1
    verify_files(found[0])
    assert sorted(name for name in opened if name != MANIFEST) == ["00000.bin", "00001.bin", "items.csv"]


_PROCESS = """
import json, sys, time, fsspec
from fsspec.implementations.local import LocalFileSystem

class Elsewhere(LocalFileSystem):
    protocol = "elsewhere"

    @classmethod
    def _strip_protocol(cls, path):
        return str(path).removeprefix("elsewhere://")

    def open(self, path, mode="rb", **more):
        with open(sys.argv[2], "a") as log:
            log.write(path.rpartition("/")[2] + "\\n")
        time.sleep(0.1)
        return open(path, mode)

fsspec.register_implementation("elsewhere", Elsewhere)
from minionerec.core.artefacts import verify_files
from minionerec.core.remote import fetched
path = fetched("elsewhere://" + sys.argv[1])
verify_files(path)
print(path)
"""


def test_of_the_processes_of_a_launch_one_copies_and_the_others_wait(tmp_path):
    mine, log = artefact(tmp_path / "corpus"), tmp_path / "log"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _PROCESS, str(mine), str(log)],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    reported = {process.communicate(timeout=60)[0] for process in started}
    assert [process.returncode for process in started] == [0, 0, 0] and len(reported) == 1
    read = sorted(log.read_text().split())
    assert read == ["00000.bin", "00001.bin", "items.csv", *[MANIFEST] * 3]


def test_put_leaves_what_is_there_and_replaces_only_when_asked(tmp_path):
    mine = artefact(tmp_path / "corpus")
    put(mine, "memory://shop/corpus")
    assert put(mine, "memory://shop/corpus") == (0, 4)
    other = artefact(tmp_path / "other", {"new.csv": "1", "parts/00001.bin": "2"}, seed=2)
    with pytest.raises(ArtefactError, match=r"memory://shop/corpus: holds another artefact\. .* --replace true"):
        put(other, "memory://shop/corpus")
    assert put(other, "memory://shop/corpus", replace=True) == (3, 3)
    left = sorted(path.removeprefix("/shop/corpus/") for path in memory().find("/shop/corpus"))
    assert left == [MANIFEST, "new.csv", "parts/00001.bin"]
    verify_files(fetched("memory://shop/corpus"))


def test_put_sends_what_is_missing_of_the_same_artefact_and_all_of_it_when_asked(tmp_path):
    mine = artefact(tmp_path / "corpus")
    put(mine, "memory://shop/corpus")
    memory().rm_file("/shop/corpus/items.csv")
    with pytest.raises(ArtefactError, match=r"its file items\.csv is missing\. Upload the artefact again"):
        fetched("memory://shop/corpus")
    assert put(mine, "memory://shop/corpus")[0] == 2  # and the manifest, last
    memory().pipe_file("/shop/corpus/items.csv", b"x" * (mine / "items.csv").stat().st_size)
    with pytest.raises(ArtefactError, match="minionerec put --replace true"):
        fetched("memory://shop/corpus")
    assert put(mine, "memory://shop/corpus")[0] == 0
    assert put(mine, "memory://shop/corpus", replace=True)[0] == 4
    verify_files(fetched("memory://shop/corpus"))
    for name in ("items.csv", "parts/00000.bin", "parts/00001.bin"):
        memory().rm_file(f"/shop/corpus/{name}")
    assert put(mine, "memory://shop/corpus")[0] == 4


def test_a_bucket_that_is_not_there_is_reported(tmp_path, monkeypatch):
    def missing(self, path, value, **more):
        raise FileNotFoundError("The specified bucket does not exist")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", missing)
    with pytest.raises(ArtefactError, match=r"memory://shop/corpus: its bucket or folder does not exist\. Create it"):
        put(artefact(tmp_path / "corpus"), "memory://shop/corpus")


def test_put_writes_over_no_strangers_files(tmp_path):
    memory().pipe_file("/shop/corpus/items.csv", b"precious")
    with pytest.raises(ArtefactError, match="holds something that is not an artefact"):
        put(artefact(tmp_path / "corpus"), "memory://shop/corpus")
    assert memory().cat_file("/shop/corpus/items.csv") == b"precious"
    assert not memory().exists(f"/shop/corpus/{UNFINISHED}")


def test_a_put_that_was_interrupted_is_no_artefact_and_resumes(tmp_path, monkeypatch):
    mine = artefact(tmp_path / "corpus")
    whole = MemoryFileSystem.put_file

    def breaking(self, here, there, **more):
        if there.endswith("00001.bin"):
            raise KeyboardInterrupt
        return whole(self, here, there, **more)

    monkeypatch.setattr(MemoryFileSystem, "put_file", breaking)
    with pytest.raises(KeyboardInterrupt):
        put(mine, "memory://shop/corpus")
    with pytest.raises(ArtefactError, match="is not a finished artefact"):
        fetched("memory://shop/corpus")
    monkeypatch.setattr(MemoryFileSystem, "put_file", whole)
    memory().pipe_file("/shop/corpus/parts/00000.bin", b"x")  # half of it came
    assert put(mine, "memory://shop/corpus")[0] == 3  # all but items.csv
    assert not memory().exists(f"/shop/corpus/{UNFINISHED}")
    verify_files(fetched("memory://shop/corpus"))


def test_put_to_a_folder_of_this_machine(tmp_path):
    mine = artefact(tmp_path / "corpus")
    put(mine, f"file://{tmp_path}/far/away/corpus")
    verify_files(tmp_path / "far" / "away" / "corpus")
    assert sorted(path.name for path in (tmp_path / "far/away/corpus").iterdir()) == ["items.csv", MANIFEST, "parts"]


@pytest.mark.parametrize(
    ("url", "message"),
    [("runs/there", "is not a URL"), ("https://host/corpus", "can only be read"), ("nope://x/y", "unknown protocol")],
)
def test_paths_that_nothing_can_be_put_at(tmp_path, url, message):
    with pytest.raises(ConfigError, match=message):
        put(artefact(tmp_path / "corpus"), url)


def test_only_whole_artefacts_are_put(tmp_path):
    mine = artefact(tmp_path / "corpus")
    (mine / "items.csv").write_text("changed")
    with pytest.raises(ArtefactError, match=r"items.csv: differs from manifest.json"):
        put(mine, "memory://shop/corpus")
    assert memory().find("/shop") == []


def test_an_artefact_that_is_replaced_while_it_is_put_is_no_artefact_there(tmp_path, monkeypatch):
    mine = artefact(tmp_path / "corpus")
    send = upload._send

    def replaced(remote, folder, name):
        if name == "items.csv":
            artefact(mine, {"items.csv": "c,d\n" * 10, **{name: FILES[name] for name in FILES if "parts" in name}})
        send(remote, folder, name)

    monkeypatch.setattr(upload, "_send", replaced)
    with pytest.raises(ArtefactError, match=r"corpus: was replaced while it was uploaded\. Run the same command again"):
        put(mine, "memory://shop/corpus")
    assert not memory().exists("/shop/corpus/manifest.json")


@dataclass
class ReadingConfig(StageConfig):
    kind: ClassVar[str] = "thing"

    output: str = setting("runs/x", "directory", affects_result=False)
    corpus: str = setting("", "corpus", input_kind="corpus")
    runs: dict[str, str] = setting({}, "predictions", input_kind="any")
    page: str = setting("", "file to write", affects_result=False, writes=True)


def test_settings_that_read_may_be_urls(tmp_path, opened):
    put(artefact(tmp_path / "corpus"), "memory://shop/corpus")
    opened.clear()
    config = ReadingConfig(corpus="memory://shop/corpus", runs={"a": "memory://shop/corpus", "b": "runs/b"})
    assert config.named_paths() == [Path("runs/b")] and opened == []  # ordering steps fetches nothing
    inputs = config.local().inputs()
    assert inputs["corpus"] == inputs["runs a"] and inputs["runs b"] == Path("runs/b")
    assert file_sha256(inputs["corpus"] / "items.csv") == file_sha256(tmp_path / "corpus" / "items.csv")


@dataclass
class PartsConfig(StageConfig):
    output: str = setting("runs/x", "directory", affects_result=False)
    interactions: str = setting("", "file, or a folder of files", input_kind="any", parts=True)
    other: str = setting("", "file", input_kind="any")


def test_a_folder_of_files_is_its_files(tmp_path, cache, opened):
    for name, text in {"b.csv": "2", "a.csv": "1", "_SUCCESS": "", ".b.csv.crc": "x", "10.csv": "3"}.items():
        memory().pipe_file(f"/lake/visits/{name}", text.encode())
        (tmp_path / "visits").mkdir(exist_ok=True)
        (tmp_path / "visits" / name).write_text(text)
    for where in (
        "memory://lake/visits",
        "memory://lake/visits/",
        str(tmp_path / "visits"),
        f"file://{tmp_path}/visits",
    ):
        look_again()
        opened.clear()
        found = PartsConfig(interactions=where).local().inputs()
        assert list(found) == ["interactions 00000", "interactions 00001", "interactions 00002"]
        assert [(path.name, path.read_text()) for path in found.values()] == [
            ("10.csv", "3"),
            ("a.csv", "1"),
            ("b.csv", "2"),
        ]
        assert opened == (["10.csv", "a.csv", "b.csv"] if where == "memory://lake/visits" else [])
    assert not list(cache.rglob("*SUCCESS*"))
    assert PartsConfig(interactions="memory://lake/visits/a.csv").local().inputs()["interactions"].read_text() == "1"
    assert (
        PartsConfig(interactions=str(tmp_path / "visits" / "a.csv")).local().inputs()["interactions"].read_text() == "1"
    )
    with pytest.raises(ArtefactError, match=r"has no manifest\.json"):
        PartsConfig(other="memory://lake/visits").local().inputs()


def test_a_folder_of_files_is_read_in_one_state(tmp_path):
    memory().pipe_file("/lake/visits/a.csv", b"1")
    config = PartsConfig(interactions="memory://lake/visits")
    before = config.local().inputs()
    memory().pipe_file("/lake/visits/a.csv", b"12")
    memory().pipe_file("/lake/visits/b.csv", b"3")
    assert config.local().inputs() == before
    look_again()
    assert [path.read_text() for path in config.local().inputs().values()] == ["12", "3"]


def test_folders_of_files_that_are_none(tmp_path):
    memory().pipe_file("/lake/visits/day=1/a.csv", b"1")
    memory().pipe_file("/lake/marks/_SUCCESS", b"")
    for root in ("memory://lake", str(tmp_path)):
        if root == str(tmp_path):
            (tmp_path / "visits" / "day=1").mkdir(parents=True)
            (tmp_path / "marks").mkdir()
        with pytest.raises(ArtefactError, match=r"visits: holds the folder 'day=1', but only the files"):
            PartsConfig(interactions=f"{root}/visits").local().inputs()
        with pytest.raises(ArtefactError, match="marks: is a folder without files to read"):
            PartsConfig(interactions=f"{root}/marks").local().inputs()
    with pytest.raises(ArtefactError, match="no such artefact or file"):
        PartsConfig(interactions="memory://lake/nowhere").local().inputs()


@pytest.mark.parametrize("name", ["output", "page"])
def test_settings_that_write_may_not(name):
    with pytest.raises(ConfigError, match=rf"{name} is 's3://b/x', .* minionerec put FOLDER s3://b/x"):
        ReadingConfig(**{name: "s3://b/x"})
