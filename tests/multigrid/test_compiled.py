"""Models that are compiled with CUDA graphs are refused, however they were asked for."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import multigrid as mg
from multigrid import MultigridError
from multigrid.compiled import GRAPH_MODES, check_cuda_graphs

compiles = pytest.mark.slow("imports the compiler")

GRAPHS = {"options": {"triton.cudagraphs": True}}


def net() -> nn.Module:
    model = nn.Module()
    model.stem = nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4))
    return mg.convert_batchnorm(model)


def begin(model: nn.Module) -> None:
    schedule = mg.make_schedule(mg.Shape(8, 8, 32), 256, mg.SteppedRate((8.0, 10.0), (0.05, 0.005)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    mg.Training(schedule, model, optimizer).begin(0)


@compiles
@pytest.mark.parametrize(
    "options",
    [*({"mode": mode} for mode in GRAPH_MODES), GRAPHS, {"backend": "cudagraphs"}],
)
@pytest.mark.parametrize("whole", [False, True])
def test_a_loop_is_told_that_its_model_replays_cuda_graphs(options, whole):
    with pytest.raises(ValueError, match=r"the model \(OptimizedModule\) .* max-autotune-no-cuda"):
        begin(torch.compile(net(), fullgraph=whole, **options))


@compiles
def test_a_part_that_replays_cuda_graphs_is_found():
    in_place, method, wrapped = net(), net(), net()
    in_place.stem.compile(mode="reduce-overhead")
    method.stem.forward = torch.compile(method.stem.forward, mode="reduce-overhead")
    wrapped.stem = torch.compile(wrapped.stem, mode="reduce-overhead")
    for model in (in_place, method, wrapped):
        with pytest.raises(ValueError, match=r"^stem \(.* is compiled with CUDA graphs"):
            begin(model)


@compiles
@pytest.mark.parametrize(
    "options", [{}, {"mode": "max-autotune-no-cudagraphs"}, {"backend": "aot_eager"}]
)
def test_other_ways_to_compile_are_allowed(options):
    model = net()
    model.stem.compile(**options)
    begin(model)
    check_cuda_graphs(torch.compile(model, **options))


@compiles
def test_a_setting_of_the_compiler_is_refused_with_every_mode():
    """TORCHINDUCTOR_CUDAGRAPHS=1 sets it, whatever TRAIN.COMPILE says."""
    import torch._inductor.config as inductor

    from slowfast_patches.train.step import compiled

    compiled(net(), True)
    with inductor.patch({"triton.cudagraphs": True}):
        for mode in (True, "default", "max-autotune-no-cudagraphs"):
            with pytest.raises(ValueError, match="unset TORCHINDUCTOR_CUDAGRAPHS"):
                compiled(net(), mode)


@compiles
def test_a_registered_model_may_not_replay_cuda_graphs():
    from slowfast_patches.models.build_model import build_model

    spec = SimpleNamespace(build=lambda recipe: torch.compile(net(), mode="reduce-overhead"))
    recipe = SimpleNamespace(model=SimpleNamespace(spec=spec))
    with pytest.raises(ValueError, match="is compiled with CUDA graphs"):
        build_model(recipe)


# Without the compiler: what torch makes of a compiled module, with a backend of some names.


@pytest.fixture(params=[False, True])
def setting(request, monkeypatch) -> bool:
    """Whether the compiler uses CUDA graphs, if a module does not choose."""
    config = ModuleType("config")
    config.triton = SimpleNamespace(cudagraphs=request.param)
    monkeypatch.setitem(vars(torch), "_inductor", SimpleNamespace(config=config))
    monkeypatch.setitem(sys.modules, "torch._inductor.config", config)
    return request.param


def backend(name=None, options=None, inner=None):
    return SimpleNamespace(
        compiler_name=name, config=options or {}, _torchdynamo_orig_backend=inner
    )


def as_compiled(module: nn.Module, callback: object) -> nn.Module:
    """Give a module the function by which torch tells the options of a compiled one."""
    self = SimpleNamespace(callback=callback)

    def get_compiler_config():
        return self

    module.get_compiler_config = get_compiler_config
    return module


def check(callback: object, *, replays: bool) -> None:
    """Check that a model is refused if its last part replays CUDA graphs with a backend."""
    model = net()
    as_compiled(model.stem[1], callback)
    refusal = pytest.raises(MultigridError, match=r"^stem\.1 \(GroupedBatchNorm3d\) is compiled")
    with refusal if replays else nullcontext():
        check_cuda_graphs(model)


def test_a_backend_of_cuda_graphs_is_refused_behind_any_number_of_wrappers(setting):
    graphs = backend("cudagraphs")
    check(graphs, replays=True)
    check(backend(inner=backend("debug", inner=graphs)), replays=True)
    check(backend(inner=backend("aot_eager")), replays=False)
    check(None, replays=False)


@pytest.mark.parametrize("options", [{}, {"triton.cudagraphs": True}, {"triton.cudagraphs": False}])
def test_inductor_s_own_option_comes_before_the_setting_of_the_compiler(setting, options):
    expected = options.get("triton.cudagraphs", setting)
    check(backend("inductor", options), replays=expected)
    check(backend(inner=backend("inductor", options)), replays=expected)


def test_a_model_that_is_not_compiled_is_allowed():
    model = net()
    model.stem.get_compiler_config = "no function"
    check_cuda_graphs(model)
    with pytest.raises(MultigridError, match=r"^the model \(Linear\) is compiled"):
        check_cuda_graphs(as_compiled(nn.Linear(1, 1), backend("cudagraphs")))


def test_a_training_checks_its_model_in_the_first_iteration():
    model = net()
    as_compiled(model.stem, backend("cudagraphs"))
    with pytest.raises(MultigridError, match="is compiled with CUDA graphs"):
        begin(model)
