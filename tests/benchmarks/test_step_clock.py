"""How steps are timed: clock and events, memory, the rate of matrix products, profiles."""

import importlib
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.autograd import DeviceType

from multigrid import Shape
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe

CPU = torch.device("cpu")


@pytest.fixture
def bench(load_program, step_bench) -> ModuleType:
    return load_program("benchmarks/step_time.py")


@pytest.fixture
def variants(step_bench) -> ModuleType:
    return importlib.import_module("step_variants")


@pytest.fixture
def cfg(tiny_recipe: Path) -> Recipe:
    return load_recipe(tiny_recipe, ["MULTIGRID.LONG_CYCLE", False])


def test_the_memory_that_stays_by_hand(step_bench):
    """6 weights and 2 biases, as many gradients and momenta, of 4 bytes."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert step_bench.kept_bytes(model, optimizer) == 32
    model(torch.ones(1, 3)).sum().backward()
    assert step_bench.kept_bytes(model, optimizer) == 64
    optimizer.step()
    assert step_bench.kept_bytes(model, optimizer) == 96


def test_the_parts_of_steps_by_hand(step_bench, monkeypatch):
    """Two steps with 1 s between them: forwards of 2 and 4 s, backwards of 3 and 5: 15 s in all."""
    clock = importlib.import_module("step_clock")
    times = iter([0, 2, 5, 6, 10, 15])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: float(next(times)))
    watch = clock.StepClock(CPU)
    for _ in range(2):
        watch.start()
        watch.mark("forward")
        watch.mark("backward")
    assert watch.read() == (7.5, {"forward": 3, "backward": 4})


def test_a_gpus_parts_are_between_its_events(step_bench, monkeypatch):
    """The queue reaches the events at 10, 12 and 15 ms; nobody waits for it before."""

    class Event:
        times = iter([10.0, 12.0, 15.0])

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = next(self.times)

        def elapsed_time(self, end: "Event") -> float:
            return end.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.delattr(torch.cuda, "synchronize")
    clock = importlib.import_module("step_clock").StepClock(torch.device("cuda"))
    clock.start()
    clock.mark("forward")
    clock.mark("backward")
    seconds, parts = clock.read()
    assert seconds == pytest.approx(0.005)
    assert parts == {"forward": pytest.approx(0.002), "backward": pytest.approx(0.003)}


def test_a_cases_peak_is_without_what_others_keep(variants, step_bench, cfg, monkeypatch):
    """Of 700 bytes before a step 100 are its own; the peaks are 9000 in the first steps, then 1500,
    1600 and 1700: at most 1100 are the case's, and 900 with a graph, recorded after the 1500."""
    (run,) = variants.build_runs(cfg, ["plain"], CPU)
    case, peaks = run.cases[0], iter([9000, 1500, 1600, 1700])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 700)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: next(peaks))
    timed = step_bench.Timed(1.0, {})
    case.bench = SimpleNamespace(
        cfg=cfg,
        device=torch.device("cuda"),
        kept_bytes=lambda step: 100,
        time=lambda step, batch, iterations: timed,
        wait=lambda: None,
    )
    case.warm_up(1.0)
    case.time()
    case.time()
    assert case.to_json()["peak_bytes"] == 1100
    case.bench.recipe = cfg.replaced({"TRAIN.CUDA_GRAPHS": True})
    assert case.peak_bytes == 900


def test_only_a_compiled_step_may_fail(variants, cfg, monkeypatch):
    """Without compiler and graphs a fault is ours, and is not to be hidden in a table."""
    (run,) = variants.build_runs(cfg, ["plain"], CPU)
    case = run.cases[0]

    def fail(step, batch, iterations):
        raise RuntimeError("the compiler\n gave up")

    monkeypatch.setattr(case.bench, "time", fail)
    with pytest.raises(RuntimeError, match="gave up"):
        case.warm_up(1.0)
    case.bench.recipe = cfg.replaced({"TRAIN.COMPILE": True})
    case.warm_up(1.0)
    assert case.to_json() == {"seconds": None, "failure": "the compiler gave up"}


def test_matrix_products_have_a_rate(step_bench, cfg, monkeypatch):
    """512³ multiply-adds in 0.25 s are 2³⁰ FLOP/s."""
    rates = importlib.import_module("step_rates")
    monkeypatch.setattr(rates, "_product_seconds", lambda a, b: 0.25)
    assert rates.matrix_rates(cfg, CPU, ["float32"]) == {"float32": 2**30}


def test_a_product_takes_time(step_bench):
    rates = importlib.import_module("step_rates")
    assert rates._product_seconds(torch.ones(9, 9), torch.ones(9, 9)) > 0


def test_a_profile_names_the_operators(bench, tiny_recipe, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(importlib.import_module("step_profile"), "_STEPS", 1)
    path = tmp_path / "p.json"
    options = ["--rounds", "2", "--seconds", "1e-9", "--profile", "worst", "--output", str(path)]
    off = ["MULTIGRID.LONG_CYCLE", "False", "MULTIGRID.SHORT_CYCLE", "False"]
    assert bench.main(["--cfg", str(tiny_recipe), *options, *off]) == 0
    found = json.loads(path.read_text())["profile"]
    assert (found["variant"], found["shape"], found["busy"]) == ("recipe", [4, 8, 32], None)
    shares = [row["share"] for row in found["rows"]]
    assert len(shares) == 15
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 1
    assert any("convolution" in row["name"] for row in found["rows"][:3])
    assert "the 15 operators that take most" in capsys.readouterr().out


def test_a_gpus_profile_has_its_kernels_alone(step_bench):
    """60 and 30 µs of kernels in 3 steps, without the operator and the annotation over them."""
    profile = importlib.import_module("step_profile")

    def event(key, count, microseconds, device, annotation=False):
        return SimpleNamespace(
            key=key,
            count=count,
            self_device_time_total=microseconds,
            device_type=device,
            is_user_annotation=annotation,
        )

    events = [
        event("aten::conv", 3, 90, DeviceType.CPU),
        event("Optimizer.step", 3, 90, DeviceType.CUDA, annotation=True),
        event("add", 6, 30, DeviceType.CUDA),
        event("gemm", 3, 60, DeviceType.CUDA),
    ]
    rows, seconds = profile.summarise(events, True, 3)
    assert [row["name"] for row in rows] == ["gemm", "add"]
    assert [row["share"] for row in rows] == pytest.approx([2 / 3, 1 / 3])
    assert [row["calls_per_step"] for row in rows] == [1, 2]
    assert seconds == pytest.approx(30e-6)


def test_the_worst_shape_has_the_smallest_share(step_bench):
    profile = importlib.import_module("step_profile")
    cases = [SimpleNamespace(shape=Shape(clips, 8, 32)) for clips in (4, 8, 16)]
    run = SimpleNamespace(name="all", cases=cases, failure=None)
    timed = [{"seconds": {}, "matrix_share": {"median": share}} for share in (0.3, 0.2)]
    rows = [*timed, {"seconds": None}]
    other = SimpleNamespace(name="plain", cases=cases, failure=None)
    assert profile.parse_profile("worst", [other, run]) == (run, None)
    assert profile.parse_profile("plain:4x8x32", [other, run]) == (other, cases[0].shape)
    assert profile.find_case(run, rows, None) is cases[1]
    assert profile.find_case(run, rows, cases[0].shape) is cases[0]
    with pytest.raises(ValueError, match="all has no time for 16×8×32²"):
        profile.find_case(run, rows, cases[2].shape)
