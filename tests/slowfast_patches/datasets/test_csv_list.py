"""Tests of Kinetics lists: valid lines, relative paths, and the messages for bad lines."""

import pytest

from slowfast_patches.datasets.lists.csv_list import LabelledVideo, read_csv


def write(folder, content):
    path = folder / "train.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_paths_and_labels_in_the_order_of_the_list(tmp_path):
    videos = read_csv(write(tmp_path, "b.mp4 1\na.mp4 0\n\n/elsewhere/c.mp4 1\n"), num_classes=2)
    expected = [
        LabelledVideo(f"{tmp_path}/b.mp4", 1),
        LabelledVideo(f"{tmp_path}/a.mp4", 0),
        LabelledVideo("/elsewhere/c.mp4", 1),
    ]
    assert list(videos) == expected
    assert (len(videos), videos[-1], videos[1:]) == (3, expected[2], expected[1:])
    moved = read_csv(tmp_path / "train.csv", prefix="/videos/")
    assert [video.path for video in moved][1:] == ["/videos/a.mp4", "/elsewhere/c.mp4"]


@pytest.mark.parametrize(
    ("separator", "line", "name"),
    [
        (",", "a.mp4,3", "a.mp4"),
        (r"\t", "a b.mp4\t3", "a b.mp4"),
        (" ", "日本.mp4 3\r", "日本.mp4"),
        (" ", '"my video.mp4" 3', "my video.mp4"),
        (",", "'a, b.mp4', '3'", "a, b.mp4"),
        (" ", "clip 12 3", "clip 12"),
    ],
)
def test_the_last_separator_parts_path_and_label(tmp_path, separator, line, name):
    videos = read_csv(write(tmp_path, line + "\n"), separator=separator, num_classes=4)
    assert list(videos) == [LabelledVideo(f"{tmp_path}/{name}", 3)]


@pytest.mark.parametrize(
    ("labels", "classes", "advice"),
    [
        ((1, 2, 3), 3, "line 3: the label is 3, .*subtract 1 from each .* MODEL.NUM_CLASSES 3"),
        ((0, 9, 4), 8, "line 2: the label is 9, .*Correct the label, or set MODEL.NUM_CLASSES 10"),
    ],
)
def test_the_advice_on_a_label_out_of_range_fits_the_whole_list(tmp_path, labels, classes, advice):
    lines = "".join(f"{number}.mp4 {label}\n" for number, label in enumerate(labels))
    with pytest.raises(ValueError, match=advice):
        read_csv(write(tmp_path, lines), num_classes=classes)
