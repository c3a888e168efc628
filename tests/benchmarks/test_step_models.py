"""Models side by side: what is known of them by hand, ratios by hand, and a run of thin ones."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from slowfast_patches.plan.step_times import read_step_times

ROOT = Path(__file__).parents[2]
KINETICS = ROOT / "configs" / "Kinetics"
TSM, I3D = str(KINETICS / "TSM_8x8_R50.yaml"), str(KINETICS / "I3D_8x8_R50_1GPU.yaml")


@pytest.fixture
def bench(load_program, step_bench) -> ModuleType:
    return load_program("benchmarks/step_time.py")


@pytest.fixture
def thin(short_cycle_recipe) -> list[str]:
    """`--cfg` for a thin SlowOnly and the same as a TSM."""
    tsm = short_cycle_recipe.with_name("thin_tsm.yaml")
    tsm.write_text(f"_BASE_: {short_cycle_recipe.name}\nMODEL: {{ARCH: tsm}}\n")
    return ["--cfg", str(short_cycle_recipe), "--cfg", str(tsm)]


def made_up_clock(monkeypatch, step_bench: ModuleType, seconds: dict[str, list[float]]) -> None:
    """What each architecture takes each time it is timed; an `inf` runs out of memory."""

    def take(self, step, batch, iterations):
        took = seconds[self.cfg.model.arch].pop(0)
        if took == float("inf"):
            raise torch.OutOfMemoryError("made up")
        return step_bench.Timed(took, {})

    monkeypatch.setattr(step_bench.Bench, "time", take)


def test_tsm_beside_i3d_by_hand(bench, step_bench, monkeypatch, tmp_path, capsys):
    """A ResNet-50 has 25,557,032 parameters with 1000 classes, 2049 of each; a gradient 4 bytes.
    Its 2-D network has 4.09 G multiply-adds a picture, of which TSM sees 8.

    The machine is ever slower, and every round I3D takes 1.5 × as long as TSM: so it has 2/3 of its
    clips a second, without spread.
    """
    times = {"tsm": [9, 9, 2.0, 3.0, 4.0], "i3d": [9, 9, 3.0, 4.5, 6.0]}
    made_up_clock(monkeypatch, step_bench, times)
    path = tmp_path / "new" / "models.json"
    options = ["--clips", "6", "--rounds", "3", "--output", str(path), "NUM_GPUS", "0"]
    assert bench.main(["--cfg", TSM, "--cfg", I3D, *options]) == 0
    written = json.loads(path.read_text())
    tsm, i3d = written["models"]
    assert tsm["parameters"] == 25_557_032 - 600 * 2049
    assert (tsm["gradient_bytes"], i3d["gradient_bytes"]) == (97_310_528, 112_173_888)
    assert tsm["multiply_adds_per_clip"] == pytest.approx(8 * 4.089e9, rel=2e-3)
    assert tsm["training_flops_per_clip"] == pytest.approx(8 * 3 * 2 * 4.089e9, rel=2e-3)
    assert [row["seconds"]["median"] for row in (tsm, i3d)] == [3.0, 4.5]
    assert tsm["clips_per_second"]["median"] == 2.0
    assert tsm["relative_clips_per_second"]["rounds"] == [1, 1, 1]
    spread = i3d["relative_clips_per_second"]
    quartiles = [spread[key] for key in ("quartile_1", "median", "quartile_3")]
    assert quartiles == pytest.approx([2 / 3] * 3)
    table = capsys.readouterr().out
    row = next(line.split() for line in table.splitlines() if line.startswith("TSM_8x8_R50"))
    assert row[:9] == ["TSM_8x8_R50", "tsm", "8", "×", "224²", "float32", "6", "24.3", "32.7"]
    assert row[9:14] == ["97.3", "3.0000", "2.5000", "to", "3.5000"]
    assert "0.67×  0.67 to 0.67" in table


def test_thin_models_are_measured_at_their_baselines_shapes(bench, thin, tmp_path, capsys):
    path = tmp_path / "models.json"
    short = ["--rounds", "2", "--seconds", "1e-9", "--clips", "2", "--output", str(path)]
    assert bench.main([*thin, *short, "DATA.NUM_FRAMES", "4"]) == 0
    table = capsys.readouterr().out
    written = json.loads(path.read_text())
    rows = written["models"]
    assert [row["recipe"] for row in rows] == ["short_cycle", "thin_tsm"]
    assert {(row["frames"], row["crop"], row["local_clips"]) for row in rows} == {(4, 64, 2)}
    for row in rows:
        assert len(row["seconds"]["rounds"]) == 2
        assert f"{row['seconds']['median']:.4f}" in table
    assert written["command"].startswith("python benchmarks/step_time.py --cfg ")
    assert {"machine", "versions", "date", "device"} <= written.keys()
    with pytest.raises(ValueError, match=r"models.json is no step-time file: 'format' is missing"):
        read_step_times(path)


def test_a_model_without_room_is_reported_and_nothing_is_relative_to_it(
    bench, step_bench, thin, tmp_path, capsys, monkeypatch
):
    full = {"slowonly": [9, 9, 1.0, float("inf")], "tsm": [9, 9, 1.0, 2.0]}
    made_up_clock(monkeypatch, step_bench, full)
    path = tmp_path / "models.json"
    assert bench.main([*thin, "--rounds", "2", "--clips", "1", "--output", str(path)]) == 0
    assert "out of memory" in capsys.readouterr().out
    rows = json.loads(path.read_text())["models"]
    assert [row["seconds"] is None for row in rows] == [True, False]
    assert rows[0]["failure"] == "out of memory"
    assert [row["relative_clips_per_second"] for row in rows] == [None, None]
    assert rows[1]["seconds"]["rounds"] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["NUM_GPUS", "0"], f"({TSM} 64, {I3D} 8); give --clips"),
        (["--clips", "2"], "NUM_GPUS 0 is the CPU"),
        (["--clips", "2", "NUM_GPUS", "0", "DATA.NUM_FRAMES", "1"], "NUM_FRAMES 2 would work"),
    ],
)
def test_what_cannot_be_compared_is_refused(bench, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main(["--cfg", TSM, "--cfg", I3D, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_recipe_for_gpus_is_not_compared_with_one_for_the_cpu(bench, thin, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert bench.main([*thin[:2], "--cfg", I3D, "--clips", "2"]) == 2
    assert "give NUM_GPUS 0, or a number of GPUs, for all" in capsys.readouterr().err


def test_recipes_that_agree_on_the_clips_need_none_given(
    bench, step_bench, thin, tmp_path, monkeypatch
):
    made_up_clock(monkeypatch, step_bench, {"slowonly": [1] * 4, "tsm": [1] * 4})
    path = tmp_path / "models.json"
    pairs = ["NUM_SHARDS", "2", "DATA.TRAIN_CROP_SIZE", "32"]
    assert bench.main([*thin, "--rounds", "2", "--output", str(path), *pairs]) == 0
    assert [row["local_clips"] for row in json.loads(path.read_text())["models"]] == [8, 8]


@pytest.mark.parametrize(("recipes", "clips"), [(1, "2"), (2, "0")])
def test_clips_are_given_to_several_recipes(bench, thin, capsys, recipes, clips):
    with pytest.raises(SystemExit) as stopped:
        bench.main([*thin[: 2 * recipes], "--clips", clips])
    assert stopped.value.code == 2
    assert "--clips" in capsys.readouterr().err
