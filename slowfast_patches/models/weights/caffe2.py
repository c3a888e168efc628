"""Caffe2 checkpoints are pickles, and a pickle is a program: what they name is not what they get.

A pickle of numpy arrays names a few functions and calls them. Here these names stand for functions
of this module, which check what they are given and make arrays of bytes and nothing else; every
other name is refused before it is looked up, and nothing is imported.
"""

from __future__ import annotations

import math
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["read_blobs"]


def read_blobs(path: Path) -> dict[str, Any]:
    """The "blobs" of a Caffe2 checkpoint: arrays by Caffe2's names, and what else is among them.

    Files of Python 2 (byte strings read as latin-1) and of any numpy are read.

    Raises:
        ValueError: the file asks for something other than arrays and plain containers, which it
            names; or it is no pickle, or one without "blobs".
    """
    try:
        with path.open("rb") as file:
            content = _Reader(file, encoding="latin1").load()
    except _RefusedError as refused:
        raise ValueError(
            f"{_printable(refused)} in {path} is refused: a Caffe2 checkpoint needs arrays and "
            "plain containers alone, and nothing else in a pickle is safe to load"
        ) from None
    except Exception as error:
        reason = f"{type(error).__name__} {_printable(error)}"
        raise ValueError(f"{path} cannot be read as a Caffe2 checkpoint: {reason}") from error
    blobs = content.get("blobs") if isinstance(content, dict) else None
    if not isinstance(blobs, dict) or not all(isinstance(name, str) for name in blobs):
        raise ValueError(f'{path} is no Caffe2 checkpoint: it has no "blobs" with arrays by name')
    return {k: v.value if isinstance(v, _Array) else v for k, v in blobs.items()}


class _RefusedError(Exception):
    """Says what the file asks for."""


def _printable(error: Exception) -> str:
    """One line that does nothing to a terminal: names in a file are what its writer likes."""
    return str(error).encode("unicode_escape").decode()[:200]


class _Reader(pickle.Unpickler):
    """Reads numbers, texts, plain containers and numpy arrays; refuses the rest by name."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._names = _names()

    def find_class(self, module: str, name: str) -> Any:
        """What an exact pair of names stands for; no part of a dotted name is looked up."""
        if (module, name) not in self._names:
            raise _RefusedError(f"{module}.{name}")
        return self._names[module, name]


class _DType:
    """A type of numbers, whose byte order arrives after it was made."""

    def __init__(self, code: Any) -> None:
        if not isinstance(code, str) or not re.fullmatch("[<>|=]?[biuf][1248]", code):
            raise _RefusedError(f"numpy.dtype of {code if isinstance(code, str) else type(code)}")
        self.value: np.dtype[Any] = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        """Set the byte order; fields and sub-arrays, which may hold objects, are refused."""
        _, order, *structure = state
        if order not in ("<", ">", "|", "=") or any(part is not None for part in structure[:3]):
            raise _RefusedError("a structured numpy.dtype")
        self.value = self.value.newbyteorder(order)


class _Array:
    """An array, whose content arrives after it was made."""

    def __init__(self, value: NDArray[Any] | None = None) -> None:
        self.value = value

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.value = _make_array(data, dtype, shape, "F" if fortran else "C")


def _make_array(data: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    """A read-only view of `data`, the bytes of an array; as text if Python 2 wrote them."""
    data = data.encode("latin1") if isinstance(data, str) else data
    plain = isinstance(dtype, _DType) and isinstance(data, bytes | bytearray)
    if not (plain and all(isinstance(n, int) and n >= 0 for n in shape)):
        raise _RefusedError("an array that is not made of numbers")
    if len(data) != math.prod(shape) * dtype.value.itemsize:
        raise ValueError(f"{len(data)} bytes are no array of shape {shape}")
    return np.ndarray(shape, dtype.value, bytes(data), order="F" if order == "F" else "C")


def _names() -> dict[tuple[str, str], Any]:
    """What the names in a file stand for: made anew, for a pickle may set attributes of them."""

    def encode(text: str, encoding: str) -> bytes:
        """With this, protocol 2 writes bytes as text."""
        if encoding not in ("latin1", "latin-1"):
            raise _RefusedError(f"_codecs.encode to {encoding}")
        return text.encode("latin1")

    names: dict[tuple[str, str], Any] = {
        ("numpy", "ndarray"): "numpy.ndarray",  # only handed on
        ("numpy", "dtype"): lambda code, align=False, copy=False: _DType(code),
        ("_codecs", "encode"): encode,
        ("__builtin__", "bytes"): lambda: b"",
        ("builtins", "bytes"): lambda: b"",
        ("collections", "OrderedDict"): lambda items=(): dict(items),
    }
    array: dict[tuple[str, str], Any] = {
        # The content of the first follows.
        ("multiarray", "_reconstruct"): lambda subtype, shape, code: _Array(),
        ("multiarray", "scalar"): lambda dtype, data: _make_array(data, dtype, (), "C")[()],
        ("numeric", "_frombuffer"): lambda *given: _Array(_make_array(*given)),
    }
    for core in ("numpy.core", "numpy._core"):  # before and since numpy 2
        names |= {(f"{core}.{module}", name): made for (module, name), made in array.items()}
    return names
