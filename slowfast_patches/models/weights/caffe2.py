"""Safe reading of Caffe2 checkpoints, which are pickles of NumPy arrays.

A pickle can call any function that the unpickler's `find_class` returns. NumPy's own functions are
not safe: a file can set the state of a `numpy.dtype` so that NumPy uses bytes of the file as
pointers to objects. Here `find_class` returns classes that only record a call. The arrays are built
from these records after they are checked. All names but a few are refused. Nothing is imported.
"""

from __future__ import annotations

import math
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NUMPY = re.compile(
    r"numpy (ndarray|dtype)"
    r"|numpy\._?core\.multiarray (_reconstruct|scalar)|numpy\._?core\.numeric _frombuffer"
    r"|_codecs encode|(__builtin__|builtins) bytes"  # protocol 2 writes bytes as text by these
)
"""Modules and names in a pickle of arrays, of NumPy 1 and NumPy 2."""


def read_blobs(path: Path) -> dict[str, Any]:
    """Read the "blobs" of a Caffe2 checkpoint that Python 2 or 3 wrote with any version of NumPy.

    Returns:
        Arrays by Caffe2's names, and other blobs such as numbers and texts.

    Raises:
        ValueError: The file is not a pickle with "blobs", or it has more than arrays and plain
            containers. The message names what it has.
    """
    try:
        with path.open("rb") as file:
            blobs = _Reader(file, encoding="latin1").load()["blobs"]
        if not all(isinstance(name, str) for name in blobs):
            raise TypeError("names of blobs must be texts")
        return {k: _array(v) if isinstance(v, _Record) else v for k, v in blobs.items()}
    except _RefusedError as refused:
        raise ValueError(
            f"{_printable(refused)} in {path} is refused: a Caffe2 checkpoint only needs arrays "
            "and plain containers, and nothing else in a pickle is safe to load"
        ) from None
    except Exception as error:
        reason = f"{type(error).__name__} {_printable(error)}"
        raise ValueError(f"{path} cannot be read as a Caffe2 checkpoint: {reason}") from error


class _RefusedError(Exception):
    """Error raised when a file has something that is not safe to load, which it names."""


def _printable(error: Exception) -> str:
    """Return a message in one line without control characters, since it quotes the file."""
    return str(error).encode("unicode_escape").decode()[:200]


class _Record:
    """Record of a call in a pickle.

    name: Name of the function.
    arguments: Arguments of the call.
    state: State that the pickle gives to the result.
    """

    name = ""
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    """Unpickler of numbers, texts, plain containers and records of NumPy's calls."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class for a pair of names, without looking up any part of them."""
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if not _NUMPY.fullmatch(f"{module} {name}"):
            raise _RefusedError(f"{module}.{name}")
        # Make a new class each time, because a pickle can set attributes of the class.
        return type("_Record", (_Record,), {"name": name})


def _array(record: _Record) -> NDArray[Any]:
    """Build a read-only array from a record of `_reconstruct`, `_frombuffer` or `scalar`."""
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
        raise ValueError(f"{len(content)} bytes do not make an array of shape {shape}")
    array = np.ndarray(shape, kind, content, order="F" if order == "F" else "C")
    return array[()] if record.name == "scalar" else array


def _dtype(record: Any) -> np.dtype[Any]:
    """Build a dtype of plain numbers.

    Dtypes with fields or sub-arrays are refused, because these can hold objects.
    """
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
    """Return the bytes of an array, which Python 2 and early protocols wrote as text."""
    if isinstance(data, _Record) and data.name == "bytes" and not data.arguments:
        return b""
    if isinstance(data, _Record) and data.name == "encode" and data.arguments[1:] == ("latin1",):
        data = data.arguments[0]
    if isinstance(data, str):
        return data.encode("latin1")
    if not isinstance(data, bytes | bytearray):
        raise _RefusedError("an array that is not made of numbers")
    return bytes(data)
