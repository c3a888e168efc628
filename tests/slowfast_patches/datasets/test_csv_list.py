"""Kinetics lists: what parses, where relative paths start, and what is said of a bad line."""

import io
import itertools
import tracemalloc
from pathlib import Path

import pytest

from slowfast_patches.datasets.lists.csv_list import LabelledVideo, read_csv


def write(folder: Path, content: str | bytes, name: str = "train.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_paths_and_labels_in_the_order_of_the_list(tmp_path):
    path = write(tmp_path, "b.mp4 1\na.mp4 0\n\nsub/c.mp4 1\n")
    videos = read_csv(path, num_classes=2)
    assert list(videos) == [
        LabelledVideo(f"{tmp_path}/b.mp4", 1),
        LabelledVideo(f"{tmp_path}/a.mp4", 0),
        LabelledVideo(f"{tmp_path}/sub/c.mp4", 1),
    ]
    assert (len(videos), videos[-1], videos[1:]) == (3, videos[2], [videos[1], videos[2]])


def test_a_list_of_many_lines_is_kept_in_little_more_than_its_bytes(tmp_path):
    path = write(
        tmp_path, "".join(f"class_{n % 300}/{n:020d}.mp4 {n % 300}\n" for n in range(9999))
    )
    tracemalloc.start()
    try:
        videos = read_csv(path, num_classes=300)
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert videos[9998] == (f"{tmp_path}/class_98/{9998:020d}.mp4", 98)
    assert kept < 2 * path.stat().st_size
    assert most < 3 * path.stat().st_size


def test_a_list_that_takes_long_shows_its_progress(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    path = write(tmp_path, "a.mp4 0\nb.mp4 1\n")
    read_csv(path, num_classes=2)
    assert terminal.getvalue() == ""
    seconds = itertools.count(step=10)
    monkeypatch.setattr("tqdm.std.time", lambda: next(seconds))
    read_csv(path, num_classes=2)
    assert "train.csv: 2 lines" in terminal.getvalue()


@pytest.mark.parametrize(
    ("separator", "line", "name"),
    [
        (" ", "a.mp4 3", "a.mp4"),
        (",", "a.mp4,3", "a.mp4"),
        (" ", "my video (1).mp4 3", "my video (1).mp4"),
        ("\t", "a b.mp4\t3", "a b.mp4"),
        (r"\t", "a b.mp4\t3", "a b.mp4"),
        (" ", "日本.mp4 3\r", "日本.mp4"),
    ],
)
def test_the_last_separator_parts_path_and_label(tmp_path, separator, line, name):
    path = write(tmp_path, line + "\n")
    videos = read_csv(path, separator=separator, num_classes=4)
    assert list(videos) == [LabelledVideo(f"{tmp_path}/{name}", 3)]


def test_relative_paths_start_from_the_prefix_and_absolute_ones_stay(tmp_path):
    path = write(tmp_path, "a.mp4 0\n/elsewhere/b.mp4 0\n")
    paths = [video.path for video in read_csv(path, prefix="/videos/", num_classes=1)]
    assert paths == ["/videos/a.mp4", "/elsewhere/b.mp4"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("c.mp4", "is not a path and a label"),
        ("c.mp4\t1", "DATA.PATH_LABEL_SEPARATOR"),
        *((f"c.mp4 {label}", "is not a path and a label") for label in ("-1", "0.0", "x", "²")),
        ("c.mp4 2", r"label 2 is outside MODEL.NUM_CLASSES 2 \(labels run from 0 to 1\)"),
    ],
)
def test_a_bad_line_is_named_by_file_and_line(tmp_path, line, why):
    path = write(tmp_path, f"a.mp4 0\n\n{line}\nb.mp4 1\n")
    with pytest.raises(ValueError, match=f"train.csv, line 3: .*{why}"):
        read_csv(path, num_classes=2)


@pytest.mark.parametrize(
    ("encoding", "why"),
    [
        ("latin1", "line 2: this is not UTF-8; .* iconv -f latin1 -t utf-8"),
        ("utf-16", "line 1: this is UTF-16; .* iconv -f utf-16 -t utf-8"),
    ],
)
def test_a_list_of_another_encoding_is_named_with_the_line(tmp_path, encoding, why):
    path = write(tmp_path, "a.mp4 0\nsmörgås.mp4 1\n".encode(encoding))
    with pytest.raises(ValueError, match=f"train.csv, {why}"):
        read_csv(path, num_classes=2)


def test_an_empty_list_and_a_missing_one_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"train.csv: no videos in the list"):
        read_csv(write(tmp_path, "\n  \n"), num_classes=2)
    with pytest.raises(ValueError, match=r"val.csv: no such file; set DATA.PATH_TO_DATA_DIR"):
        read_csv(tmp_path / "val.csv", num_classes=2)
