"""Refusal of compiled models that replay CUDA graphs."""

from __future__ import annotations

from inspect import getclosurevars
from types import FunctionType
from typing import Any

from torch import nn

from multigrid.errors import MultigridError

GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that replay CUDA graphs."""

REMEDY = (
    "CUDA graphs are not supported: a replay overwrites what a step keeps, such as the scores and "
    "gradients of earlier micro-batches, and records the graph again for the coverage and dropout "
    "masks of each mini-batch. Use the mode default or max-autotune-no-cudagraphs, and unset "
    "TORCHINDUCTOR_CUDAGRAPHS"
)
"""Part of a message that says why CUDA graphs are refused, and what to do."""


def check_cuda_graphs(model: nn.Module) -> None:
    """Check that no part of a model is compiled by torch's compiler with CUDA graphs.

    A compiled copy of the model is not known here, and is not checked.

    Raises:
        ValueError: A part is. The message names it.
    """
    for name, module in model.named_modules():
        if any(map(_has_graphs, (module, *vars(module).values()))):
            raise MultigridError(
                f"{name or 'the model'} ({type(module).__name__}) is compiled with CUDA graphs. "
                f"{REMEDY}"
            )


def _has_graphs(compiled: Any) -> bool:
    """Return whether an object is a compiled module or function that replays CUDA graphs.

    torch tells the options of a compiled object only without `fullgraph`, and not those of other
    backends. The context that holds the backend is in the closure of the function that tells them.
    """
    tell = getattr(compiled, "get_compiler_config", None)
    if not isinstance(tell, FunctionType):
        return False
    part = getattr(getclosurevars(tell).nonlocals.get("self"), "callback", None)
    while part is not None:
        if getattr(part, "compiler_name", None) == "cudagraphs":
            return True
        if getattr(part, "compiler_name", None) == "inductor":
            import torch._inductor.config as inductor  # torch.compile has imported it

            return bool(part.config.get("triton.cudagraphs", inductor.triton.cudagraphs))
        part = getattr(part, "_torchdynamo_orig_backend", None)
    return False
