"""Models that are compiled with CUDA graphs are refused, however they were asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch._inductor.config as inductor
from torch import nn

import multigrid as mg
from multigrid.compiled import GRAPH_MODES, check_cuda_graphs
from slowfast_patches.models.build_model import build_model
from slowfast_patches.train.step import compiled

pytestmark = pytest.mark.slow("imports the compiler")

GRAPHS = {"options": {"triton.cudagraphs": True}}


def net() -> nn.Module:
    model = nn.Module()
    model.stem = nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4))
    return mg.convert_batchnorm(model)


def begin(model: nn.Module) -> None:
    schedule = mg.make_schedule(mg.Shape(8, 8, 32), 256, mg.SteppedRate((8.0, 10.0), (0.05, 0.005)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    mg.Training(schedule, model, optimizer).begin(0)


@pytest.mark.parametrize(
    "options",
    [*({"mode": mode} for mode in GRAPH_MODES), GRAPHS, {"backend": "cudagraphs"}],
)
@pytest.mark.parametrize("whole", [False, True])
def test_a_loop_is_told_that_its_model_replays_cuda_graphs(options, whole):
    with pytest.raises(ValueError, match=r"the model \(OptimizedModule\) .* max-autotune-no-cuda"):
        begin(torch.compile(net(), fullgraph=whole, **options))


def test_a_part_that_replays_cuda_graphs_is_found():
    in_place, method, wrapped = net(), net(), net()
    in_place.stem.compile(mode="reduce-overhead")
    method.stem.forward = torch.compile(method.stem.forward, mode="reduce-overhead")
    wrapped.stem = torch.compile(wrapped.stem, mode="reduce-overhead")
    for model in (in_place, method, wrapped):
        with pytest.raises(ValueError, match=r"^stem \(.* is compiled with CUDA graphs"):
            begin(model)


@pytest.mark.parametrize(
    "options", [{}, {"mode": "max-autotune-no-cudagraphs"}, {"backend": "aot_eager"}]
)
def test_other_ways_to_compile_are_allowed(options):
    model = net()
    model.stem.compile(**options)
    begin(model)
    check_cuda_graphs(torch.compile(model, **options))


def test_a_setting_of_the_compiler_is_refused_with_every_mode():
    """TORCHINDUCTOR_CUDAGRAPHS=1 sets it, whatever TRAIN.COMPILE says."""
    compiled(net(), True)
    with inductor.patch({"triton.cudagraphs": True}):
        for mode in (True, "default", "max-autotune-no-cudagraphs"):
            with pytest.raises(ValueError, match="unset TORCHINDUCTOR_CUDAGRAPHS"):
                compiled(net(), mode)


def test_a_registered_model_may_not_replay_cuda_graphs():
    spec = SimpleNamespace(build=lambda recipe: torch.compile(net(), mode="reduce-overhead"))
    recipe = SimpleNamespace(model=SimpleNamespace(spec=spec))
    with pytest.raises(ValueError, match="is compiled with CUDA graphs"):
        build_model(recipe)
