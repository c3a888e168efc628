"""Caffe2 files of Python 2 and any NumPy are read, and code in them is never run."""

import collections
import os
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from slowfast_patches.models.weights.caffe2 import read_blobs

PROTOCOLS = pytest.mark.parametrize("protocol", [0, 2, 4])
KERNEL = np.arange(24, dtype=np.float32).reshape(2, 3, 1, 2, 2) / 7
SCALE = np.array([-1.5, 0.0, 255.0], dtype=np.float32)


def written(folder: Path, content: bytes) -> Path:
    path = folder / "model.pkl"
    path.write_bytes(content)
    return path


# Files that are read.


def python2_binary(arrays: dict[str, np.ndarray]) -> bytes:
    """Pickle {"blobs": arrays} by protocol 2 of Python 2, where bytes are strings."""

    def array(a: np.ndarray) -> bytes:
        dims = b"".join(b"J" + struct.pack("<i", n) for n in a.shape)
        data = a.tobytes()
        return (
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
            b"(K\x01(" + dims + b"tcnumpy\ndtype\nU\x02f4K\x00K\x01\x87R"
            b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            b"\x89T" + struct.pack("<i", len(data)) + data + b"tb"
        )

    items = b"".join(b"U" + bytes([len(k)]) + k.encode() + array(a) for k, a in arrays.items())
    return b"\x80\x02}U\x05blobs}(" + items + b"us."


def test_files_of_python_2(tmp_path: Path):
    content = python2_binary({"conv1_w": KERNEL, "res_conv1_bn_s": SCALE})
    blobs = read_blobs(written(tmp_path, content))
    assert list(blobs) == ["conv1_w", "res_conv1_bn_s"]
    np.testing.assert_array_equal(blobs["conv1_w"], KERNEL)
    np.testing.assert_array_equal(blobs["res_conv1_bn_s"], SCALE)


@PROTOCOLS
def test_files_of_this_numpy(protocol: int, tmp_path: Path):
    blobs = {
        "kernel": KERNEL,
        "columns_first": np.asfortranarray(KERNEL[:, :, 0]),
        "big_endian": SCALE.astype(">f8"),
        "alone": np.array(3.5),
        "none": np.zeros((0, 4), dtype=np.float32),
        "scalar": np.float32(0.25),
        "lr": 0.1,
        "text": "a\xe9",
    }
    content = pickle.dumps({"blobs": collections.OrderedDict(blobs)}, protocol=protocol)
    found = read_blobs(written(tmp_path, content))
    assert list(found) == list(blobs)
    for name, value in blobs.items():
        np.testing.assert_array_equal(found[name], value)
        assert np.asarray(found[name]).dtype == np.asarray(value).dtype


# Files that are refused. Each of them would create the file "executed" if its code were run.

TOUCH = "touch executed"


@pytest.fixture(autouse=True)
def nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "executed").exists()


def assert_refused(content: bytes, name: str) -> None:
    path = written(Path.cwd(), content)
    with pytest.raises(ValueError) as caught:
        read_blobs(path)
    assert f"{path} cannot be read as a Caffe2 checkpoint: it contains {name}, " in str(
        caught.value
    )


class Calls:
    """Object whose pickle is a call of a function."""

    def __init__(self, function: Callable, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple:
        return self.call


@PROTOCOLS
@pytest.mark.parametrize(
    ("evil", "name"),
    [
        (Calls(os.system, TOUCH), "posix.system"),
        (Calls(getattr, np.ndarray, "tofile"), "builtins.getattr"),
    ],
)
def test_a_function_or_a_class_is_refused_by_name(evil: object, name: str, protocol: int):
    if protocol < 3:  # Python 2's names
        name = name.replace("builtins", "__builtin__")
    for content in (evil, {"blobs": {"a": SCALE, "b": evil}}, {"blobs": {}, "c": [({1: evil},)]}):
        assert_refused(pickle.dumps(content, protocol=protocol), name)


def test_an_array_of_objects_is_refused():
    array = np.array(["text"], dtype=object)
    assert_refused(pickle.dumps({"blobs": {"a": array}}, 2), "numpy.dtype of O8")


DTYPE = b"cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R"
OBJECTS_WITHOUT_FLAGS = (
    b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)
EMPTY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
SHELL = b"S'" + TOUCH.encode() + b"'\n"


@pytest.mark.parametrize(
    "program",
    [
        # Dotted names, and attributes of an admitted name.
        b"\x80\x04\x8c\x05numpy\x8c\x12f2py.os.path.join.\x93.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0etouch executed\x85R.",
        # Instances of classes, persistent ids and extension codes.
        b"(" + SHELL + b"ios\nsystem\n.",
        b"cnumpy\nndarray\nI2\n\x85\x81.",
        b"S'os.system'\nQ.",
        b"\x80\x02\x82\xf0.",
        # Wrong arguments and states of admitted names.
        b"cnumpy\ndtype\nN}U\x08__code__U\x01xs\x86b.",
        DTYPE + b"(K\x03U\x01|N(U\x01xtN}I4\nI1\nI0\ntb.",
        EMPTY + b"(K\x01K\x01\x85" + DTYPE + b"\x89]tb.",
        EMPTY + b"(K\x01K\x01\x85U\x01O\x89U\x04aaaatb.",
        EMPTY + b"(K\x01(J\xff\xff\xff\xffJ\xff\xff\xff\xfft" + DTYPE + b"\x89U\x04aaaatb.",
        b"c_codecs\nencode\nS'x'\nS'rot13'\n\x86R.",
        # NumPy itself takes these bytes for a pointer to an object, and crashes when it is used.
        EMPTY + b"(K\x01K\x01\x85" + OBJECTS_WITHOUT_FLAGS + b"\x89U\x08AAAAAAAAtb.",
    ],
)
def test_ways_around_are_refused(program: bytes):
    inside = b"}U\x05blobs}U\x01a" + program.removeprefix(b"\x80\x04")[:-1] + b"ss."
    for content in (program, inside):
        with pytest.raises(ValueError, match="cannot be read"):
            read_blobs(written(Path.cwd(), content))


def test_what_was_set_in_one_file_is_not_there_in_the_next():
    defaults = b"cnumpy\ndtype\n(N}U\x0c__defaults__)stb."
    with pytest.raises(ValueError):
        read_blobs(written(Path.cwd(), defaults))
    content = pickle.dumps({"blobs": {"a": SCALE}})
    np.testing.assert_array_equal(read_blobs(written(Path.cwd(), content))["a"], SCALE)
