"""Tests of the lists of some words, the experiments' recipes, and the commands that train them."""

import argparse
from pathlib import Path

import experiments
import numpy as np
import pytest
from subset import DIGITS, make_subset

from slowfast_patches.config import load_recipe
from slowfast_patches.datasets.reading import reader

WORDS = ("bin", *sorted(DIGITS))


@pytest.fixture(autouse=True)
def usual_resize(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the reader's resizing, which the import of low_frequency replaces."""
    monkeypatch.setattr(reader, "_resize", reader._resize)


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Make a folder of words with one clip of each word in each split."""
    folder = tmp_path / "words"
    folder.mkdir()
    (folder / "classes.txt").write_text("\n".join(WORDS))
    for split in ("train", "val", "test"):
        lines = [f"clips/{split} {word}.mp4 {label}\n" for label, word in enumerate(WORDS)]
        (folder / f"{split}.csv").write_text("".join(lines))
    return folder


def test_digits_are_the_clips_of_numbers_labelled_by_them(words: Path, tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    make_subset(words, folder)
    for split in ("train", "val", "test"):
        lines = (folder / f"{split}.csv").read_text().splitlines()
        assert f"{words}/clips/{split} seven.mp4 7" in lines
        assert len(lines) == 10
    assert (folder / "classes.txt").read_text().split()[:2] == ["zero", "one"]


@pytest.mark.parametrize("name", experiments.EXPERIMENTS)
def test_every_recipe_of_an_experiment_loads_and_its_command_names_them_all(name: str) -> None:
    found = experiments.EXPERIMENTS[name]
    for recipe in found.recipes:
        load_recipe(recipe)
    args = argparse.Namespace(
        words=Path("w"), digits=Path("d"), faces=Path("f"), demo=Path("m"), seeds=[0, 1, 2]
    )
    args.output = Path("out")
    args.step_times = None
    args.overrides = ["NUM_GPUS", "0"]
    words = experiments.command(name, args)
    assert words.count("--cfg") == len(found.recipes) >= 2
    seeds = ["0", "1", "2"][: found.most_seeds]
    start = words.index("--seeds") + 1
    assert words[start : start + len(seeds)] == seeds
    assert ("DATA.PATH_TO_DATA_DIR" in words) is not found.names_data
    assert words[-2:] == ["NUM_GPUS", "0"]


def test_low_frequency_crops_keep_low_waves_and_remove_high_ones() -> None:
    from low_frequency import low_frequencies

    def wave(side: int, down: int, across: int) -> np.ndarray:
        angles = 2 * np.pi * np.arange(side) / side
        return 100 + 20 * np.outer(np.cos(down * angles + 0.4), np.cos(across * angles))

    high = wave(75, 20, 3) - 100
    np.testing.assert_allclose(low_frequencies(wave(75, 3, 5) + high, 32, 32), wave(32, 3, 5))
