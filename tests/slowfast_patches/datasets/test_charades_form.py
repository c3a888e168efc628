"""The demo data set in the form of Charades: the same videos, two an item."""

import cv2

from slowfast_patches.datasets.demo.synthetic import CLASSES
from slowfast_patches.datasets.lists.csv_list import read_csv
from slowfast_patches.datasets.lists.frame_list import read_frame_list
from tests.slowfast_patches.datasets.charades_form import write_charades_form


def test_items_are_two_videos_of_different_classes_and_stay(demo_data, tmp_path, monkeypatch):
    write_charades_form(demo_data, tmp_path)
    monkeypatch.setattr(cv2, "imwrite", None)  # nothing is written again
    write_charades_form(demo_data, tmp_path)
    videos = read_frame_list(tmp_path / "train.csv", num_classes=8, fps=30.0)
    firsts = [video.label for video in read_csv(demo_data / "train.csv", num_classes=8)]
    pairs = set()
    for video, label in zip(videos, firsts, strict=True):
        (end, (one,)), (last, (other,)) = video.runs
        assert (end, last, one) == (20, 40, label)
        assert one != other
        pairs.add((one, other))
    assert len(pairs) == 24  # no pair of classes twice, but for the order
    assert cv2.imread(videos[3].files[39]).shape == (40, 48, 3)
    names = (tmp_path / "Charades_v1_classes.txt").read_text().split()
    assert (names[0], names[1::2]) == ("c000", list(CLASSES))
