"""The demo data set in the form of Charades: the same videos, two an item."""

import cv2
import pytest

from slowfast_patches.datasets.demo.charades_form import write_charades_form
from slowfast_patches.datasets.demo.synthetic import CLASSES
from slowfast_patches.datasets.lists.csv_list import read_csv
from slowfast_patches.datasets.lists.frame_list import read_frame_list


def test_items_are_two_videos_of_different_classes_and_stay(demo_data, tmp_path, monkeypatch):
    out = tmp_path / "charades"
    write_charades_form(demo_data, out)
    videos = read_frame_list(out / "train.csv", num_classes=8, fps=30.0)
    pairs = {tuple(run.labels for run in video.runs) for video in videos}
    assert len(pairs) == len(videos) == 24  # no pair of classes twice, but for the order
    assert all(len(one) == len(other) == 1 and one != other for one, other in pairs)
    assert {run.end for video in videos for run in video.runs} == {20, 40}
    labels = [video.label for video in read_csv(demo_data / "train.csv", num_classes=8)]
    assert [video.runs[0].labels[0] for video in videos] == labels
    assert cv2.imread(videos[3].files[39]).shape == (40, 48, 3)
    names = (out / "Charades_v1_classes.txt").read_text().splitlines()
    assert names == [f"c{number:03d} {name}" for number, name in enumerate(CLASSES)]

    monkeypatch.setattr(cv2, "imwrite", lambda *_: pytest.fail("written again"))
    write_charades_form(demo_data, out)
