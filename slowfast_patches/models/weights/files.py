"""Files of weights: which kind they are, and their tensors under the names that the file has."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slowfast_patches.models.weights.caffe2 import read_blobs
from slowfast_patches.utils.files import check_archive

__all__ = ["Weights", "check_kind", "read_weights"]

logger = logging.getLogger(__name__)

_STATES = ("model_state", "state_dict", "model")
"""Where a PyTorch checkpoint may keep its state dict; else it is one itself."""

_LEGACY_MARK = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""torch's number in files from before 1.6, after the two bytes of the pickle protocol."""

_OPTIMIZER_BLOB = re.compile(r".*_momentum|lr|model_iter")


@dataclass(frozen=True)
class Weights:
    """What a file holds: tensors by its own names, names of what is no tensor, and what kind of
    file it is, in words."""

    tensors: Mapping[str, Tensor]
    others: tuple[str, ...]
    origin: str


def check_kind(path: str | Path, kind: str) -> None:
    """Look whether a file can be a checkpoint of a kind, "pytorch" or "caffe2", without reading it.

    Raises:
        ValueError: no such file, or it is of another kind.
    """
    try:
        with Path(path).open("rb") as file:
            problem = _problem(file.read(64), kind)
    except FileNotFoundError:
        problem = "there is no such file"
    except OSError as error:
        problem = f"it cannot be read: {error.strerror}"
    if problem is not None:
        raise ValueError(f"{path}: {problem}")


def _problem(head: bytes, kind: str) -> str | None:
    """Why a file with this beginning is not of a kind."""
    from_torch = head.startswith(b"PK\x03\x04") or head[2:].startswith(_LEGACY_MARK)
    if kind == "caffe2":
        return "it was written by PyTorch; set CHECKPOINT_TYPE pytorch" if from_torch else None
    if from_torch:
        return None
    if head.startswith((b"\x80", b"}", b"(d")):
        return (
            "it is a pickle, but none of PyTorch's; if it is Caffe2's, set CHECKPOINT_TYPE caffe2"
        )
    return f"it is no PyTorch checkpoint: it starts with {head[:16]!r}"


def read_weights(path: str | Path, kind: str) -> Weights:
    """Read a file, executing nothing that is in it.

    Raises:
        ValueError: the file cannot be read, or holds no weights.
    """
    check_kind(path, kind)
    return _from_blobs(read_blobs(Path(path))) if kind == "caffe2" else _from_torch(path)


def _from_torch(path: str | Path) -> Weights:
    content = _load_torch(path)
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__}, not weights by name")
    key = next((k for k in _STATES if isinstance(content.get(k), Mapping)), None)
    state = content if key is None else content[key]
    tensors = {k: v for k, v in state.items() if isinstance(k, str) and isinstance(v, Tensor)}
    if not tensors:
        raise ValueError(
            f"{path} holds no weights, neither at its top nor under {', '.join(_STATES)}; it has "
            f"{', '.join(map(str, list(content)[:5])) or 'nothing'}"
        )
    others = tuple(str(k) for k in state if k not in tensors)
    origin = "a PyTorch state dict" if key is None else f'a PyTorch file, its "{key}"'
    return Weights(tensors, others, origin)


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


def _from_blobs(blobs: Mapping[str, Any]) -> Weights:
    """Without the optimizer's blobs, which are counted."""
    model = {k: v for k, v in blobs.items() if not _OPTIMIZER_BLOB.fullmatch(k)}
    arrays = {k: v for k, v in model.items() if isinstance(v, np.ndarray)}
    return Weights(
        {k: torch.from_numpy(v.astype(v.dtype.newbyteorder("="))) for k, v in arrays.items()},
        tuple(k for k in model if k not in arrays),
        f"a Caffe2 file, {len(blobs) - len(model)} blobs of its optimizer left out",
    )
