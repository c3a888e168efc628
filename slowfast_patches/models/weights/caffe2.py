"""Caffe2 checkpoints are pickles, and a pickle is a program: they are read without running it.

`_Reader` is Python's unpickler with most of its operations taken out. What is left puts numbers,
texts and plain containers together. A pickle of numpy arrays also names a few functions and calls
them: these names stand for functions of this module, which check what they are given; every other
name is refused before it is looked up, and nothing is imported.
"""

from __future__ import annotations

import math
import pickle
import pickletools
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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


def _shown(value: object) -> str:
    """A text, or the type of anything else, whose own text may have no end."""
    return repr(value[:40]) if isinstance(value, str) else f"a {type(value).__name__}"


@dataclass(frozen=True, slots=True)
class _Function:
    """What a name in a pickle stands for; the only thing that a pickle can call."""

    call: Callable[..., Any]


def _ndarray(*_: object) -> None:
    raise _RefusedError("a call of numpy.ndarray")


_NDARRAY = _Function(_ndarray)
"""Stands for `numpy.ndarray`, which a pickle of arrays only hands to `_reconstruct`."""


class _DType:
    """A type of numbers, whose byte order arrives after it was made."""

    def __init__(self, code: object) -> None:
        if not isinstance(code, str) or not re.fullmatch("[<>|=]?[biuf][1248]", code):
            raise _RefusedError(f"numpy.dtype of {_shown(code)}")
        self.value: np.dtype[Any] = np.dtype(code)

    def build(self, state: Any) -> None:
        """Set the byte order; fields and sub-arrays, which may hold objects, are refused."""
        _, order, *structure = state
        if order not in ("<", ">", "|", "=") or any(part is not None for part in structure[:3]):
            raise _RefusedError("a structured numpy.dtype")
        self.value = self.value.newbyteorder(order)


class _Array:
    """An array, whose content arrives after it was made."""

    def __init__(self, value: NDArray[Any] | None = None) -> None:
        self.value = value

    def build(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.value = _make_array(data, dtype, shape, "F" if fortran else "C")


def _make_array(data: object, dtype: object, shape: object, order: object) -> NDArray[Any]:
    """A read-only view of `data`, the bytes of an array; as text if Python 2 wrote them."""
    if not isinstance(dtype, _DType):
        raise _RefusedError(f"an array of {type(dtype).__name__}")
    if isinstance(data, str):
        data = data.encode("latin1")
    if not isinstance(data, bytes):
        raise _RefusedError(f"an array made of a {type(data).__name__}")
    if not isinstance(shape, tuple) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise _RefusedError("an array whose shape is no tuple of counts")
    if len(data) != math.prod(shape) * dtype.value.itemsize:
        raise ValueError(f"{len(data)} bytes are no array of shape {shape}")
    return np.ndarray(shape, dtype.value, data, order="F" if order == "F" else "C")


def _reconstruct(subtype: object, shape: object, code: object) -> _Array:
    """`numpy.core.multiarray._reconstruct`: an empty array, its content follows."""
    if subtype is not _NDARRAY:
        raise _RefusedError("an array that is no numpy.ndarray")
    return _Array()


def _frombuffer(data: object, dtype: object, shape: object, order: object) -> _Array:
    """`numpy.core.numeric._frombuffer`: an array of protocol 5."""
    return _Array(_make_array(data, dtype, shape, order))


def _scalar(dtype: object, data: object) -> Any:
    return _make_array(data, dtype, (), "C")[()]


def _dtype(code: object, align: object = False, copy: object = False) -> _DType:
    return _DType(code)


def _encode(text: object, encoding: object) -> bytes:
    """`_codecs.encode`, with which protocol 2 writes bytes as text."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise _RefusedError(f"_codecs.encode to {_shown(encoding)}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


def _ordered_dict(items: Iterable[Any] = ()) -> dict[Any, Any]:
    content = dict[Any, Any]()
    for key, value in items:
        _set_item(content, key, value)
    return content


def _set_item(target: object, key: object, value: object) -> None:
    """Keys are texts and numbers: the hash of tuples in tuples has no bottom."""
    if not isinstance(target, dict) or not isinstance(key, str | bytes | int | float):
        raise _RefusedError(f"{_shown(key)} as a key of {_shown(target)}")
    target[key] = value


_NAMES: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Function(_dtype),
    ("_codecs", "encode"): _Function(_encode),
    ("__builtin__", "bytes"): _Function(_no_bytes),
    ("builtins", "bytes"): _Function(_no_bytes),
    ("collections", "OrderedDict"): _Function(_ordered_dict),
}
for _core in ("numpy.core", "numpy._core"):  # before and since numpy 2
    _NAMES[f"{_core}.multiarray", "_reconstruct"] = _Function(_reconstruct)
    _NAMES[f"{_core}.multiarray", "scalar"] = _Function(_scalar)
    _NAMES[f"{_core}.numeric", "_frombuffer"] = _Function(_frombuffer)

_OPERATIONS = (
    *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE"),
    *("PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"),
    *("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2"),
    *("LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("EMPTY_LIST", "LIST", "APPEND", "APPENDS"),
    *("EMPTY_DICT",),
    *("GLOBAL", "STACK_GLOBAL"),
)
"""What `_Reader` does as Python does. Missing are, beside those that it does in its own way, the
operations that make objects of classes, take them from the registry of `copyreg`, whose cache
passes `find_class` by, or ask for objects that are stored elsewhere."""


class _Dispatch(dict[int, Callable[[Any], None]]):
    """Operation code to method; an operation that is not there is refused by its name."""

    def __missing__(self, code: int) -> Callable[[Any], None]:
        names = {ord(operation.code): operation.name for operation in pickletools.opcodes}
        if code not in names:
            raise pickle.UnpicklingError("it is no pickle")
        raise _RefusedError(f"the pickle operation {names[code]}")


def _as_python_does(operation: str) -> tuple[int, Callable[[Any], None]]:
    code = getattr(pickle, operation)[0]
    return code, pickle._Unpickler.dispatch[code]


# The unpickler in pure Python, which joblib builds on too: the one in C does not let operations be
# taken out. A checkpoint has some ten thousand of them, so that speed does not matter.
class _Reader(pickle._Unpickler):
    """Reads numbers, texts, plain containers and numpy arrays; refuses the rest by name."""

    read: Callable[[int], bytes]
    readline: Callable[[], bytes]
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    dispatch = _Dispatch(map(_as_python_does, _OPERATIONS))

    def find_class(self, module: str, name: str) -> Any:
        """What an exact pair of names stands for; no part of a dotted name is looked up."""
        if (module, name) not in _NAMES:
            raise _RefusedError(f"{module}.{name}")
        return _NAMES[module, name]

    def _inst(self) -> None:
        """Protocol 0's object of a class, which is named in the operation."""
        module, name = (self.readline()[:-1].decode("utf-8") for _ in range(2))
        raise _RefusedError(f"{module}.{name}")

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        function = self.stack[-1]
        if not isinstance(function, _Function):
            raise _RefusedError("a call of what is no function")
        self.stack[-1] = function.call(*arguments)

    def _build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if not isinstance(target, _Array | _DType):
            raise _RefusedError("setting the state of what is no array")
        target.build(state)

    def _dict(self) -> None:
        items = self.pop_mark()
        self.append(_ordered_dict(zip(items[::2], items[1::2], strict=True)))

    def _setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _set_item(self.stack[-1], key, value)

    def _setitems(self) -> None:
        items = self.pop_mark()
        for key, value in zip(items[::2], items[1::2], strict=True):
            _set_item(self.stack[-1], key, value)

    def _bytearray8(self) -> None:
        """Python makes room for as many bytes as are promised; here, for those that are there."""
        (length,) = struct.unpack("<Q", self.read(8))
        self.append(self.read(length))

    dispatch[pickle.INST[0]] = _inst
    dispatch[pickle.DICT[0]] = _dict
    dispatch[pickle.SETITEM[0]] = _setitem
    dispatch[pickle.SETITEMS[0]] = _setitems
    dispatch[pickle.REDUCE[0]] = _reduce
    dispatch[pickle.BUILD[0]] = _build
    dispatch[pickle.BYTEARRAY8[0]] = _bytearray8
