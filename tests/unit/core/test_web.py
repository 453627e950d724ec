"""Files of the web: servers that are slow, silent, false, or send what unpacks to very much."""

import gzip
import json
import re
import time

import pytest
from support.loopback import bomb, head, loopback, of_file

from minionerec.core import web
from minionerec.core.artefacts import to_plain
from minionerec.core.commands import run_command
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.paths import find_path
from minionerec.core.remote import fetched, look_again
from minionerec.core.urls import RemotePath, without_query
from minionerec.data.sources.tables import read_tables

CONTENT = b"user_id,item_id,timestamp\n" + b"u,i,1\n" * 500


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIONEREC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(web, "SILENCE", 0.3)
    look_again()
    return tmp_path / "cache"


def served(answer):
    """A server of files alone: it has no manifest."""
    return loopback(lambda path, asked: [head("404 No")] if path.endswith("manifest.json") else answer(asked))


def honest(asked):
    return of_file(CONTENT, asked)


def test_a_file_comes_once_and_a_line_says_that_it_is_asked_for(caplog):
    with served(honest) as server, caplog.at_level("INFO", "minionerec"):
        copy = fetched(f"{server.url}/bought.csv")
        assert (copy.name, copy.read_bytes()) == ("bought.csv", CONTENT)
        before = len(server.asked)
        assert fetched(f"{server.url}/bought.csv") == copy
        assert [reported.get("range") for _, reported in server.asked[before:]] == ["bytes=0-0", None]
    assert caplog.messages[:2] == [f"Asking for {server.url}/bought.csv.", f"Fetching {server.url}/bought.csv."]
    assert {reported["accept-encoding"] for _, reported in server.asked} == {"identity"}


def test_a_server_that_drips_takes_longer_than_it_may_be_silent():
    def drip(asked):
        whole = honest(asked)
        if "range" in asked:
            return whole
        return [whole[0], *(part for n in range(0, len(CONTENT), 400) for part in (0.1, CONTENT[n : n + 400]))]

    began = time.monotonic()
    with served(drip) as server:
        assert fetched(f"{server.url}/bought.csv").read_bytes() == CONTENT
    assert time.monotonic() - began > 2 * web.SILENCE


@pytest.mark.parametrize("after", [None, [], [b"HTTP/1.1 200 OK\r\n", 9.0], [head(Content_Length=9), b"abc", 9.0]])
def test_a_server_that_says_nothing_more_is_given_up(after):
    with loopback(lambda path, reported: after) as server:
        began = time.monotonic()
        with pytest.raises(ArtefactError, match=r"bought.csv: .*(sent nothing for 0.3 seconds|closed connection)"):
            fetched(f"{server.url}/bought.csv")
        assert time.monotonic() - began < 2


@pytest.mark.parametrize("ranges", [True, False])
def test_a_copy_that_was_interrupted_resumes_where_the_server_can(ranges, cache):
    cut = {"upto": 1000}

    def answer(asked):
        return of_file(CONTENT, asked, ranges=ranges, **({} if asked.get("range") == "bytes=0-0" else cut))

    with served(answer) as server:
        with pytest.raises(ArtefactError, match=r"cannot be reached \(OSError: only 1,000 bytes were received\)"):
            fetched(f"{server.url}/bought.csv")
        assert not list(cache.glob("files/*/bought.csv"))
        cut.clear()
        assert fetched(f"{server.url}/bought.csv").read_bytes() == CONTENT
    last = server.asked[-1][1]
    assert (last["range"], last["if-range"]) == ("bytes=1000-", '"1"')


def test_what_resumes_is_of_the_same_content():
    state = {"content": CONTENT, "mark": '"1"', "upto": 1000}

    def answer(asked):
        if asked.get("range") == "bytes=0-0":
            return of_file(CONTENT, asked)
        asked.pop("range", None)  # the content is another now: all of it comes
        return of_file(state["content"], asked, upto=state.get("upto"))

    with served(answer) as server:
        with pytest.raises(ArtefactError, match="only 1,000 bytes were received"):
            fetched(f"{server.url}/bought.csv")
        state.update(content=CONTENT[::-1], upto=None)
        assert fetched(f"{server.url}/bought.csv").read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        ([head(Content_Length=5), b"abc"], "only 3 bytes were received"),
        ([head("206 Partial Content", Content_Range="bytes 7-9/10", Content_Length=3), b"abc"], "sent a part of the"),
        ([head(Transfer_Encoding="chunked"), b"5\r\nab"], "ends too soon"),
        ([head(Transfer_Encoding="chunked"), b"zz\r\nab"], "ends too soon"),
        ([b"SSH-2.0-OpenSSH_9\r\n"], "is not HTTP"),
        ([head(Content_Encoding="br"), b"abc"], "compressed as 'br'"),
        ([head(Content_Encoding="gzip"), b"abc"], "is not HTTP, or ends too soon"),
        ([head(Content_Encoding="gzip"), gzip.compress(CONTENT, mtime=0)[:-20]], "only "),
        ([head("302 Found", Location="file:///etc/passwd")], "not allowed|redirect"),
        ([head("302 Found", Location="/bought.csv")], "infinite loop"),
        ([head("500 Internal Server Error")], "status 500"),
        ([head("403 Forbidden")], "no permission .*Fix the URL; a signed one may have expired"),
        ([head("404 Not Found")], "no such artefact or file"),
    ],
    ids=str,
)
def test_servers_that_lie_are_one_line(answer, reported, cache):
    with served(lambda asked: answer) as server, pytest.raises(ArtefactError, match=reported) as refused:
        fetched(f"{server.url}/bought.csv")
    assert str(refused.value).startswith(f"{server.url}/bought.csv: ")
    assert not list(cache.glob("files/*/bought.csv"))


def test_what_is_packed_is_unpacked_up_to_a_ratio(monkeypatch):
    monkeypatch.setattr(web, "FREE", 1 << 20)
    state = {"content": gzip.compress(CONTENT, mtime=0) + gzip.compress(b"more")}

    def answer(asked):
        return [head(Content_Encoding="gzip", Content_Length=len(state["content"])), state["content"]]

    with served(answer) as server:
        assert fetched(f"{server.url}/bought.csv").read_bytes() == CONTENT + b"more"
        state["content"] = bomb(8 << 20)
        with pytest.raises(ArtefactError, match="decompresses to more than 250 times its size"):
            fetched(f"{server.url}/bomb.csv")


def test_a_manifest_has_a_size(monkeypatch):
    monkeypatch.setattr(web, "SMALL", 1000)
    with (
        loopback(
            lambda path, reported: [head(Transfer_Encoding="chunked"), *[b"100\r\n" + b"a" * 256 + b"\r\n"] * 50]
        ) as server,
        pytest.raises(ArtefactError, match="it is larger than 0 MiB"),
    ):
        fetched(f"{server.url}/corpus")


def test_an_empty_file():
    with served(lambda asked: of_file(b"", asked)) as server:
        assert RemotePath.at(f"{server.url}/none.csv").info()["size"] == 0
        assert fetched(f"{server.url}/none.csv").read_bytes() == b""


def test_queries_are_sent_and_never_shown(caplog):
    with served(honest) as server, caplog.at_level("INFO", "minionerec"):
        copies = [fetched(f"{server.url}/bought.csv?X-Amz-Signature={name}") for name in ("secret", "other")]
        assert copies[0] != copies[1]
        with (
            pytest.raises(ArtefactError) as refused,
            loopback(lambda path, reported: [head("403 Forbidden")]) as closed,
        ):
            fetched(f"{closed.url}/bought.csv?X-Amz-Signature=secret")
    assert {path for path, _ in server.asked} >= {"/bought.csv?X-Amz-Signature=secret"}
    for text in (*caplog.messages, str(refused.value), copies[0].name):
        assert "secret" not in text
    assert re.search(r"bought.csv\?sha256=[0-9a-f]{16}", str(refused.value))


def test_queries_are_not_recorded():
    url = "https://shop.example/items.csv?X-Amz-Signature=secret&a=1"
    plain = to_plain({"items": url, "note": f"taken from {url}, twice", "ks": [1, url], "n": 3})
    assert "secret" not in json.dumps(plain)
    assert plain["items"] == without_query(url) == without_query(without_query(url))
    assert (plain["n"], plain["note"].split()[-1]) == (3, "twice")
    assert without_query("is it? s3://bucket/corpus? yes") == "is it? s3://bucket/corpus? yes"


@pytest.mark.parametrize("url", ["reference://corpus", "dir://some/corpus"])
def test_protocols_that_need_more_than_a_url(url):
    with pytest.raises(ConfigError, match=f"{url}: (dir|reference):// needs more than a URL says"):
        fetched(url)


def test_an_error_in_a_fetched_table_names_its_url(capsys):
    def read():
        read_tables(find_path(f"{server.url}/bought.csv?sig=secret"), find_path(f"{server.url}/bought.csv"))

    with served(honest) as server, pytest.raises(SystemExit):
        run_command(read)
    reported = capsys.readouterr().err.splitlines()[-1]
    assert reported.startswith(f"error: {server.url}/bought.csv (copied to /")
    assert "column 'title' is missing" in reported
