"""URLs as inputs: whole copies, compared with sizes and hashes; every failure is one line."""

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from unittest.mock import Mock

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from huggingface_hub import constants
from support.paths import ROOT

from minionerec.core import remote
from minionerec.core.artefacts import DIGEST, MANIFEST, digest_of, file_sha256, to_plain, verify_files, write_artefact
from minionerec.core.commands import run_command
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.paths import find_path
from minionerec.core.remote import cache_folder, local_parts, local_path, look_again
from minionerec.core.urls import is_remote, without_query
from minionerec.data.sources.tables import read_tables
from minionerec.pipeline.settings import StageConfig, setting

FILES = {"items.csv": "a,b\n" * 10, "parts/00000.bin": "x" * 3000, "parts/00001.bin": "y" * 5}
CONTENT = b"user_id,item_id,timestamp\n" + b"u,i,1\n" * 500


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own, and an empty memory filesystem."""
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
    for name, read in {name: getattr(MemoryFileSystem, name) for name in ("get_file", "cat_file")}.items():

        def counting(self, path, *words, read=read, **more):
            names.append(path.rpartition("/")[2])
            return read(self, path, *words, **more)

        monkeypatch.setattr(MemoryFileSystem, name, counting)
    return names


def artefact(path, files=FILES, seed=1):
    with write_artefact(path, "corpus", config={"seed": seed}, seed=seed) as folder:
        for name, text in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
    return path


def memory():
    return fsspec.filesystem("memory")


def upload(folder):
    """Copy a folder to memory://shop/corpus."""
    for path in folder.rglob("*"):
        if path.is_file():
            memory().pipe_file(f"/shop/corpus/{path.relative_to(folder)}", path.read_bytes())
    return folder


def next_run(url):
    look_again()
    return local_path(url)


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


# Artefacts


def test_an_artefact_is_fetched_whole_once_and_is_read_like_any_other(tmp_path, cache, opened):
    source = upload(artefact(tmp_path / "corpus"))
    copy = local_path("memory://shop/corpus")
    assert copy.name == "corpus" and copy.is_relative_to(cache)
    verify_files(copy)
    for name in [*FILES, MANIFEST]:
        assert (copy / name).read_bytes() == (source / name).read_bytes()
    assert sorted(opened) == ["00000.bin", "00001.bin", "items.csv", MANIFEST]
    opened.clear()
    assert next_run("memory://shop/corpus/") == copy
    assert opened == [MANIFEST]
    assert sorted(path.name for path in copy.parent.iterdir()) == [".lock", "corpus"]


def test_paths_of_this_machine_stay(tmp_path, cache):
    folder = artefact(tmp_path / "corpus")
    assert local_path(f"file://{folder}") == find_path(f"file://{folder}") == folder
    assert local_path(folder) == folder and local_path("runs/x") == Path("runs/x")
    assert not cache.exists()


def test_a_run_reads_one_state_and_the_next_looks_again(tmp_path):
    upload(artefact(tmp_path / "corpus"))
    one = find_path("memory://shop/corpus")
    upload(artefact(tmp_path / "corpus", {"items.csv": "other"}, seed=2))
    assert find_path("memory://shop/corpus") == one
    two = next_run("memory://shop/corpus")
    assert (two / "items.csv").read_text() == "other" and (one / "items.csv").read_text() == FILES["items.csv"]


def test_an_interrupted_fetch_leaves_nothing_that_is_taken_for_a_whole(tmp_path, cache, monkeypatch):
    upload(artefact(tmp_path / "corpus"))
    whole = MemoryFileSystem.get_file

    def interrupted(self, path, copy, **more):
        if path.endswith("00000.bin"):
            Path(copy).write_text("x" * 100)
            raise KeyboardInterrupt
        whole(self, path, copy, **more)

    monkeypatch.setattr(MemoryFileSystem, "get_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        local_path("memory://shop/corpus")
    assert not list(cache.glob("*/corpus"))
    monkeypatch.setattr(MemoryFileSystem, "get_file", whole)
    verify_files(local_path("memory://shop/corpus"))


def test_files_that_are_not_those_of_the_manifest_are_refused(tmp_path, cache):
    upload(artefact(tmp_path / "corpus"))
    file = "/shop/corpus/parts/00000.bin"
    message = r"memory://shop/corpus: its file parts/00000.bin is missing or differs from manifest.json. Copy the whole"
    for spoil in (lambda: memory().pipe_file(file, b"x" * 2999 + b"!"), lambda: memory().rm_file(file)):
        spoil()
        with pytest.raises(ArtefactError, match=message):
            local_path("memory://shop/corpus")
    assert not list(cache.glob("*/corpus"))


@pytest.mark.parametrize(
    "name", ["../out", "/etc/out", "a/../../out", "./out", "a//out", ".", "", "a\\out", MANIFEST, "out\0", "a/./out"]
)
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path, cache, name):
    upload(artefact(tmp_path / "corpus"))
    forge("/shop/corpus", files={name: "0" * 64})
    with pytest.raises(ArtefactError, match="shop/corpus"):
        local_path("memory://shop/corpus")
    assert not list(cache.glob("*/corpus")) and not list(tmp_path.rglob("out"))


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff\xfe", b'{"kind": "corpus"}', b"[" * 100_000, None])
def test_a_manifest_that_is_malformed_or_edited_by_hand_is_refused(tmp_path, cache, raw):
    upload(artefact(tmp_path / "corpus"))
    whole = memory().cat_file(f"/shop/corpus/{MANIFEST}")
    memory().pipe_file(f"/shop/corpus/{MANIFEST}", whole.replace(b'"seed": 1', b'"seed": 2') if raw is None else raw)
    with pytest.raises(ArtefactError, match=r"shop/corpus(: its file manifest.json .*differs|/manifest.json: )"):
        local_path("memory://shop/corpus")
    assert not list(cache.glob("*/corpus"))


def test_nothing_there_and_a_folder_without_a_manifest():
    with pytest.raises(ArtefactError, match=r"memory://shop/corpus: no such artefact or file\. Fix the URL"):
        local_path("memory://shop/corpus")
    memory().pipe_file("/shop/corpus/items.csv", b"")
    with pytest.raises(ArtefactError, match=r"has no manifest.json, so it is not a finished artefact\. Copy the whole"):
        local_path("memory://shop/corpus")


_PROCESS = """
import sys, time, fsspec
from fsspec.implementations.local import LocalFileSystem

class Elsewhere(LocalFileSystem):
    protocol = "elsewhere"

    @classmethod
    def _strip_protocol(cls, path):
        return str(path).removeprefix("elsewhere://")

    def get_file(self, path, *words, **more):
        with open(sys.argv[2], "a") as log:
            log.write(path.rpartition("/")[2] + "\\n")
        time.sleep(0.1)
        super().get_file(path, *words, **more)

fsspec.register_implementation("elsewhere", Elsewhere)
from minionerec.core.artefacts import verify_files
from minionerec.core.remote import local_path
path = local_path("elsewhere://" + sys.argv[1])
verify_files(path)
print(path)
"""


def test_of_the_processes_of_a_launch_one_copies_and_the_others_wait(tmp_path):
    folder, log = artefact(tmp_path / "corpus"), tmp_path / "log"
    words = [sys.executable, "-c", _PROCESS, str(folder), str(log)]
    about = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(words, **about) for _ in range(3)]
    reported = {process.communicate(timeout=60)[0] for process in started}
    assert [process.returncode for process in started] == [0, 0, 0] and len(reported) == 1
    assert sorted(log.read_text().split()) == ["00000.bin", "00001.bin", "items.csv"]


# Files


def test_a_file_keeps_its_name_and_a_changed_one_is_fetched_again(opened):
    memory().pipe_file("/raw/ratings.csv", b"user,item\n")
    one = local_path("memory://raw/ratings.csv")
    assert (one.name, one.read_bytes()) == ("ratings.csv", b"user,item\n")
    opened.clear()
    assert next_run("memory://raw/ratings.csv") == one and opened == []
    memory().pipe_file("/raw/ratings.csv", b"user,item\n1,2\n")
    assert next_run("memory://raw/ratings.csv").read_bytes() == b"user,item\n1,2\n"


def test_a_file_that_is_shorter_than_announced_is_not_kept(cache, monkeypatch):
    memory().pipe_file("/raw/ratings.csv", b"user,item\n")
    monkeypatch.setattr(MemoryFileSystem, "get_file", lambda self, path, copy: Path(copy).write_bytes(b"user"))
    with pytest.raises(ArtefactError, match=r"ratings\.csv: 4 of 10 bytes were received"):
        local_path("memory://raw/ratings.csv")
    assert not list(cache.glob("*/ratings.csv"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nope://b/corpus", "nope://b/corpus: unknown protocol 'nope'"),
        ("https://ann:secret@host/corpus", r"https://\.\.\.@host/corpus: holds a password"),
        ("hf://ann:secret@host/corpus", r"hf://\.\.\.@host/corpus: holds a password"),
    ],
)
def test_urls_that_nothing_reads(url, message):
    for read in (local_path, local_parts):
        with pytest.raises(ConfigError, match=message) as raised:
            read(url)
        assert "secret" not in str(raised.value)


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    message = r"s3://b/corpus: the package that reads s3:// is not installed\. Install s3fs .*\.$"
    with pytest.raises(ConfigError, match=message):
        local_path("s3://b/corpus")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError("Access Denied"), r"cannot be read \(PermissionError: Access Denied\)\. Check .* credentials"),
        (RuntimeError("Unable to locate credentials"), "cannot be read .* environment"),
        (TimeoutError("timed out\nagain"), r"cannot be read \(TimeoutError: timed out again\)\. Check the URL"),
    ],
)
def test_errors_of_a_filesystem_are_one_line(tmp_path, monkeypatch, error, message):
    upload(artefact(tmp_path / "corpus"))
    monkeypatch.setattr(MemoryFileSystem, "info", Mock(side_effect=error))
    with pytest.raises(ArtefactError, match=f"memory://shop/corpus: {message}"):
        local_path("memory://shop/corpus")


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    upload(artefact(tmp_path / "corpus"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINIONEREC_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ArtefactError, match=r"file/cache: the copy of memory://shop/corpus cannot .*MINIONEREC_CACHE"):
        local_path("memory://shop/corpus")


def test_the_cache_lies_in_the_home_unless_named(monkeypatch):
    monkeypatch.delenv("MINIONEREC_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "minionerec"


# The web


@contextmanager
def served(answer):
    """A server whose answer to a request is a status, headers and a body; None keeps silent."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.asked.append((self.command, self.path))
            reply = answer(self.command, self.path)
            if reply is None:
                server.ended.wait(5)
                return
            status, headers, body = reply
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, str(value))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.ended = [], threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()


def whole(content=CONTENT, **headers):
    return 200, {"Content-Length": len(content), **headers}, content


@pytest.mark.parametrize("version", [{"ETag": '"1"'}, {"Last-Modified": "Sat, 28 Nov 2026 15:00:00 GMT"}])
def test_a_file_of_the_web_is_fetched_again_when_its_version_changes(version):
    state = {"content": CONTENT, "version": version}
    with served(lambda command, path: whole(state["content"], **state["version"])) as server:
        url = f"{server.url}/bought.csv"
        copy = local_path(url)
        assert (copy.name, copy.read_bytes()) == ("bought.csv", CONTENT)
        assert local_path(url) == next_run(url) == copy
        assert [command for command, _ in server.asked] == ["HEAD", "GET", "HEAD"]
        state.update(content=CONTENT[::-1], version={"ETag": '"2"'})
        assert next_run(url).read_bytes() == CONTENT[::-1] and copy.read_bytes() == CONTENT


def test_a_file_of_the_web_without_a_version_is_fetched_by_every_run():
    state = {"content": CONTENT}
    with served(lambda command, path: whole(state["content"])) as server:
        assert local_path(f"{server.url}/bought.csv").read_bytes() == CONTENT
        state["content"] = CONTENT[::-1]
        assert local_path(f"{server.url}/bought.csv").read_bytes() == CONTENT
        assert next_run(f"{server.url}/bought.csv").read_bytes() == CONTENT[::-1]


def test_a_file_whose_size_the_server_does_not_know():
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(CONTENT), CONTENT)
    with served(lambda command, path: (200, {"Transfer-Encoding": "chunked", "ETag": '"1"'}, body)) as server:
        assert local_path(f"{server.url}/bought.csv").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda command: (200, {"Content-Length": len(CONTENT)}, CONTENT[:1000]), "cannot be read .*not completed"),
        (lambda command: whole(CONTENT if command == "HEAD" else CONTENT[:1000]), "1,000 of 3,026 bytes were received"),
        (lambda command: (200, {"Transfer-Encoding": "chunked"}, b"5\r\nab"), "cannot be read"),
        (lambda command: None, "cannot be read .*[Tt]imeout"),
        (lambda command: (302, {"Location": "file:///etc/passwd"}, b""), "cannot be read .*Redirect"),
        (lambda command: (500, {}, b""), "cannot be read .*500"),
        (lambda command: (403, {}, b""), r"cannot be read .*403.*a signed one may have expired"),
        *((lambda command, n=n: (n, {}, b""), r"no such artefact or file\. Fix the URL") for n in (404, 410)),
    ],
    ids=["cut off", "shorter", "chunk cut off", "silent", "redirect", "500", "403", "404", "410"],
)
def test_a_failed_download_is_one_line_and_leaves_no_copy(answer, message, cache, monkeypatch):
    monkeypatch.setattr(remote, "READ_TIMEOUT", 0.3)
    state = {"answer": answer}
    with served(lambda command, path: state["answer"](command)) as server:
        with pytest.raises(ArtefactError, match=rf"{server.url}/bought\.csv\?sha256=\w+: {message}") as refused:
            local_path(f"{server.url}/bought.csv?token=secret")
        assert "secret" not in str(refused.value)
        assert not list(cache.glob("*/bought.csv"))
        state["answer"] = lambda command: whole()
        assert local_path(f"{server.url}/bought.csv?token=secret").read_bytes() == CONTENT


def test_queries_are_sent_as_typed_and_never_shown(caplog):
    queries = ("X-Amz-Signature=secret%2Fa%2Bb+c", "X-Amz-Signature=other")
    with served(lambda command, path: whole(ETag='"1"')) as server, caplog.at_level("INFO", "minionerec"):
        copies = [local_path(f"{server.url}/bought.csv?{query}") for query in queries]
    assert copies[0] != copies[1] and copies[0].name == "bought.csv"
    assert {path for _, path in server.asked} == {f"/bought.csv?{query}" for query in queries}
    assert len(caplog.messages) == 4 and "secret" not in caplog.text


def test_queries_are_not_recorded():
    url = "https://shop.example/items.csv?X-Amz-Signature=secret&a=1"
    plain = to_plain({"items": url, "note": f"taken from {url}, twice", "ks": [1, url], "n": 3})
    assert "secret" not in json.dumps(plain)
    assert plain["items"] == without_query(url) == without_query(without_query(url))
    assert (plain["n"], plain["note"].split()[-1]) == (3, "twice")
    assert without_query("is it? s3://bucket/corpus? yes") == "is it? s3://bucket/corpus? yes"


def test_an_error_in_a_fetched_table_names_its_url(capsys):
    def read():
        read_tables(find_path(f"{server.url}/bought.csv?sig=secret"), find_path(f"{server.url}/bought.csv"))

    with served(lambda command, path: whole()) as server, pytest.raises(SystemExit):
        run_command(read)
    reported = capsys.readouterr().err.splitlines()[-1]
    assert reported.startswith(f"error: {server.url}/bought.csv (copied to /")
    assert "column 'title' is missing" in reported


# The Hugging Face hub


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The library's cache with a data set of which one commit was downloaded; there is no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "hub" / "datasets--me--shop"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    snapshot = repository / "snapshots" / ("0" * 40)
    artefact(snapshot / "runs" / "corpus")
    (snapshot / "visits").mkdir()
    for name in ("b.csv", "a.csv"):
        (snapshot / "visits" / name).write_bytes(CONTENT)
    return snapshot


def test_what_lies_on_the_hub_is_read_from_its_own_cache(hub, cache):
    corpus = local_path("hf://datasets/me/shop/runs/corpus")
    assert corpus == hub / "runs" / "corpus"
    verify_files(corpus)
    assert local_path("hf://datasets/me/shop@main/visits/a.csv").read_bytes() == CONTENT
    assert local_path("hf://datasets/me/shop") == hub
    assert [path.name for path in local_parts("hf://datasets/me/shop/visits")] == ["a.csv", "b.csv"]
    assert local_parts("hf://datasets/me/shop/visits/a.csv") is None
    assert not cache.exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("hf://datasets/me/shop/nothing", r"no such artefact or file\. Fix the URL"),
        ("hf://me/shop/corpus", "cannot be read .*HF_HUB_OFFLINE"),
        ("hf://shop", "cannot be read .*namespace/name"),
    ],
)
def test_what_is_not_on_the_hub_is_one_line(hub, url, message):
    with pytest.raises(ArtefactError, match=f"{url}: {message}"):
        local_path(url)


# Settings


@dataclass
class ReadingConfig(StageConfig):
    kind: ClassVar[str] = "thing"

    output: str = setting("runs/x", "directory", affects_result=False)
    corpus: str = setting("", "corpus", input_kind="corpus")
    runs: dict[str, str] = setting({}, "predictions", input_kind="any")
    page: str = setting("", "file to write", affects_result=False, writes=True)


def test_settings_that_read_may_be_urls(tmp_path, opened):
    upload(artefact(tmp_path / "corpus"))
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
    for where in ("memory://lake/visits", "memory://lake/visits/", f"{tmp_path}/visits", f"file://{tmp_path}/visits"):
        look_again()
        opened.clear()
        found = PartsConfig(interactions=where).local().inputs()
        assert list(found) == ["interactions 00000", "interactions 00001", "interactions 00002"]
        texts = [(path.name, path.read_text()) for path in found.values()]
        assert texts == [("10.csv", "3"), ("a.csv", "1"), ("b.csv", "2")]
        assert opened == (["10.csv", "a.csv", "b.csv"] if where == "memory://lake/visits" else [])
    assert not list(cache.rglob("*SUCCESS*"))
    for file in ("memory://lake/visits/a.csv", f"{tmp_path}/visits/a.csv"):
        assert PartsConfig(interactions=file).local().inputs()["interactions"].read_text() == "1"
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
    with pytest.raises(ConfigError, match=rf"{name} is 's3://b/x', .* Give a local folder, and copy it there"):
        ReadingConfig(**{name: "s3://b/x"})
