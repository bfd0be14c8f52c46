"""Files that somebody brings: opened, unpacked, and looked at before they are read.

What a file is, its content says; its name says nothing.
"""

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from .parameter import ScenarioError

MAX_UPLOAD_MB = int(os.environ.get("SLOTSCOPE_MAX_UPLOAD_MB", 200))
PIECE = 16_000_000  # bytes that are looked at together
HEAD = 65_536
BLANK = b"\xef\xbb\xbf \t\r\n"
ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\0\0\xfe\xff": "UTF-32"}

Source = bytes | Path


class Head(NamedTuple):
    """How a file begins."""

    line: str  # its first line that is not blank
    first: Any  # that line as JSON, where it is an object
    columns: tuple[str, ...]  # that line as names between commas


def check_size(content: bytes, filename: str) -> None:
    """ScenarioError for an upload over the limit."""
    if len(content) > MAX_UPLOAD_MB * 1_000_000:
        raise ScenarioError(
            f"{filename} has {len(content) / 1e6:,.0f} MB, over the limit of {MAX_UPLOAD_MB} MB:"
            " cut it, raise SLOTSCOPE_MAX_UPLOAD_MB, put it into the server's folder"
            " (SLOTSCOPE_TRACES), or give it to the command line"
        )


@contextmanager
def opened(source: Source) -> Iterator[BinaryIO | gzip.GzipFile]:
    """The bytes of a file, unpacked where they are gzip's."""
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        yield gzip.GzipFile(fileobj=raw) if packed else raw


def lines(source: Source, filename: str, size: int = PIECE) -> Iterator[tuple[int, bytes]]:
    """(number of its first line, whole lines) of each piece of a file.

    ScenarioError where the file can't be unpacked, or an upload unpacks to more than the limit.
    """
    number, rest, total = 1, b"", 0
    with opened(source) as file:
        while block := _block(file, size, filename):
            total += len(block)
            if isinstance(source, bytes) and total > max(MAX_UPLOAD_MB, 1) * 1_000_000:
                raise ScenarioError(
                    f"{filename} unpacks to more than {MAX_UPLOAD_MB} MB, the limit: cut it, or"
                    " raise SLOTSCOPE_MAX_UPLOAD_MB"
                )
            whole, cut, last = block.rpartition(b"\n")
            if not cut:
                rest += block
                continue
            piece, rest = rest + whole + cut, last
            yield number, piece
            number += piece.count(b"\n")
    if rest:
        yield number, rest


def _block(file: BinaryIO | gzip.GzipFile, size: int, filename: str) -> bytes:
    try:
        return file.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ScenarioError(f"{filename} can't be unpacked ({error}): copy it anew") from None


def whole(source: Source, filename: str) -> str:
    """All of a file as text. ScenarioError unless it is UTF-8."""
    content = b"".join(piece for _, piece in lines(source, filename))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ScenarioError(
            f"{filename}, line {line}: a byte that is no UTF-8: save it as UTF-8"
        ) from None


def head(source: Source, filename: str) -> Head:
    """How the file begins. ScenarioError if it is empty, binary, or in another encoding."""
    pieces = (piece for _, piece in lines(source, filename, HEAD))
    start = next((piece for piece in pieces if piece.strip(BLANK)), b"")[: 16 * HEAD]
    for mark, name in ENCODINGS.items():
        if start.startswith(mark):
            raise ScenarioError(f"{filename} is in {name}: save it as UTF-8")
    if not start:
        raise ScenarioError(f"{filename} is empty: give a file with a row a request")
    text = start.decode("utf-8-sig", "replace")
    line = next(line for line in text.splitlines() if line.strip()).strip()
    if "\0" in text or "\ufffd" in line:
        raise ScenarioError(
            f"{filename} is binary, or in another encoding than UTF-8: give a CSV, JSON, JSONL, log"
            " or metrics file as text; a CSV of requests may begin with"
            " arrival_ms,prompt_len,output_len"
        )
    columns = tuple(name.strip().strip('"') for name in line.split(","))
    return Head(line, as_object(line), columns if line[0] not in "{[" else ())


def as_object(line: str | bytes) -> dict | None:
    """The line as a JSON object, with the numbers that Python's json writes; None if it is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
