"""The Triton kernels without a GPU: `TRITON_INTERPRET=1 python batchnorm_kernels_worker.py FOLDER`.

Reads FOLDER/cases.pt, a dict of (module, input, gradient of the output), trains each module once
with the kernels in the place of the plain operations, and writes the dict of what came of it,
FOLDER/results.pt. Tiles are smaller than on a GPU, so that few values make many of them.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from multigrid.batchnorm import split, triton

__all__ = ["main", "train"]


def train(module: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """The output, all gradients and the state after one step."""
    x = x.detach().requires_grad_()
    output = module(x)
    gradients = torch.autograd.grad(output, (x, *module.parameters()), grad)
    names = ("input", *dict(module.named_parameters()))
    found = {f"gradient of {name}": g for name, g in zip(names, gradients, strict=True)}
    return {"output": output.detach(), **found, **module.state_dict()}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    split._implementation = lambda x: triton  # as if x were on a GPU
    triton.TILE, triton.TILE_CHANNELS = 256, 16
    triton.TALL, triton.WIDE = (4, 4), (2, 16)
    cases = torch.load(folder / "cases.pt", weights_only=False)
    torch.save({name: train(*case) for name, case in cases.items()}, folder / "results.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
