"""Reading of weight files: their kind, and their tensors under the names in the file."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from slowfast_patches.models.weights.caffe2 import read_blobs
from slowfast_patches.utils.files import atomic_write, check_archive

logger = logging.getLogger(__name__)

_SILENT_SECONDS = 30.0
_MOST_SECONDS = 4 * 3600.0
_MOST_BYTES = 1 << 34
"""Bounds on fetching a file: without an answer, and in all."""
_STATES = ("model_state", "state_dict", "model")
"""Keys under which a PyTorch checkpoint may hold its state dict. Otherwise it is the state dict."""

_LEGACY_MARK = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""Magic number of files from torch before 1.6, after the two bytes of the pickle protocol."""

_OPTIMIZER_BLOB = re.compile(r".*_momentum|lr|model_iter")


def local_file(path: str | Path) -> Path:
    """Return the path of a file, downloading it first if it is given by an https address.

    Downloads are kept in the folder FVCORE_CACHE, which is ~/.torch by default.

    Raises:
        ValueError: The file cannot be downloaded.
    """
    address = str(path)
    if address.startswith("http://"):
        raise ValueError(f"{address} can be changed by others on its way; give an https address")
    if not address.startswith("https://"):
        return Path(path)
    # No part of the address may lead out of the folder.
    digest = hashlib.sha256(address.encode()).hexdigest()[:16]
    name = urlsplit(address).path.rpartition("/")[2][-100:]
    file = Path(os.environ.get("FVCORE_CACHE", "~/.torch")).expanduser() / f"{digest}-{name}"
    if not file.is_file():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            _fetch(address, file)
        except (OSError, HTTPException) as error:
            raise ValueError(f"{address} cannot be fetched: {error}") from error
    return file


def _fetch(address: str, file: Path) -> None:
    """Fetch a file with a bar of progress.

    Raises:
        OSError, HTTPException: the server does not answer for a while, or with a page; the file has
            too many bytes, or takes too long.
    """
    logger.info("fetching %s to %s", address, file)
    end = time.monotonic() + _MOST_SECONDS
    done = 0
    with (
        urlopen(address, timeout=_SILENT_SECONDS) as answer,
        atomic_write(file, shared=True) as out,
    ):
        size = int(answer.headers.get("Content-Length") or 0)
        with tqdm(total=size or None, unit="B", unit_scale=True, disable=None) as bar:
            while block := answer.read1(1 << 20):
                if not done and block.lstrip().startswith(b"<"):
                    raise OSError("the answer is a web page, no file of weights")
                out.write(block)
                done += len(block)
                bar.update(len(block))
                if done > _MOST_BYTES or time.monotonic() > end:
                    raise OSError(f"it is not whole after {done} bytes; fetch it by hand")
        if size and done != size:
            raise OSError(f"it ends after {done} of {size} bytes")


def check_kind(path: str | Path, kind: str) -> None:
    """Check by its first bytes that a file can be a checkpoint of a kind.

    Args:
        path: The file.
        kind: "pytorch" or "caffe2".

    Raises:
        ValueError: The file does not exist or is of another kind.
    """
    if not Path(path).is_file():
        raise ValueError(f"{path}: there is no such file")
    with Path(path).open("rb") as file:
        head = file.read(64)
    from_torch = head.startswith(b"PK\x03\x04") or head[2:].startswith(_LEGACY_MARK)
    if kind == "caffe2" and from_torch:
        raise ValueError(f"{path} was written by PyTorch; set CHECKPOINT_TYPE pytorch")
    if kind == "pytorch" and not from_torch:
        raise ValueError(
            f"{path} is not a PyTorch checkpoint, it starts with {head[:16]!r}; if it is a pickle "
            "of Caffe2, set CHECKPOINT_TYPE caffe2"
        )


def read_weights(path: str | Path, kind: str) -> dict[str, Tensor]:
    """Read the tensors of a file under the names in the file, without running code in it.

    Raises:
        ValueError: The file cannot be read or has no weights.
    """
    check_kind(path, kind)
    if kind == "caffe2":
        return {
            name: torch.from_numpy(blob.astype(blob.dtype.newbyteorder("=")))
            for name, blob in read_blobs(Path(path)).items()
            if isinstance(blob, np.ndarray) and not _OPTIMIZER_BLOB.fullmatch(name)
        }
    content = _load_torch(path)
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__}, not weights by name")
    state = next((content[k] for k in _STATES if isinstance(content.get(k), Mapping)), content)
    tensors = {k: v for k, v in state.items() if isinstance(k, str) and isinstance(v, Tensor)}
    if not tensors:
        raise ValueError(
            f"{path} holds no weights, neither at its top nor under {', '.join(_STATES)}; it has "
            f"{', '.join(map(str, list(content)[:5])) or 'nothing'}"
        )
    return tensors


def _load_torch(path: str | Path) -> Any:
    if not check_archive(Path(path)):
        logger.warning(
            "%s is in the form that torch wrote before 1.6, which has no checksum: damage to it "
            "goes unnoticed; compare the file with a checksum that its publisher gives",
            path,
        )
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if refused := re.search(r"GLOBAL ([\w.]+) was not", str(error)):
            raise ValueError(
                f"{path} is refused: it holds more than weights ({refused[1]}), and only tensors "
                "and plain containers are safe to load; save its state dict alone"
            ) from error
        why = re.split(r"\.\s|\n", str(error) or type(error).__name__)[0].strip()
        raise ValueError(f"{path} cannot be read as a PyTorch checkpoint: {why}") from error
