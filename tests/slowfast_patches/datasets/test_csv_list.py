"""Kinetics lists: what parses, where relative paths start, and the message for a bad line."""

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
        (" ", "my video (1).mp4 3", "my video (1).mp4"),
        (r"\t", "a b.mp4\t3", "a b.mp4"),
        (" ", "日本.mp4 3\r", "日本.mp4"),
    ],
)
def test_the_last_separator_parts_path_and_label(tmp_path, separator, line, name):
    videos = read_csv(write(tmp_path, line + "\n"), separator=separator, num_classes=4)
    assert list(videos) == [LabelledVideo(f"{tmp_path}/{name}", 3)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("c.mp4", "is not a path and a label"),
        ("c.mp4\t1", r"separator is '\\t', not ' '.*DATA.PATH_LABEL_SEPARATOR"),
        ("my c.mp4,1", "separator is ',', not ' '"),
        ("c.mp4,short string", "the label after the last ' ', 'string', is not a class number"),
        ("c.mp4,short", "the separator ' ' is not between a path and a label"),
        *((f"c.mp4 {label}", "is not a path and a label") for label in ("-1", "0.0", "²")),
        ("c.mp4 2", "label 2 is outside MODEL.NUM_CLASSES 2"),
    ],
)
def test_a_bad_line_is_named_by_file_and_line(tmp_path, line, message):
    path = write(tmp_path, f"a.mp4 0\n\n{line}\nb.mp4 1\n")
    with pytest.raises(ValueError, match=f"train.csv, line 3: .*{message}"):
        read_csv(path, num_classes=2)


@pytest.mark.parametrize(("encoding", "line"), [("latin1", 2), ("utf-16", 1)])
def test_a_list_of_another_encoding_is_to_be_converted(tmp_path, encoding, line):
    path = write(tmp_path, "a.mp4 0\nsmörgås.mp4 1\n".encode(encoding))
    with pytest.raises(ValueError, match=f"train.csv, line {line}: .* iconv -f {encoding} -t utf"):
        read_csv(path, num_classes=2)


def test_an_empty_list_and_a_missing_one_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"train.csv: no videos in the list"):
        read_csv(write(tmp_path, "\n  \n"), num_classes=2)
    with pytest.raises(ValueError, match=r"val.csv: no such file; set DATA.PATH_TO_DATA_DIR"):
        read_csv(tmp_path / "val.csv", num_classes=2)
