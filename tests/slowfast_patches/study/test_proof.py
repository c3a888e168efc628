"""What our own tables and sets are made of, and what is said of their runs."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

from multigrid.sampling import Video, make_grid, plan_test, plan_train
from slowfast_patches.datasets.clips import takes_segments
from slowfast_patches.datasets.kinetics import Kinetics
from slowfast_patches.study import arms
from slowfast_patches.study.arms import Arm, Arms
from slowfast_patches.study.compare import compare_rows, format_comparison
from slowfast_patches.study.curves.curves import StepTimed
from slowfast_patches.study.digits import DIGITS, make_digits
from slowfast_patches.study.experiments import EXPERIMENTS
from slowfast_patches.study.runs import run_folder

CONFIGS = Path(__file__).parents[3] / "configs"
WORDS = ("bin", *sorted(DIGITS))


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A clip of each word in each split."""
    folder = tmp_path / "words"
    folder.mkdir()
    (folder / "classes.txt").write_text("\n".join(WORDS))
    for split in ("train", "val", "test"):
        lines = [f"clips/{split} {word}.mp4 {label}\n" for label, word in enumerate(WORDS)]
        (folder / f"{split}.csv").write_text("".join(lines))
    return folder


class TestDigits:
    def test_are_the_clips_of_numbers_labelled_by_them(self, words: Path, tmp_path: Path) -> None:
        folder = tmp_path / "digits"
        make_digits(words, folder)
        for split in ("train", "val", "test"):
            lines = (folder / f"{split}.csv").read_text().splitlines()
            assert f"{words}/clips/{split} seven.mp4 7" in lines
            assert len(lines) == 10
        assert (folder / "classes.txt").read_text().split()[:2] == ["zero", "one"]
        make_digits(words, folder)
        (words / "val.csv").write_text("clips/another.mp4 1\n")
        with pytest.raises(ValueError, match=r"val.csv is of other words than .* another --output"):
            make_digits(words, folder)

    def test_all_ten_are_needed(self, words: Path, tmp_path: Path) -> None:
        (words / "train.csv").write_text("a.mp4 0\nb.mp4 1\n")
        message = r"train.csv has no clip of zero, one, two and 6 more; all ten are needed"
        with pytest.raises(ValueError, match=message):
            make_digits(words, tmp_path / "digits")
        (words / "classes.txt").unlink()
        with pytest.raises(ValueError, match=r"no classes.txt.* give --words the folder"):
            make_digits(words, tmp_path / "digits")
        assert not (tmp_path / "digits").exists()

    def test_are_made_before_the_plan_says_how_many(
        self, words: Path, tmp_path: Path, load_program: Callable[[str], ModuleType]
    ) -> None:
        """Ten clips are too few for a recipe of 750, which is said before anything is trained."""
        tool, output = load_program("tools/reproduce.py"), tmp_path / "out"
        command = ["digits", "--local", "--words", str(words), "--output", str(output)]
        assert tool.main(command) == 2
        assert (output / "data" / "digits" / "train.csv").exists()


def arm(name: str, label: str) -> Arm:
    [found] = [row for row in EXPERIMENTS[name].rows if row.label == label]
    return Arms(CONFIGS).arm(found.training)


def test_the_control_that_sees_one_frame_sees_one_in_training_and_in_tests() -> None:
    recipe = arm("words_controls", "one frame, repeated").recipe
    data, word = recipe.data, Video(frames=20, fps=25.0, width=80, height=80)
    segments = takes_segments(Kinetics, data)
    sampled = {"segments": segments, "exact_strides": data.exact_strides}
    fps, sides = float(data.target_fps), data.train_jitter_scales
    grid = make_grid(recipe.base_shape, recipe.base_shape, data.sampling_rate, sides, **sampled)
    shown = [
        plan_train(np.random.default_rng(seed), grid, word, fps).positions for seed in range(200)
    ]
    assert {len(set(frames)) for frames in shown} == {1}
    assert len({frames[0] for frames in shown}) > 10
    tested = plan_test(
        word, frames=16, stride=data.sampling_rate, crop=64, target_fps=fps, **sampled
    )
    assert len(set(tested.positions)) == 1


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting what a model computes would take time."""
    monkeypatch.setattr(arms, "_counted", lambda recipe: lambda *shape: 1e9)


def write_result(output: Path, made: Arm, seed: int, seconds: float, top1: float) -> None:
    folder = run_folder(output, made, seed)
    folder.mkdir(parents=True)
    result = {
        "config": yaml.safe_load(made.recipe.text) | {"RNG_SEED": seed},
        "machine": {"processor": "abacus", "gpus": []},
        "world_size": 1,
        "seconds": {"training": seconds, "loading": 0.0, "evaluating": 1.0},
        "evaluations": [{"seconds": seconds, "top1": top1}],
    }
    took = {"iterations": made.iterations, "epochs": 12.0, "clips": 36000, "flops": 2e12}
    reached = {"top1": top1, "top5": 99.0}
    (folder / "result.json").write_text(json.dumps(result | took | reached))


@pytest.mark.slow
@pytest.mark.usefixtures("uncounted")
def test_a_table_of_ours_has_times_and_flops_and_nothing_published(
    tmp_path: Path, load_program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the seeds that are asked for, it takes the first alone."""
    name = "words_controls"
    for label, seconds, top1 in (("baseline", 100.0, 90.0), ("twice as long", 200.0, 91.0)):
        write_result(tmp_path, arm(name, label), 3, seconds, top1)
    tool = load_program("tools/reproduce.py")
    assert tool.main([name, "--seeds", "3", "4", "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "5 runs in all: 5 recipes × 1 seed, each recipe counted once" in said
    [line] = [line for line in said.splitlines() if "3.33 min" in line]
    assert line.startswith("twice as long")
    assert " 2 TFLOP " in line
    assert "0.50×" in line
    text = (tmp_path / f"{name}.md").read_text()
    assert "ublished" not in text
    assert "0 (1 missing)" in text
    found = json.loads((tmp_path / f"{name}.json").read_text())["configs"]
    assert [row["name"] for row in found] == [row.label for row in EXPERIMENTS[name].rows]
    assert found[1]["speed_up"] == {"mean": 0.5, "std": None}
    assert (tmp_path / f"{name}.png").exists()


def test_times_measured_alone_stand_beside_those_that_runs_took() -> None:
    made = {label: arm("words_controls", label) for label in ("baseline", "twice as long")}
    seconds = {"Words/SLOWFAST_WORDS": 600.0, "Words/SLOWFAST_WORDS_x2": 1500.0}
    timed = StepTimed(seconds, "times")
    comparison = compare_rows(made, [0], {}, "command", timed)
    *_, baseline, longer = format_comparison(comparison).splitlines()
    assert "10 min  " in baseline
    assert "25 min  " in longer
    assert "0.40×" in longer
    assert [row["step_seconds"] for row in comparison.to_json()["configs"]] == [600, 1500]
