"""Files of the web (http, https), read as fsspec reads those of other places.

What a server may do to a run is bounded: it must say something within a time, but may take any time for the whole;
what it packs is unpacked piece by piece, up to a ratio. Where it can give the rest of a file, a copy that was cut off
goes on.
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
"""Bytes that are read at a time."""
SILENCE = 60.0
"""Seconds that a server may say nothing."""
RATIO, FREE = 250, 64 << 20
"""How many times its packed size an answer may unpack to, once it is larger than so many bytes."""
SMALL = 64 << 20
"""Bytes of a file that is read into memory, such as a manifest, at most."""
_PACKED = ("gzip", "x-gzip", "deflate")
_MARKS = ("ETag", "Last-Modified", "Content-MD5", "Digest")
_RANGE = re.compile(r"bytes (?:\d+-\d+|\*)/(\d+)")


class Web:
    """The methods of an fsspec filesystem that reading needs."""

    def info(self, url: str) -> dict[str, Any]:
        """What a server says of a file: its size where it tells, and marks that change with the content.

        Raises:
            OSError: If there is no such file (FileNotFoundError), or it cannot be had.
        """
        said: Message
        try:
            with closing(_answer(url, {"Range": "bytes=0-0"})) as answer:
                status, said = answer.status, answer.headers
        except urllib.error.HTTPError as error:
            if error.code != 416:  # no first byte: it is empty
                raise _refused(error) from None
            status, said = error.code, error.headers
        whole = _RANGE.fullmatch(said.get("Content-Range", ""))
        size = whole[1] if whole else said.get("Content-Length") if status == 200 else None
        plain = said.get("Content-Encoding", "identity") == "identity"
        found: dict[str, Any] = {"name": url, "type": "file", "ranges": status == 206 and plain}
        found["size"] = int(size) if plain and size is not None and size.isdecimal() else None
        return found | {name: said[name] for name in _MARKS if name in said}

    def blocks(self, url: str, begin: int = 0, mark: str | None = None) -> tuple[int, Iterator[bytes]]:
        """The content of a file from a byte on, or all of it, where the server gives no other.

        Args:
            url: The file.
            begin: The first byte that is wanted.
            mark: The `ETag` or `Last-Modified` of the content that the bytes before belong to, where it is known.

        Returns:
            The first byte of what comes, and its parts.

        Raises:
            OSError: As `info`; while the parts come also if they unpack to too much, or end too soon.
        """
        asked = {"Range": f"bytes={begin}-"} if begin else {}
        asked |= {"If-Range": mark} if begin and mark else {}
        try:
            answer = _answer(url, asked)
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
                raise OSError("the server gives a part of the file, though asked for all of it")
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
        """Nothing is kept."""

    def ukey(self, url: str) -> str:
        """What tells the file from others."""
        return url


def _answer(url: str, said: dict[str, str]) -> http.client.HTTPResponse:
    """The beginning of an answer; only http and https are spoken, wherever a server leads."""
    handlers = (
        *(urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler()),
        *(urllib.request.HTTPRedirectHandler(), urllib.request.HTTPDefaultErrorHandler()),
        *(urllib.request.HTTPErrorProcessor(), urllib.request.UnknownHandler()),
    )
    opener = urllib.request.OpenerDirector()
    for handler in handlers:
        opener.add_handler(handler)
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", "User-Agent": "minionerec", **said})
    with _ended():
        answer: http.client.HTTPResponse = opener.open(request, timeout=SILENCE)
        return answer


@contextmanager
def _ended() -> Iterator[None]:
    """What a connection ends with, as errors that say so."""
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
        raise OSError(
            f"the server's answer is none of HTTP, or ends too soon: {error or type(error).__name__}"
        ) from None


def _silent() -> OSError:
    return OSError(f"the server said nothing for {SILENCE:g} seconds")


def _refused(error: urllib.error.HTTPError) -> OSError:
    """An answer that is a refusal."""
    with closing(error):
        said = f"status {error.code}, {error.reason}"
        if error.code in (404, 410):
            return FileNotFoundError(said)
        return PermissionError(said) if error.code in (401, 403) else OSError(said)


def _parts(answer: http.client.HTTPResponse, packing: str) -> Iterator[bytes]:
    with closing(answer), _ended():
        yield from _unpacked(answer, packing)


def _unpacked(answer: http.client.HTTPResponse, packing: str) -> Iterator[bytes]:
    """The content of an answer, in parts of at most `BLOCK` bytes."""
    if packing not in ("identity", "", *_PACKED):
        raise OSError(f"the server sends it packed as {packing[:40]!r}, though asked for it as it is")
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
                raise OSError(f"the server's answer unpacks to more than {RATIO} times its size")
            yield block
            content, within = unpack.unconsumed_tail, not unpack.eof
            if unpack.eof:
                content, unpack = unpack.unused_data, zlib.decompressobj(zlib.MAX_WBITS | 32)
    if within or (due is not None and packed < due):
        raise OSError(f"only {packed:,} bytes came")
