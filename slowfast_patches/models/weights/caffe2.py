"""Caffe2 checkpoints are pickles, and a pickle is a program: its calls are noted, and none is made.

A pickle of numpy arrays names a few functions and calls them. Here each such call becomes a record,
and arrays are made of the records of those that make arrays; every other name is refused before it
is looked up, and nothing is imported.
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

_NUMPY = re.compile(
    r"numpy (ndarray|dtype)"
    r"|numpy\._?core\.multiarray (_reconstruct|scalar)|numpy\._?core\.numeric _frombuffer"
    r"|_codecs encode|(__builtin__|builtins) bytes"  # with these, protocol 2 writes bytes as text
)
"""Modules and names of a pickle of arrays, before and since numpy 2."""


def read_blobs(path: Path) -> dict[str, Any]:
    """The "blobs" of a Caffe2 checkpoint: arrays by Caffe2's names, and what else is among them.

    Files of Python 2 (byte strings read as latin-1) and of any numpy are read.

    Raises:
        ValueError: the file asks for something other than arrays and plain containers, which it
            names; or it is no pickle, or one without "blobs".
    """
    try:
        with path.open("rb") as file:
            blobs = _Reader(file, encoding="latin1").load()["blobs"]
        if not all(isinstance(name, str) for name in blobs):
            raise TypeError("names of blobs are texts")
        return {k: _array(v) if isinstance(v, _Record) else v for k, v in blobs.items()}
    except _RefusedError as refused:
        raise ValueError(
            f"{_printable(refused)} in {path} is refused: a Caffe2 checkpoint needs arrays and "
            "plain containers alone, and nothing else in a pickle is safe to load"
        ) from None
    except Exception as error:
        reason = f"{type(error).__name__} {_printable(error)}"
        raise ValueError(f"{path} cannot be read as a Caffe2 checkpoint: {reason}") from error


class _RefusedError(Exception):
    """What the file asks for."""


def _printable(error: Exception) -> str:
    """One line that does nothing to a terminal: names in a file are what its writer likes."""
    return str(error).encode("unicode_escape").decode()[:200]


class _Record:
    """A call that a file asks for, and the state that it gives to the result."""

    name = ""
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    """Reads numbers, texts, plain containers and records of numpy's calls; refuses the rest."""

    def find_class(self, module: str, name: str) -> Any:
        """What an exact pair of names stands for; no part of a dotted name is looked up."""
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if not _NUMPY.fullmatch(f"{module} {name}"):
            raise _RefusedError(f"{module}.{name}")
        return type("_Record", (_Record,), {"name": name})  # a new one: a pickle may set attributes


def _array(record: _Record) -> NDArray[Any]:
    """A read-only array of the bytes in a record of one of numpy's three ways to make one."""
    shape: Any = ()
    order = "C"
    if record.name == "_reconstruct":
        _, shape, dtype, fortran, data = record.state
        order = "F" if fortran else "C"
    elif record.name == "_frombuffer":
        data, dtype, shape, order = record.arguments
    elif record.name == "scalar":
        dtype, data = record.arguments
    else:
        raise _RefusedError(f"numpy.{record.name}")
    kind = _dtype(dtype)
    content = _bytes(data)
    if not all(isinstance(side, int) and side >= 0 for side in shape):
        raise _RefusedError(f"an array of shape {shape}")
    if len(content) != math.prod(shape) * kind.itemsize:
        raise ValueError(f"{len(content)} bytes are no array of shape {shape}")
    array = np.ndarray(shape, kind, content, order="F" if order == "F" else "C")
    return array[()] if record.name == "scalar" else array


def _dtype(record: Any) -> np.dtype[Any]:
    """A type of plain numbers; fields and sub-arrays, which may hold objects, are refused."""
    code = record.arguments[0] if isinstance(record, _Record) and record.name == "dtype" else None
    if not isinstance(code, str) or not re.fullmatch("[<>|=]?[biuf][1248]", code):
        raise _RefusedError(f"numpy.dtype of {code if isinstance(code, str) else type(code)}")
    if record.state is None:
        return np.dtype(code)
    _, order, *structure = record.state
    if order not in ("<", ">", "|", "=") or any(part is not None for part in structure[:3]):
        raise _RefusedError("a structured numpy.dtype")
    return np.dtype(code).newbyteorder(order)


def _bytes(data: Any) -> bytes:
    """The bytes of an array; as text if Python 2 or an early protocol wrote them."""
    if isinstance(data, _Record) and data.name == "bytes" and not data.arguments:
        return b""
    if isinstance(data, _Record) and data.name == "encode" and data.arguments[1:] == ("latin1",):
        data = data.arguments[0]
    if isinstance(data, str):
        return data.encode("latin1")
    if not isinstance(data, bytes | bytearray):
        raise _RefusedError("an array that is not made of numbers")
    return bytes(data)
