"""Variants of a recipe's steps: their keys, what a device cannot have, the host's own code beside
ours, the fast pathway alone, and a run with a made-up clock."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from multigrid import GroupedBatchNorm3d, Step
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.build import build_model
from slowfast_patches.models.flops import flops_per_clip
from slowfast_patches.models.inputs import blank_inputs

CPU = torch.device("cpu")
SHORT = ("MULTIGRID.LONG_CYCLE", "False", "MULTIGRID.SHORT_CYCLE_FACTORS", "[0.7]")


@pytest.fixture
def bench(load_program, step_bench) -> ModuleType:
    return load_program("benchmarks/step_time.py")


@pytest.fixture
def variants(step_bench) -> ModuleType:
    return importlib.import_module("step_variants")


@pytest.fixture
def cfg(tiny_recipe: Path) -> Recipe:
    """Crops 22 and 32, of 8 and 4 clips."""
    return load_recipe(tiny_recipe, SHORT)


def test_plain_turns_off_what_a_recipe_turns_on(variants, tiny_recipe):
    on = ["TRAIN.MIXED_PRECISION", True, "SOLVER.FUSED", True, "MULTIGRID.SIZE_DIVISOR", 16]
    plain, keys = variants.variant_config(load_recipe(tiny_recipe, on), "plain", CPU)
    assert (plain.train.mixed_precision, plain.solver.fused) == (False, False)
    assert plain.multigrid.size_divisor == 1
    assert keys["TRAIN.TF32"] is False


def test_a_switch_alone_leaves_the_others_off(variants, tiny_recipe):
    cfg = load_recipe(tiny_recipe, ["TRAIN.MIXED_PRECISION", True])
    for name, key in (("fused", "SOLVER.FUSED"), ("channels_last", "MODEL.CHANNELS_LAST")):
        _, keys = variants.variant_config(cfg, name, CPU)
        assert [k for k, value in keys.items() if value is True] == [key]


def test_the_recipe_is_measured_as_it_is(variants, cfg):
    assert variants.variant_config(cfg, "recipe", CPU) == (cfg, {})


def test_all_is_what_the_device_can(variants, cfg, monkeypatch):
    """The CPU has no TF32, no cuDNN and no CUDA graphs; here it has no compiler either."""
    monkeypatch.setattr(variants, "can_compile", lambda device: "no compiler")
    changed, keys = variants.variant_config(cfg, "all", CPU)
    on = {key for key, value in keys.items() if value}
    assert on == {"TRAIN.MIXED_PRECISION", "MODEL.CHANNELS_LAST", "SOLVER.FUSED"}
    assert (changed.train.compile, changed.train.cuda_graphs) == (False, False)
    with pytest.raises(ValueError, match=r"TRAIN\.COMPILE does not work here: no compiler"):
        variants.variant_config(cfg, "compile", CPU)


def test_a_compiler_that_is_broken_says_why(variants, monkeypatch):
    def fail(function):
        raise RuntimeError("no g++\n  anywhere")

    monkeypatch.setattr(torch, "compile", fail)
    assert variants.can_compile(CPU) == "RuntimeError: no g++ anywhere"


@pytest.mark.parametrize(
    ("name", "pairs", "message"),
    [
        ("cuda_graphs", (), "TRAIN.CUDA_GRAPHS True needs a GPU"),
        ("host_tf32", (), "TRAIN.TF32 is for GPUs"),
        ("fused", ("SOLVER.OPTIMIZING_METHOD", "lars"), "there is no fused lars"),
        ("host", ("SOLVER.OPTIMIZING_METHOD", "lars"), "the host has no optimizer lars"),
        ("host", ("MODEL.LOSS_FUNC", "bce_logit"), "the host has no loss bce_logit"),
        ("host", ("RESNET.SPATIAL_STRIDES", [[1, 1], [2, 2], [2, 2], [1, 1]]), "strides of 32"),
    ],
)
def test_what_cannot_be_says_why(variants, tiny_recipe, name, pairs, message):
    with pytest.raises(ValueError, match=message):
        variants.variant_config(load_recipe(tiny_recipe, pairs), name, CPU)


def test_the_host_has_no_tsm(variants, short_cycle_recipe):
    cfg = load_recipe(short_cycle_recipe, ["MODEL.ARCH", "tsm"])
    with pytest.raises(ValueError, match="the host has no model tsm"):
        variants.variant_config(cfg, "host", CPU)


def test_variants_share_clips_and_are_refused_by_name_only(variants, cfg):
    runs = variants.build_runs(cfg, ["plain", "cuda_graphs", "host"], CPU, named={"plain"})
    assert [run.failure is None for run in runs] == [True, False, True]
    for ours, theirs in zip(runs[0].cases, runs[2].cases, strict=True):
        assert ours.batch is theirs.batch
    with pytest.raises(ValueError, match=r"--variants cuda_graphs: .* needs a GPU"):
        variants.build_runs(cfg, ["cuda_graphs"], CPU, named={"cuda_graphs"})


def test_the_hosts_code_is_untouched_and_trains_at_every_shape(variants, cfg):
    """Crops of 32 and 22 pixels end as 1 × 1: each has its own model, with that as its window."""
    (run,) = variants.build_runs(cfg, ["host"], CPU)
    models = run.cases[0].bench.models
    for case in run.cases:
        model, _ = models.at(case.shape)
        before = model.head.projection.weight.clone()
        assert run.precision == "float32"
        parts = case.bench.time(case.step, case.batch, 1).parts
        assert list(parts) == ["input", "forward", "backward", "optimizer"]
        assert not torch.equal(before, model.head.projection.weight)
        kinds = {type(m) for m in model.modules()}
        assert GroupedBatchNorm3d not in kinds
        assert {nn.BatchNorm3d, nn.AvgPool3d, nn.Dropout} <= kinds
        assert all(kind.__module__.startswith(("torch.", "slowfast.")) for kind in kinds)
        assert [x.dtype for x in models.inputs(case.batch)] == [torch.float32] * 2
    shapes = {case.shape for case in run.cases}
    assert {models.at(shape)[0].head.pathway1_avgpool.kernel_size[0] for shape in shapes} == {8}
    assert len({id(models.at(shape)[0]) for shape in shapes}) == 2


def test_the_fast_pathway_alone_computes_what_it_computes_in_the_model(step_bench, cfg):
    fast = importlib.import_module("step_fast")
    torch.manual_seed(0)
    model = build_model(cfg).eval()
    alone = fast.FastPathway(model, 8).eval()
    inputs = [torch.randn(2, 3, frames, 32, 32) for frames in (4, 8)]
    kept = []
    model.s5.register_forward_hook(lambda module, given, output: kept.append(output[1]))
    with torch.no_grad():
        found = alone.blocks(inputs[1])
        model(list(inputs))
    assert torch.equal(found, kept[0])
    assert alone(inputs).shape == (2, 8)


def test_the_fast_pathways_operations_are_those_of_its_modules(step_bench, cfg):
    """Those that torch counts, but its classes': 64 channels to 8, forward."""
    fast = importlib.import_module("step_fast")
    with torch.device("meta"):
        model = fast.build_fast_pathway(cfg)
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            model(blank_inputs((1, 8, 32), 2))
    count = fast.fast_flops_per_clip(cfg)
    assert count(8, 32) == 3 * (counter.get_total_flops() - 2 * 64 * 8)
    assert 0 < count(8, 32) < flops_per_clip(cfg)(8, 32)


def test_other_models_have_no_fast_pathway(bench, short_cycle_recipe, capsys):
    assert bench.main(["--cfg", str(short_cycle_recipe), "--pathway", "fast"]) == 2
    assert "slowonly has no fast pathway" in capsys.readouterr().err


TIMES = {"plain": 2.0, "fused": 1.0, "channels_last": 2.5, "host": 4.0}


@pytest.fixture
def made_up_clock(step_bench, monkeypatch) -> None:
    """A step takes what its variant takes, and the machine is ever slower."""
    rounds = dict[tuple[int, Step], int]()

    def take(self, step, batch, iterations):
        rounds[id(self), step] = slower = rounds.get((id(self), step), 0) + 1
        cfg = self.cfg
        name = "fused" if cfg.solver.fused else "plain"
        name = "channels_last" if cfg.model.channels_last else name
        took = slower * TIMES["host" if hasattr(self, "models") else name]
        return step_bench.Timed(took, {"forward": 0.25 * took, "backward": 0.75 * took})

    monkeypatch.setattr(step_bench.Steps, "time", take)
    rates = importlib.import_module("step_rates")
    monkeypatch.setattr(rates, "_product_seconds", lambda a, b: 0.25)


def test_variants_side_by_side_by_hand(bench, made_up_clock, tiny_recipe, tmp_path, capsys):
    """The fused optimizer halves plain's 2 s and is worth its switch; the other layout is not. The
    host takes 4 s: clips/s are 2 and 4 times its."""
    path, picture = tmp_path / "v.json", tmp_path / "v.png"
    names = ["plain", "fused", "channels_last", "host"]
    options = ["--rounds", "2", "--output", str(path), "--plot", str(picture)]
    arguments = ["--cfg", str(tiny_recipe), *options, "--dataset-size", "240"]
    assert bench.main([*arguments, "--variants", *names, *SHORT]) == 0
    written = json.loads(path.read_text())
    assert written["shapes"] == []
    assert written["matrix_rates"] == {"float32": 2**30}
    assert written["recommended"] == ["SOLVER.FUSED", "True"]
    found = {variant["name"]: variant for variant in written["variants"]}
    assert list(found) == names
    for row in found["fused"]["shapes"]:
        assert row["relative"]["plain"]["rounds"] == [2, 2]
        assert row["relative"]["host"]["rounds"] == [4, 4]
        assert row["parts"]["backward"]["rounds"] == pytest.approx([2.25, 3.0])
    assert found["channels_last"]["totals"]["relative"]["plain"]["median"] == pytest.approx(0.8)
    assert [row["bn_size"] for row in found["host"]["shapes"]] == [None] * 3
    hours = [variant["totals"]["seconds"]["median"] for variant in found.values()]
    assert [hour / hours[0] for hour in hours] == pytest.approx([1, 0.5, 1.25, 2])
    assert picture.read_bytes()[1:4] == b"PNG"
    table = capsys.readouterr().out
    assert "fused: SOLVER.FUSED True\n" in table
    assert "2.00× (2.00–2.00)  4.00× (4.00–4.00)" in table
    assert table.count("SOLVER.FUSED True") == 2
    assert "host is pyslowfast's own model" in table


def test_the_fast_pathways_times_are_none_of_the_recipe(
    bench, made_up_clock, tiny_recipe, tmp_path, capsys
):
    """4 clips take 6 s, then 8; the device computes 2³⁰ FLOP/s."""
    path = tmp_path / "fast.json"
    options = ["--rounds", "2", "--output", str(path), "--pathway", "fast"]
    assert bench.main(["--cfg", str(tiny_recipe), *options, *SHORT]) == 0
    written = json.loads(path.read_text())
    assert (written["pathway"], written["shapes"]) == ("fast", [])
    count = importlib.import_module("step_fast").fast_flops_per_clip(load_recipe(tiny_recipe))
    share = written["variants"][0]["shapes"][0]["matrix_share"]["median"]
    assert share == pytest.approx(count(8, 32) / 2**30 * (4 / 6 + 4 / 8) / 2)
    assert "the fast pathway alone" in capsys.readouterr().out


def test_a_graphs_forward_is_in_its_backward(bench, step_bench, tiny_recipe, capsys, monkeypatch):
    def take(self, step, batch, iterations):
        return step_bench.Timed(3.0, {"input": 1.0, "backward": 2.0})

    monkeypatch.setattr(step_bench.Steps, "time", take)
    assert bench.main(["--cfg", str(tiny_recipe), "--rounds", "2", *SHORT]) == 0
    assert "A CUDA graph is forward and backward in one" in capsys.readouterr().out


def test_the_parts_of_one_variant_are_drawn(bench, made_up_clock, tiny_recipe, tmp_path, capsys):
    picture = tmp_path / "new" / "parts.png"
    arguments = ["--cfg", str(tiny_recipe), "--rounds", "2", "--plot", str(picture)]
    assert bench.main([*arguments, *SHORT]) == 0
    assert picture.read_bytes()[1:4] == b"PNG"
    assert "of very many videos: how many training videos are there?" in capsys.readouterr().out


def test_each_reports_what_a_device_cannot_have(
    bench, variants, made_up_clock, tiny_recipe, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(variants, "can_compile", lambda device: "no compiler")
    path = tmp_path / "each.json"
    options = ["--rounds", "2", "--output", str(path)]
    off = ["MULTIGRID.LONG_CYCLE", "False", "MULTIGRID.SHORT_CYCLE", "False"]
    assert bench.main(["--cfg", str(tiny_recipe), *options, "--variants", "each", *off]) == 0
    written = json.loads(path.read_text())
    failures = {v["name"]: v["failure"] for v in written["variants"]}
    assert list(failures) == list(variants.EACH)
    assert {name for name, failure in failures.items() if failure} == {
        "tf32",
        "cudnn_benchmark",
        "compile",
        "cuda_graphs",
        "host_tf32",
    }
    assert (
        "cuda_graphs: not measured: TRAIN.CUDA_GRAPHS True needs a GPU" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--variants", "cuda_graphs"], "TRAIN.CUDA_GRAPHS True needs a GPU"),
        (["--profile", "3x3x3"], "--profile 3x3x3: there are worst and 4x8x32, 8x8x22"),
        (["--profile", "all:worst"], "--profile all:worst: there is recipe"),
        (["--plot", "picture.foo"], "cannot save a picture as 'picture.foo'"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_it_is_tried(
    bench, step_bench, tiny_recipe, capsys, monkeypatch, arguments, message
):
    monkeypatch.delattr(step_bench.Steps, "time")
    assert bench.main(["--cfg", str(tiny_recipe), *arguments, *SHORT]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--variants", "plian"], "--variants plian: there are recipe, plain"),
        (["--variants", "NUM_GPUS", "0"], "there are recipe, plain"),
        (["--variants", "host", "--pathway", "fast"], "the host's is measured as a whole"),
        (["--cfg", "b.yaml", "--variants", "plain"], "--variants is for one --cfg"),
        (["--cfg", "b.yaml", "--dataset-size", "9"], "--dataset-size is for one --cfg"),
    ],
)
def test_a_command_line_that_means_nothing_is_refused(bench, capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        bench.main(["--cfg", "a.yaml", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_keys_may_follow_the_variants(bench):
    args = bench.parse_args(["--cfg", "a.yaml", "--variants", "plain", "host", "NUM_GPUS", "0"])
    assert (args.variants, args.overrides) == (["plain", "host"], ["NUM_GPUS", "0"])
    request = bench.request_of(bench.parse_args(["--cfg", "a", "--variants", "recipe", "each"]))
    assert request.variants[:2] == ("recipe", "plain")
    assert request.named == {"recipe", "each"}
    fast = bench.parse_args(["--cfg", "a", "--pathway", "fast", "--variants", "each"])
    assert not {"host", "host_tf32"} & set(bench.request_of(fast).variants)
