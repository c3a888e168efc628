"""Warnings that name the line of the user's code."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch

_INNER = tuple(f"{Path(file).parent}{os.sep}" for file in (__file__, torch.__file__))
"""Folders of code that no warning names, because the user cannot change it."""


def warn_user(text: str) -> None:
    """Warn at the line of the user's code that called this package, directly or through torch."""
    frame, depth = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INNER):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(text, stacklevel=depth)
