"""Several recipes side by side, and TSM with its shift and without."""

import json
from pathlib import Path

import pytest
import torch

from slowfast_patches.models.tsm import ShiftedConv3d

KINETICS = Path(__file__).parents[2] / "configs" / "Kinetics"
TSM, I3D = str(KINETICS / "TSM_8x8_R50.yaml"), str(KINETICS / "I3D_8x8_R50_1GPU.yaml")


def test_tsm_beside_i3d_by_hand(step_time, clock_says, tmp_path, capsys):
    """A ResNet-50 has 25,557,032 parameters with 1000 classes, 2049 of each; a gradient 4 bytes.
    Its 2-D network has 4.09 G multiply-adds a picture, of which TSM sees 8.

    The machine is ever slower, and every round I3D takes 1.5 × as long as TSM: so it has 2/3 of its
    clips a second, without spread.
    """
    times = {"tsm": [9, 9, 2.0, 3.0, 4.0], "i3d": [9, 9, 3.0, 4.5, 6.0]}
    clock_says(lambda bench: times[bench.recipe.model.arch].pop(0))
    path = tmp_path / "new" / "models.json"
    options = ["--clips", "6", "--rounds", "3", "--output", str(path), "NUM_GPUS", "0"]
    assert step_time.main(["--cfg", TSM, "--cfg", I3D, *options]) == 0
    tsm, i3d = json.loads(path.read_text())["models"]
    assert tsm["parameters"] == 25_557_032 - 600 * 2049
    assert (tsm["gradient_bytes"], i3d["gradient_bytes"]) == (97_310_528, 112_173_888)
    assert tsm["multiply_adds_per_clip"] == pytest.approx(8 * 4.089e9, rel=2e-3)
    assert [row["seconds"]["median"] for row in (tsm, i3d)] == [3.0, 4.5]
    assert tsm["clips_per_second"]["median"] == 2.0
    assert i3d["relative_clips_per_second"]["rounds"] == pytest.approx([2 / 3] * 3)
    assert "0.67× (0.67 to 0.67)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["NUM_GPUS", "0"], f"({TSM} 64, {I3D} 8); give --clips"),
        (["--clips", "2"], "NUM_GPUS 0 is the CPU"),
        (["--clips", "2", "NUM_GPUS", "0", "DATA.NUM_FRAMES", "1"], "NUM_FRAMES 2 would work"),
    ],
)
def test_what_cannot_be_compared_is_refused(step_time, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert step_time.main(["--cfg", TSM, "--cfg", I3D, *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def shift(load_program):
    return load_program("benchmarks/shift.py")


def test_the_cost_of_the_shift_by_hand(shift, clock_says, thin_tsm, tmp_path, monkeypatch, capsys):
    """1.05 s with the 16 shifts of a ResNet-50 beside 1.00 s with none; the shifts alone take
    0.021 s."""

    def seconds(bench):
        shifts = [m for m in bench.model.modules() if isinstance(m, ShiftedConv3d)]
        assert len(shifts) == (16 if bench.recipe.tsm.shift_div else 0)
        return 1.05 if shifts else 1.0

    clock_says(seconds)
    monkeypatch.setattr(shift.Shifts, "seconds", lambda self: 0.021)
    path = tmp_path / "shift.json"
    assert shift.main(["--cfg", str(thin_tsm), "--rounds", "2", "--output", str(path)]) == 0
    for row in json.loads(path.read_text())["formats"]:
        assert row["cost"]["rounds"] == pytest.approx([0.05, 0.05])
        assert row["share_alone"]["median"] == pytest.approx(0.02)
    assert "5.0 % (5.0 to 5.0)" in capsys.readouterr().out


def test_the_shift_is_measured_in_both_formats(shift, thin_tsm, tmp_path):
    """2 clips of 4 frames reach the 16 blocks of a ResNet-50, an eighth as wide: the first with 8
    channels of 16², the last of them with 256 of 2²."""
    path = tmp_path / "shift.json"
    options = ["--rounds", "2", "--seconds", "1e-9", "--clips", "2", "--output", str(path)]
    assert shift.main(["--cfg", str(thin_tsm), *options, "DATA.NUM_FRAMES", "4"]) == 0
    res2_on, res3_on = (8 + 3 * 32) * 16**2, 4 * 64 * 8**2
    res4_on, res5_on = 6 * 128 * 4**2, 2 * 256 * 2**2
    for row in json.loads(path.read_text())["formats"]:
        assert row["blocks"] == 16
        assert row["bytes_shifted"] == 4 * 8 * (res2_on + res3_on + res4_on + res5_on)
        assert len(row["with"]["rounds"]) == len(row["shifts_alone"]["rounds"]) == 2
