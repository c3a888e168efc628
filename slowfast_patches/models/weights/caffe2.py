"""Safe reading of Caffe2 checkpoints, which are pickles of NumPy arrays.

A pickle can call any function that the unpickler's `find_class` returns. Even NumPy's functions are
not safe: a file can set the state of a `numpy.dtype` so that NumPy uses bytes of the file as
pointers to objects. In this module, `find_class` imports nothing. It accepts only a few names and
returns classes that record the arguments of a call. The recorded arguments are checked before
arrays are built from them.
"""

from __future__ import annotations

import math
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slowfast_patches.utils.errors import mistake_in

_NUMPY = re.compile(
    r"numpy (ndarray|dtype)"
    r"|numpy\._?core\.multiarray (_reconstruct|scalar)"
    r"|_codecs encode|(__builtin__|builtins) bytes"  # protocol 2 encodes bytes with these calls
)
"""Modules and names that a pickle of arrays from NumPy 1 or NumPy 2 may contain."""


def read_blobs(path: Path) -> dict[str, Any]:
    """Read the "blobs" of a Caffe2 checkpoint, from any Python and pickle protocols up to 4.

    Returns:
        Maps each Caffe2 name to a NumPy array, or to another plain value such as a number or a
        string.

    Raises:
        ValueError: The file is not a pickle with "blobs", or contains other objects than arrays,
            plain values and containers. The message names the object.
    """
    with mistake_in(f"{path} cannot be read as a Caffe2 checkpoint"):
        with path.open("rb") as file:
            blobs = _Reader(file, encoding="latin1").load()["blobs"]
        if not all(isinstance(name, str) for name in blobs):
            raise TypeError("names of blobs must be strings")
        return {k: _array(v) if isinstance(v, _Record) else v for k, v in blobs.items()}


def _refused(name: str) -> ValueError:
    return ValueError(
        f"it contains {name}, but only arrays and plain containers in a pickle are safe to load"
    )


class _Record:
    """Record of a function call in a pickle.

    Attributes:
        name: Name of the function.
        arguments: Arguments of the call.
        state: State that the pickle sets on the result of the call.
    """

    name = ""
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    """Unpickler that reads plain values and containers, and replaces NumPy's calls by `_Record`."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class for a module and a name, without importing or looking up either."""
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if not _NUMPY.fullmatch(f"{module} {name}"):
            raise _refused(f"{module}.{name}")
        # Make a new class each time, because a pickle can set attributes of the class.
        return type("_Record", (_Record,), {"name": name})


def _array(record: _Record) -> NDArray[Any]:
    """Build a read-only array from a record of `_reconstruct` or `scalar`."""
    shape: Any = ()
    fortran = False
    if record.name == "_reconstruct":
        _, shape, dtype, fortran, data = record.state
    elif record.name == "scalar":
        dtype, data = record.arguments
    else:
        raise _refused(f"numpy.{record.name}")
    kind = _dtype(dtype)
    content = _bytes(data)
    if not all(isinstance(side, int) and side >= 0 for side in shape):
        raise _refused(f"an array of shape {shape}")
    if len(content) != math.prod(shape) * kind.itemsize:
        raise ValueError(f"{len(content)} bytes do not make an array of shape {shape}")
    array = np.ndarray(shape, kind, content, order="F" if fortran else "C")
    return array[()] if record.name == "scalar" else array


def _dtype(record: Any) -> np.dtype[Any]:
    """Build a dtype of plain numbers.

    Dtypes with fields or sub-arrays are refused, because such a dtype can contain objects.

    Raises:
        ValueError: The dtype is not a plain number type.
    """
    code = record.arguments[0] if isinstance(record, _Record) and record.name == "dtype" else None
    if not isinstance(code, str) or not re.fullmatch("[<>|=]?[biuf][1248]", code):
        raise _refused(f"numpy.dtype of {code if isinstance(code, str) else type(code)}")
    if record.state is None:
        return np.dtype(code)
    _, order, *structure = record.state
    if order not in ("<", ">", "|", "=") or any(part is not None for part in structure[:3]):
        raise _refused("a structured numpy.dtype")
    return np.dtype(code).newbyteorder(order)


def _bytes(data: Any) -> bytes:
    """Return the bytes of an array. Python 2 and early pickle protocols store them as a string."""
    if isinstance(data, _Record) and data.name == "bytes" and not data.arguments:
        return b""
    if isinstance(data, _Record) and data.name == "encode" and data.arguments[1:] == ("latin1",):
        data = data.arguments[0]
    if isinstance(data, str):
        return data.encode("latin1")
    if not isinstance(data, bytes | bytearray):
        raise _refused("an array that is not made of numbers")
    return bytes(data)
