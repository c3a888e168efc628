"""Download, format check and reading of weight files."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import re
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit
from urllib.request import urlopen

import torch
from safetensors.torch import load_file
from torch import Tensor

from slowfast_patches.models.weights.caffe2 import read_blobs
from slowfast_patches.utils.errors import UserError, mistake_in
from slowfast_patches.utils.files import atomic_write, check_archive, make_folder

logger = logging.getLogger(__name__)

WEIGHTS_FILE = "model.safetensors"
"""Name of the weights in a folder that `multigrid-predict --hub` wrote."""
_SHIPPED = Path(__file__).parents[2] / "weights"
"""Folder of the weights that ship with the package, in a folder each."""
SHIPPED = tuple(sorted(folder.name for folder in _SHIPPED.glob("*-*")))
"""Names of the weights that ship with the package."""
_STATES = ("model_state", "state_dict", "model")
"""Keys under which a PyTorch checkpoint may contain a state dict. A file without any of these keys
is itself a state dict."""

_PATIENCE = 60.0
"""Seconds to wait for an answer of a server."""
_LEAST_SPEED = 1000
"""Minimum average speed of a download, in bytes per second."""
_BLOCK = 1 << 20

_LEGACY_MARK = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""Magic number in files from torch before 1.6. It follows two bytes with the pickle protocol."""

_OPTIMIZER_BLOB = re.compile(r".*_momentum|lr|model_iter")


def local_file(path: str | Path) -> Path:
    """Return the local path of a file. If `path` is an https address, download the file first.

    `path` may also be the name of weights that ship with the package, such as words-slowfast, or a
    folder that `multigrid-predict --hub` wrote. In these cases, return the weight file.

    Downloads are stored in the folder that the environment variable FVCORE_CACHE names, by default
    ~/.torch. A file that is already in the folder is not downloaded again.

    Raises:
        UserError: The file cannot be downloaded, or is no weight file.
    """
    address = str(path)
    if "://" in address and not address.startswith("https://"):
        raise UserError(
            f"{address} cannot be read. Give an https address, or download the file and give its "
            "path."
        )
    if not address.startswith("https://"):
        found = Path(path)
        if address in SHIPPED and not found.exists():
            found = _SHIPPED / address
        return found / WEIGHTS_FILE if (found / WEIGHTS_FILE).is_file() else found
    # Use a hash and the last part of the address only, so that the path stays inside the folder.
    digest = hashlib.sha256(address.encode()).hexdigest()[:16]
    name = urlsplit(address).path.rpartition("/")[2][-100:]
    file = Path(os.environ.get("FVCORE_CACHE", "~/.torch")).expanduser() / f"{digest}-{name}"
    if not file.is_file():
        make_folder(file.parent)
        _download(address, file)
    return file


def _download(address: str, file: Path) -> None:
    """Download a weight file. Nothing is left behind if the download is incomplete.

    Raises:
        UserError: The server does not answer, sends too slowly or too little, or sends no weights.
    """
    logger.info("Downloading %s to %s.", address, file)
    wrong = (OSError, ValueError, HTTPException)
    told = f"{address} cannot be downloaded"
    with atomic_write(file, shared=True) as copy, mistake_in(told, *wrong):
        with urlopen(address, timeout=_PATIENCE) as answer:
            expected = answer.headers.get("Content-Length")
            size = _copy(answer, copy)
        if expected is not None and size != int(expected):
            raise UserError(f"the connection broke after {size} of {expected} bytes")
        copy.flush()
        format_of(Path(copy.name))


def _copy(answer: Any, copy: BinaryIO) -> int:
    """Copy what a server sends, and return the number of bytes."""
    start = time.monotonic()
    size = 0
    while block := answer.read1(_BLOCK):
        copy.write(block)
        size += len(block)
        seconds = time.monotonic() - start
        if seconds > _PATIENCE and size < _LEAST_SPEED * seconds:
            raise UserError(f"the server sent only {size} bytes in {seconds:.0f} s")
    return size


def format_of(path: Path) -> str:
    """Return the format of a weight file: "safetensors", "pytorch" or "caffe2".

    Raises:
        ValueError: The file does not exist or has another format.
    """
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    with mistake_in(f"{path} cannot be read"), path.open("rb") as file:
        head = file.read(64)
    if head[8:9] == b"{":  # after the size of the header, which is JSON
        return "safetensors"
    if head.startswith(b"PK\x03\x04") or head[2:].startswith(_LEGACY_MARK):
        return "pytorch"
    if head.startswith(b"\x80"):
        return "caffe2"  # a plain pickle
    raise UserError(f"{path} is neither a file of PyTorch, nor of safetensors, nor of Caffe2")


def check_no_program(path: Path) -> None:
    """Check that a file is not a program of torch.export, which has no recipe.

    Raises:
        ValueError: The file is such a program.
    """
    if not (path.is_file() and zipfile.is_zipfile(path)):
        return
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        if any(name.endswith("/archive_format") for name in archive.namelist()):
            raise UserError(
                f"{path} is a program that --export has written. Give the checkpoint from which it "
                "was written, or run the program with torch.export.load"
            )


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a weight file, without running any code from the file.

    Returns:
        Tensors by their names in the file.

    Raises:
        ValueError: The file cannot be read or has no weights.
    """
    form = format_of(path)
    if form == "caffe2":
        return {
            name: torch.from_numpy(blob.astype(blob.dtype.newbyteorder("=")))
            for name, blob in read_blobs(path).items()
            if not _OPTIMIZER_BLOB.fullmatch(name)
        }
    if form == "safetensors":
        with mistake_in(f"{path} cannot be read as safetensors", Exception):
            tensors = load_file(path)
        _check_digest(path, tensors)
        return tensors
    content = _load_torch(path)
    content = content if isinstance(content, dict) else {}
    state = next((content[key] for key in _STATES if key in content), content)
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    if not tensors:
        raise UserError(
            f"{path} has no weights, neither at the top level nor under {', '.join(_STATES)}"
        )
    return tensors


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the hash of the weights of a model, by their names."""
    whole = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        whole.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        whole.update(
            value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return whole.hexdigest()[:16]


def _check_digest(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Check weights against the hash in the config.json beside them, if there is one.

    Raises:
        UserError: The hashes differ.
    """
    config = None
    with suppress(OSError, ValueError):
        config = json.loads(path.with_name("config.json").read_text(encoding="utf-8"))
    if not isinstance(config, dict) or not {"recipe", "weights"} <= config.keys():
        return  # not a folder of `multigrid-predict --hub`
    if config["weights"] != digest_of(tensors):
        raise UserError(
            f"{path} has other weights than config.json beside it says, so it is damaged or was "
            'replaced. Copy it again. If you have replaced it, delete the entry "weights" of '
            "config.json."
        )


def _load_torch(path: Path) -> Any:
    with mistake_in(f"{path} cannot be read"):
        check_archive(path)
    with mistake_in(f"{path} cannot be read as a PyTorch checkpoint", Exception):
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            refused = re.search(r"GLOBAL ([\w.]+) was not", str(error))
            raise UserError(
                f"the file has more than weights ({refused[1] if refused else error}), and only "
                "tensors and plain containers are safe to load. Save the state dict alone"
            ) from error
