"""Caffe2 files of Python 2 and any NumPy are read, and code in them is never run."""

import pickle
import struct
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from slowfast_patches.models.weights.caffe2 import read_blobs

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


@pytest.mark.parametrize("protocol", [2, 4])
def test_files_of_this_numpy(protocol: int, tmp_path: Path):
    arrays = {
        "kernel": KERNEL,
        "columns_first": np.asfortranarray(KERNEL[:, :, 0]),
        "big_endian": SCALE.astype(">f8"),
    }
    content = pickle.dumps({"blobs": arrays | {"lr": np.float32(0.1)}}, protocol=protocol)
    found = read_blobs(written(tmp_path, content))
    assert list(found) == list(arrays)
    for name, value in arrays.items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype == value.dtype


def test_an_ordered_dict_is_a_plain_container(tmp_path: Path):
    blobs = OrderedDict(kernel=KERNEL, step=3)
    found = read_blobs(written(tmp_path, pickle.dumps({"blobs": blobs}, protocol=2)))
    assert list(found) == ["kernel"]
    np.testing.assert_array_equal(found["kernel"], KERNEL)


# Files that are refused. Each of them would create the file "executed" if its code were run.

DTYPE = b"cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R"
OBJECTS_WITHOUT_FLAGS = (
    b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)
EMPTY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
SHELL = b"S'touch executed'\n"


@pytest.mark.parametrize(
    "program",
    [
        # A function, a dotted name, an instance of a class, a persistent id, an extension code.
        b"cos\nsystem\n(" + SHELL + b"tR.",
        b"\x80\x04\x8c\x05numpy\x8c\x12f2py.os.path.join.\x93.",
        b"(" + SHELL + b"ios\nsystem\n.",
        b"S'os.system'\nQ.",
        b"\x80\x02\x82\xf0.",
        # Wrong arguments and states of admitted names.
        EMPTY + b"(K\x01K\x01\x85" + DTYPE + b"\x89]tb.",
        EMPTY + b"(K\x01K\x01\x85U\x01O\x89U\x04aaaatb.",
        # NumPy itself takes these bytes for a pointer to an object, and crashes when it is used.
        EMPTY + b"(K\x01K\x01\x85" + OBJECTS_WITHOUT_FLAGS + b"\x89U\x08AAAAAAAAtb.",
    ],
)
def test_a_file_that_is_not_only_arrays_is_refused(
    program: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    inside = b"}U\x05blobs}U\x01a" + program.removeprefix(b"\x80\x04")[:-1] + b"ss."
    for content in (program, inside):
        with pytest.raises(ValueError, match="cannot be read as a Caffe2 checkpoint: "):
            read_blobs(written(tmp_path, content))
    assert not (tmp_path / "executed").exists()


def test_a_refused_type_of_numbers_is_named(tmp_path: Path):
    content = pickle.dumps({"blobs": {"a": np.array([None])}}, protocol=2)
    with pytest.raises(ValueError, match=r"it contains numpy\.dtype of O8, but only arrays"):
        read_blobs(written(tmp_path, content))


def test_what_was_set_in_one_file_is_not_there_in_the_next(tmp_path: Path):
    defaults = b"cnumpy\ndtype\n(N}U\x0c__defaults__)stb."
    with pytest.raises(ValueError):
        read_blobs(written(tmp_path, defaults))
    content = pickle.dumps({"blobs": {"a": SCALE}})
    np.testing.assert_array_equal(read_blobs(written(tmp_path, content))["a"], SCALE)
