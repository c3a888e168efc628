"""Several recipes side by side, and TSM with its shift and without."""

import json
from pathlib import Path

import pytest

from slowfast_patches.models.tsm import ShiftedConv3d

KINETICS = Path(__file__).parents[2] / "configs" / "Kinetics"
TSM, I3D = str(KINETICS / "TSM_8x8_R50.yaml"), str(KINETICS / "I3D_8x8_R50_1GPU.yaml")


def test_tsm_beside_i3d_by_hand(step_time, clock_says, tmp_path, capsys):
    """The machine is ever slower, and every round I3D takes 1.5 × as long as TSM: so it has 2/3 of
    its clips a second, without spread. Gradients are of 4 bytes; networks are 1/8 as wide."""
    times = {"tsm": [9, 9, 2.0, 3.0, 4.0], "i3d": [9, 9, 3.0, 4.5, 6.0]}
    clock_says(lambda bench: times[bench.recipe.model.arch].pop(0))
    path = tmp_path / "new" / "models.json"
    options = ["--clips", "6", "--rounds", "3", "--output", str(path)]
    thin = ["NUM_GPUS", "0", "RESNET.WIDTH_PER_GROUP", "8"]
    assert step_time.main(["--cfg", TSM, "--cfg", I3D, *options, *thin]) == 0
    tsm, i3d = json.loads(path.read_text())["models"]
    assert (tsm["model"], tsm["frames"], tsm["local_clips"]) == ("tsm", 8, 6)
    assert tsm["gradient_bytes"] == 4 * tsm["parameters"] < i3d["gradient_bytes"]
    assert 6 * tsm["multiply_adds_per_clip"] == tsm["training_flops_per_clip"]
    assert [row["seconds"]["median"] for row in (tsm, i3d)] == [3.0, 4.5]
    assert tsm["clips_per_second"]["median"] == 2.0
    assert i3d["relative_clips_per_second"]["rounds"] == pytest.approx([2 / 3] * 3)
    assert "0.67× (0.67 to 0.67)" in capsys.readouterr().out


def test_a_network_that_cannot_take_its_clips_is_refused(step_time, capsys):
    arguments = ["--clips", "2", "NUM_GPUS", "0", "DATA.NUM_FRAMES", "1"]
    assert step_time.main(["--cfg", TSM, "--cfg", I3D, *arguments]) == 2
    assert "tsm needs 2 at least" in capsys.readouterr().err


def test_the_cost_of_the_shift_by_hand(load_program, clock_says, thin_tsm, tmp_path, capsys):
    """1.05 s with the 16 shifts of a ResNet-50 beside 1.00 s with none, in both formats."""

    def seconds(bench):
        shifts = [m for m in bench.model.modules() if isinstance(m, ShiftedConv3d)]
        assert len(shifts) == (16 if bench.recipe.tsm.shift_div else 0)
        return 1.05 if shifts else 1.0

    clock_says(seconds)
    path, shift = tmp_path / "shift.json", load_program("benchmarks/shift.py")
    assert shift.main(["--cfg", str(thin_tsm), "--rounds", "2", "--output", str(path)]) == 0
    costs = json.loads(path.read_text())["costs"]
    assert [cost["rounds"] for cost in costs.values()] == [pytest.approx([0.05, 0.05])] * 2
    assert "5.0 % (5.0 to 5.0)" in capsys.readouterr().out
