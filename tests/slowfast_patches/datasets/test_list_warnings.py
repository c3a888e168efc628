"""What is said of a list that parses and is odd, and that it is said once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.csv_list import read_csv
from slowfast_patches.datasets.lists.list_warnings import (
    repeated_videos,
)
from slowfast_patches.train import run as run_module


def read(folder: Path, text: str):
    path = folder / "train.csv"
    path.write_text(text)
    return path, read_csv(path, num_classes=9)


def test_repeated_videos_are_named_with_their_lines_and_labels(tmp_path):
    path, videos = read(tmp_path, "a.mp4 0\n\nb.mp4 1\nc.mp4 2\na.mp4 0\nb.mp4 3\na.mp4 0\n")
    same, differing = repeated_videos(path, videos)
    assert same.startswith(f"{path}: 1 video(s) are listed more than once with one label")
    assert same.endswith(f": {tmp_path}/a.mp4 in lines 1, 5 and 7")
    assert differing.startswith(f"{path}: 1 video(s) are listed with different labels")
    assert differing.endswith(f": {tmp_path}/b.mp4 in lines 3 (label 1) and 6 (label 3)")


@pytest.mark.parametrize(("rank", "times"), [("0", 1), ("1", 0)])
def test_of_two_processes_one_says_it(
    demo_data: Path,
    tiny_config: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    rank: str,
    times: int,
):
    lines = (demo_data / "val.csv").read_text().splitlines()
    repeated = "\n".join([*lines, lines[2]])
    for split in ("val", "train"):
        (tmp_path / f"{split}.csv").write_text(repeated)
    cfg = tiny_config(tmp_path / "run", "DATA.PATH_TO_DATA_DIR", tmp_path, "MODEL.NUM_CLASSES", 9)
    cfg = cfg.replaced({"DATA.PATH_PREFIX": str(demo_data)})
    for key, value in (("WORLD_SIZE", "2"), ("GROUP_WORLD_SIZE", "1"), ("RANK", rank)):
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    for split in ("train", "val"):
        assert run_module._count_videos(cfg, split) == len(lines) + 1
    said = [record.getMessage() for record in caplog.records]
    assert sum("in lines 3 and 9" in text for text in said) == 2 * times
    assert sum("1 of MODEL.NUM_CLASSES 9 classes" in text for text in said) == times
