"""A network compiled for each shape of a schedule before the training, and never in it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import nn

__all__ = ["compiled", "expect_graphs", "without_compiling"]


def compiled(model: nn.Module) -> nn.Module:
    """The model, compiled as one graph for each shape, BN size and mode that it meets.

    It shares the model's weights and buffers. The result is kept where Inductor keeps what it has
    compiled (TORCHINDUCTOR_CACHE_DIR), and is read from there by the next run.
    """
    return cast(nn.Module, torch.compile(model, dynamic=False, fullgraph=True))


def expect_graphs(count: int) -> None:
    """Make room for as many graphs of one network; torch gives up at 8 by default."""
    import torch._dynamo.config as dynamo  # it imports the compiler: for who compiles

    dynamo.recompile_limit = max(dynamo.recompile_limit, count)


def without_compiling() -> AbstractContextManager[Any]:
    """A context in which a network that would have to be compiled fails.

    Within it every shape must have been seen before: RuntimeError says what was not.
    """
    context: AbstractContextManager[Any] = torch.compiler.set_stance("fail_on_recompile")
    return context
