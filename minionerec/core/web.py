"""Files of the web (http, https), read through the interface of an fsspec filesystem.

A server's effect on a run is bounded: it must send something within a time, but may take any time for the whole;
compressed answers are decompressed block by block, up to a ratio. Where it can send the rest of a file, an interrupted
copy is resumed.
"""

import http.client
import re
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from email.message import Message
from typing import Any

BLOCK = 1 << 20
"""Bytes of a block."""
SILENCE = 60.0
"""Seconds that a server may send nothing."""
RATIO, FREE = 250, 64 << 20
"""Greatest ratio of decompressed to compressed size of an answer, once it is larger than so many bytes."""
SMALL = 64 << 20
"""Bytes of a file that is read into memory, such as a manifest, at most."""
_PACKED = ("gzip", "x-gzip", "deflate")
_MARKS = ("ETag", "Last-Modified", "Content-MD5", "Digest")
_RANGE = re.compile(r"bytes (?:\d+-\d+|\*)/(\d+)")


class Web:
    """The methods of an fsspec filesystem that reading needs."""

    def info(self, url: str) -> dict[str, Any]:
        """A server's information about a file: its size where it is sent, and marks that change with the content.

        Raises:
            OSError: If there is no such file (FileNotFoundError), or it cannot be fetched.
        """
        headers: Message
        try:
            with closing(_answer(url, {"Range": "bytes=0-0"})) as answer:
                status, headers = answer.status, answer.headers
        except urllib.error.HTTPError as error:
            if error.code != 416:  # no first byte: it is empty
                raise _refused(error) from None
            status, headers = error.code, error.headers
        whole = _RANGE.fullmatch(headers.get("Content-Range", ""))
        size = whole[1] if whole else headers.get("Content-Length") if status == 200 else None
        plain = headers.get("Content-Encoding", "identity") == "identity"
        found: dict[str, Any] = {"name": url, "type": "file"}
        found["size"] = int(size) if plain and size is not None and size.isdecimal() else None
        return found | {name: headers[name] for name in _MARKS if name in headers}

    def blocks(self, url: str, begin: int = 0, mark: str | None = None) -> tuple[int, Iterator[bytes]]:
        """The content of a file from a byte on, or all of it, where the server sends nothing else.

        Args:
            url: The file.
            begin: The first byte that is wanted.
            mark: The `ETag` or `Last-Modified` of the content of the earlier bytes, where it is known.

        Returns:
            The first byte that is returned, and the blocks.

        Raises:
            OSError: As `info`; the blocks also if they decompress to too much, or end too soon.
        """
        ranged = {"Range": f"bytes={begin}-"} if begin else {}
        ranged |= {"If-Range": mark} if begin and mark else {}
        try:
            answer = _answer(url, ranged)
        except urllib.error.HTTPError as error:
            if begin and error.code == 416:
                return self.blocks(url)
            raise _refused(error) from None
        packing = answer.headers.get("Content-Encoding", "identity").strip().lower()
        part = answer.status == 206 and packing == "identity"
        if answer.status == 206 and not (
            part and answer.headers.get("Content-Range", "").startswith(f"bytes {begin}-")
        ):
            answer.close()
            if not begin:
                raise OSError("the server sent a part of the file instead of all of it")
            return self.blocks(url)
        return (begin if part else 0), _parts(answer, packing)

    def cat_file(self, url: str) -> bytes:
        """A small file.

        Raises:
            OSError: As `blocks`, or if it is not small.
        """
        found = bytearray()
        for block in self.blocks(url)[1]:
            found += block
            if len(found) > SMALL:
                raise OSError(f"it is larger than {SMALL >> 20} MiB")
        return bytes(found)

    def invalidate_cache(self, url: str) -> None:
        """Do nothing: nothing is cached."""

    def ukey(self, url: str) -> str:
        """Key of a file."""
        return url


def _answer(url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
    """The beginning of an answer; only http and https are followed, wherever a server redirects."""
    handlers = (
        *(urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler()),
        *(urllib.request.HTTPRedirectHandler(), urllib.request.HTTPDefaultErrorHandler()),
        *(urllib.request.HTTPErrorProcessor(), urllib.request.UnknownHandler()),
    )
    opener = urllib.request.OpenerDirector()
    for handler in handlers:
        opener.add_handler(handler)
    request = urllib.request.Request(
        url, headers={"Accept-Encoding": "identity", "User-Agent": "minionerec", **headers}
    )
    with _ended():
        answer: http.client.HTTPResponse = opener.open(request, timeout=SILENCE)
        return answer


@contextmanager
def _ended() -> Iterator[None]:
    """Turn all errors of a connection into OSErrors."""
    try:
        yield
    except urllib.error.HTTPError:
        raise
    except TimeoutError:
        raise _silent() from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise _silent() from None
        raise OSError(str(error.reason)) from None
    except (http.client.HTTPException, ValueError, zlib.error) as error:
        raise OSError(f"the server's answer is not HTTP, or ends too soon: {error or type(error).__name__}") from None


def _silent() -> OSError:
    return OSError(f"the server sent nothing for {SILENCE:g} seconds")


def _refused(error: urllib.error.HTTPError) -> OSError:
    """An answer that is a refusal."""
    with closing(error):
        reason = f"status {error.code}, {error.reason}"
        if error.code in (404, 410):
            return FileNotFoundError(reason)
        return PermissionError(reason) if error.code in (401, 403) else OSError(reason)


def _parts(answer: http.client.HTTPResponse, packing: str) -> Iterator[bytes]:
    with closing(answer), _ended():
        yield from _unpacked(answer, packing)


def _unpacked(answer: http.client.HTTPResponse, packing: str) -> Iterator[bytes]:
    """The content of an answer, in parts of at most `BLOCK` bytes."""
    if packing not in ("identity", "", *_PACKED):
        raise OSError(f"the server sent it compressed as {packing[:40]!r}, but it was requested uncompressed")
    due = answer.length
    plain, packed, made = packing not in _PACKED, 0, 0
    unpack, within = zlib.decompressobj(zlib.MAX_WBITS | 32), False
    while content := answer.read1(BLOCK):
        packed += len(content)
        if plain:
            yield content
            continue
        while content:
            block = unpack.decompress(content, BLOCK)
            made += len(block)
            if made > FREE and made > RATIO * packed:
                raise OSError(f"the server's answer decompresses to more than {RATIO} times its size")
            yield block
            content, within = unpack.unconsumed_tail, not unpack.eof
            if unpack.eof:
                content, unpack = unpack.unused_data, zlib.decompressobj(zlib.MAX_WBITS | 32)
    if within or (due is not None and packed < due):
        raise OSError(f"only {packed:,} bytes were received")
