"""Files of torch.save with a checksum.

torch.save writes a zip archive. The comment that such an archive may end with holds the SHA-256 of
everything before it, so the file is one that torch.load and zipfile open as any other.
"""

from __future__ import annotations

import hashlib
import re
import struct
from pathlib import Path
from typing import Any, BinaryIO

import torch

from slowfast_patches.utils.files import written_whole

__all__ = ["DamagedFileError", "check", "save"]

_START, _END = b"PK\x03\x04", b"PK\x05\x06"
"""Signatures of the first entry and of the "end of central directory" record of a zip archive."""
_END_SIZE, _LONGEST_COMMENT = 22, 65_535
"""Bytes of that record, whose last two are the length of the comment that follows it."""
_COMMENT = re.compile(rb"sha256:([0-9a-f]{64})")
_LENGTH = len("sha256:") + 64
_CHUNK = 1 << 20


class DamagedFileError(ValueError):
    """A file is not as it was written."""


def save(content: Any, path: Path) -> None:
    """torch.save to `path`, whole or not at all, with a checksum.

    Raises:
        OSError: it cannot be written; `path` is as it was.
    """
    with written_whole(path) as file:
        sealed = _Sealed(file)
        torch.save(content, sealed)  # type: ignore[arg-type]  # it needs write and flush
        sealed.close()


def check(path: str | Path) -> None:
    """Compare a file with its checksum. Files that have none pass: others wrote them.

    Raises:
        DamagedFileError: a bit is not as it was written, or the end is missing.
        OSError: it cannot be read.
    """
    with Path(path).open("rb") as file:
        if file.read(len(_START)) != _START:
            return
        size = file.seek(0, 2)
        file.seek(max(0, size - _END_SIZE - _LONGEST_COMMENT))
        comment = _comment(file.read(), path)
        if not comment:
            return
        found = _COMMENT.fullmatch(comment)
        if found is None or _sha256(file, size - len(comment)) != found[1].decode():
            raise DamagedFileError(f"{path} is damaged: it is not what its checksum says")


def _comment(tail: bytes, path: str | Path) -> bytes:
    """The comment of an archive that ends in `tail`."""
    at = tail.rfind(_END)
    comment = tail[at + _END_SIZE :]
    if at < 0 or len(tail) < at + _END_SIZE:
        raise DamagedFileError(f"{path} is damaged: its end is missing")
    if struct.unpack_from("<H", tail, at + _END_SIZE - 2) != (len(comment),):
        raise DamagedFileError(f"{path} is damaged: its last bytes are missing, or not its own")
    return comment


def _sha256(file: BinaryIO, size: int) -> str:
    """Of the first `size` bytes."""
    digest, left = hashlib.sha256(), size
    file.seek(0)
    while left and (chunk := file.read(min(left, _CHUNK))):
        digest.update(chunk)
        left -= len(chunk)
    return digest.hexdigest()


class _Sealed:
    """What torch.save writes to: hashes what it passes on.

    An exception in `write` would have to find its way through torch's C++, which raises another one
    in its place. So the first one waits for `close`.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self._held, self._error = b"", None  # type: bytes, OSError | None

    def write(self, data: bytes) -> int:
        if self._error is None:
            try:
                self._pass_on(data)
            except OSError as error:
                self._error = error
        return len(data)

    def flush(self) -> None:
        """Nothing: what is held back waits for `close`."""

    def close(self) -> None:
        """Write the checksum, after its length in the place of the length 0 that torch wrote."""
        if self._error is not None:
            raise self._error
        assert self._held == b"\0\0", self._held
        self._emit(struct.pack("<H", _LENGTH))
        self._file.write(b"sha256:" + self._digest.hexdigest().encode())

    def _pass_on(self, data: bytes) -> None:
        """Write all but the last two bytes so far."""
        if len(data) < 2:
            data = self._held + data
        else:
            self._emit(self._held)
        view = memoryview(data)
        self._emit(view[:-2])
        self._held = bytes(view[-2:])

    def _emit(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        self._file.write(data)
