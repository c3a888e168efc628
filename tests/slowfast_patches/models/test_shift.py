"""The benchmark of the temporal shift: its two networks, its ratios by hand, and a run."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from slowfast_patches.models.tsm import ShiftedConv3d


@pytest.fixture
def shift(load_program, step_bench) -> ModuleType:
    return load_program("benchmarks/shift.py")


@pytest.fixture
def recipe(short_cycle_recipe) -> list[str]:
    """A thin TSM's `--cfg`, small."""
    path = short_cycle_recipe.with_name("thin_tsm.yaml")
    path.write_text(f"_BASE_: {short_cycle_recipe.name}\nMODEL: {{ARCH: tsm}}\n")
    return ["--cfg", str(path), "DATA.NUM_FRAMES", "4"]


def run(shift: ModuleType, path: Path, *arguments: str) -> dict:
    assert shift.main(["--rounds", "2", "--output", str(path), *arguments]) == 0
    return json.loads(path.read_text())


@pytest.mark.slow
def test_a_step_with_the_shift_and_without_it_in_both_formats(shift, recipe, tmp_path, capsys):
    """2 clips of 4 frames reach the 16 blocks of a ResNet-50, an eighth as wide: the first with 8
    channels of 16², the last of them with 256 of 2². Not all arrive in channels_last_3d: how many
    do is torch's choice, by threads and clips.
    """
    found = run(shift, tmp_path / "shift.json", *recipe, "--clips", "2", "--seconds", "1e-9")
    shape = [found[key] for key in ("clips", "frames", "crop", "shift_div", "precision")]
    assert shape == [2, 4, 64, 8, "float32"]
    assert [row["memory_format"] for row in found["formats"]] == ["contiguous", "channels_last_3d"]
    res2_on, res3_on = (8 + 3 * 32) * 16**2, 4 * 64 * 8**2
    res4_on, res5_on = 6 * 128 * 4**2, 2 * 256 * 2**2
    table = capsys.readouterr().out
    for row in found["formats"]:
        assert row["blocks"] == 16
        assert row["bytes_shifted"] == 4 * 8 * (res2_on + res3_on + res4_on + res5_on)
        assert len(row["with"]["rounds"]) == len(row["shifts_alone"]["rounds"]) == 2
        assert f"{row['with']['median']:.4f}" in table
    assert found["formats"][0]["blocks_in_format"] == 16
    assert found["formats"][1]["blocks_in_format"] > 0
    assert {"command", "device", "machine", "versions", "date"} <= found.keys()


def test_the_cost_of_the_shift_by_hand(shift, step_bench, recipe, tmp_path, monkeypatch, capsys):
    """1.05 s with 16 shifts beside 1.00 s with none; the shifts alone take 0.021 s."""
    networks = set[tuple[int, int]]()

    def take(self, step, batch, iterations):
        shifts = [m for m in self.model.modules() if isinstance(m, ShiftedConv3d)]
        networks.add((self.cfg.tsm.shift_div, len(shifts)))
        return step_bench.Timed(1.05 if shifts else 1.0, {})

    monkeypatch.setattr(step_bench.Bench, "time", take)
    monkeypatch.setattr(shift.Shifts, "seconds", lambda self: 0.021)
    found = run(shift, tmp_path / "shift.json", *recipe)
    assert networks == {(8, 16), (0, 0)}
    for row in found["formats"]:
        assert row["cost"]["rounds"] == pytest.approx([0.05, 0.05])
        assert row["share_alone"]["median"] == pytest.approx(0.02)
    assert "5.0 %   5.0 to 5.0" in capsys.readouterr().out


def test_the_recipe_of_the_paper_is_what_is_measured_by_default(shift):
    assert Path(shift.parse_args([]).cfg).name == "TSM_8x8_R50.yaml"


@pytest.mark.parametrize("pair", [("MODEL.ARCH", "c2d"), ("TSM.SHIFT_DIV", "0")])
def test_a_network_without_a_shift_is_refused(shift, recipe, capsys, pair):
    assert shift.main([*recipe, *pair]) == 2
    assert "give a recipe of a TSM" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--rounds", "1"], ["--clips", "0"], ["--seconds", "nan"]])
def test_options_out_of_range_are_refused(shift, capsys, option):
    with pytest.raises(SystemExit) as stopped:
        shift.main(option)
    assert stopped.value.code == 2
    assert option[0] in capsys.readouterr().err
