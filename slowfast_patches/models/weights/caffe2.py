"""Safe reading of Caffe2 checkpoints, which are pickles of NumPy arrays.

A pickle can call any function that the unpickler's `find_class` returns. Even NumPy's functions are
not safe: a file can set the state of a `numpy.dtype` so that NumPy uses bytes of the file as
pointers to objects. In this module, `find_class` imports nothing. It accepts only a few names and
returns a class that records the arguments of a call. Arrays of plain numbers are then built from
the recorded arguments.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slowfast_patches.utils.errors import UserError, mistake_in

_NUMPY = re.compile(
    r"numpy (ndarray|dtype)"
    r"|numpy\._?core\.multiarray (_reconstruct|scalar)"
    r"|_codecs encode"  # protocol 2 encodes bytes with this call
)
"""Modules and names that a pickle of arrays from NumPy 1 or NumPy 2 may contain."""


def read_blobs(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays in the "blobs" of a Caffe2 checkpoint.

    The file may be from any Python, with a pickle protocol of at most 4.

    Returns:
        Maps each Caffe2 name to a read-only array. Other values, such as numbers, are left out.

    Raises:
        ValueError: The file is not a pickle with "blobs", or contains other objects than arrays of
            numbers, plain values and containers. The message names the object.
    """
    # Unpickling raises errors of all types.
    with mistake_in(f"{path} cannot be read as a Caffe2 checkpoint", Exception):
        with path.open("rb") as file:
            blobs = _Reader(file, encoding="latin1").load()["blobs"]
        return {
            name: _array(*value.state)
            for name, value in blobs.items()
            if isinstance(value, _Record) and value.state is not None
        }


def _refused(name: str) -> ValueError:
    return UserError(
        f"it contains {name}, but only arrays and plain containers in a pickle are safe to load"
    )


class _Record:
    """Record of a function call in a pickle, and of the state that the pickle sets on the result.

    The functions are `numpy.core.multiarray._reconstruct`, `numpy.dtype` and `_codecs.encode`.
    """

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
        return type("_Record", (_Record,), {})


def _array(version: int, shape: Any, dtype: _Record, fortran: bool, data: Any) -> NDArray[Any]:
    """Build a read-only array from the state that NumPy pickles.

    Only the code and the byte order of the dtype are used. A dtype with fields or sub-arrays, which
    can contain objects, has another code.
    """
    code, order = dtype.arguments[0], dtype.state[1]
    if not re.fullmatch("[biuf][1248]", code):
        raise _refused(f"numpy.dtype of {code}")
    if isinstance(data, _Record):  # of `encode(text, "latin1")`
        data = data.arguments[0]
    if isinstance(data, str):  # from Python 2
        data = data.encode("latin1")
    values = np.frombuffer(data, np.dtype(code).newbyteorder(order))
    return values.reshape(shape, order="F" if fortran else "C")
