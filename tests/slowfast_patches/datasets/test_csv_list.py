"""Tests of Kinetics lists: valid lines, relative paths, and the messages for bad lines."""

import pytest

from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.datasets.lists.csv_list import LabelledVideo, read_csv
from slowfast_patches.datasets.lists.dataset_lists import class_names, count_list, read_list


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
        # Quotes are removed in pairs, from each field.
        (" ", "'til_dawn.mp4 3", "'til_dawn.mp4"),
        (" ", "'rock'n'roll' 3", "'rock'n'roll'"),
        (" ", "dogs'.mp4 '3'", "dogs'.mp4"),
        (" ", '"a.mp4 3', '"a.mp4'),
        # A no-break space and a line separator of Unicode are part of a path.
        (" ", "\xa0a\xa0b.mp4 3", "\xa0a\xa0b.mp4"),
        (" ", "a\u2028b.mp4 3", "a\u2028b.mp4"),
        (",", "\ta.mp4 ,3 ", "a.mp4"),
    ],
)
def test_the_last_separator_parts_path_and_label(tmp_path, separator, line, name):
    videos = read_csv(write(tmp_path, line + "\n"), separator=separator, num_classes=4)
    assert list(videos) == [LabelledVideo(f"{tmp_path}/{name}", 3)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\r\r", "\n\n"])
def test_lines_may_end_as_on_any_system(tmp_path, end):
    videos = read_csv(write(tmp_path, f"a b.mp4 1{end}c.mp4 0{end}"))
    assert list(videos) == [(f"{tmp_path}/a b.mp4", 1), (f"{tmp_path}/c.mp4", 0)]
    with pytest.raises(ValueError, match=r"line [23]: .* is not a path and a label"):
        read_csv(write(tmp_path, f"a.mp4 1{end}c.mp4{end}"))


def test_a_column_with_the_number_of_frames_is_named(tmp_path):
    """TSN and mmaction2 list folders of frames so: folder, number of frames, label."""
    (tmp_path / "v_Archery_g01").mkdir()
    for line, separator in (("v_Archery_g01 120 5", " "), ("v_Archery_g01,120,5", ",")):
        with pytest.raises(ValueError, match=r"a folder and a number.*remove the number of frames"):
            read_csv(write(tmp_path, line), separator=separator)
    (tmp_path / "v_Archery_g01 120").mkdir()  # a folder may have such a name
    assert len(read_csv(write(tmp_path, "v_Archery_g01 120 5"))) == 1


@pytest.mark.parametrize("separator", ["", "a", "0", "\n", "é"])
def test_a_separator_that_cannot_separate_is_refused(tmp_path, separator):
    with pytest.raises(ValueError, match="cannot separate a path from a label"):
        read_csv(write(tmp_path, "a.mp4 0"), separator=separator)


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


def test_without_a_data_folder_the_current_folder_has_no_lists(tmp_path, monkeypatch):
    (tmp_path / "train.csv").write_text("a.mp4 0\n")
    (tmp_path / "classes.json").write_text('{"a": 0}')
    monkeypatch.chdir(tmp_path)
    unset = default_recipe().replaced({"MODEL.NUM_CLASSES": 2})
    assert count_list(unset, "train") is None
    assert class_names(unset) is None
    with pytest.raises(ValueError, match=r"DATA\.PATH_TO_DATA_DIR is not set"):
        read_list(unset, "train")
    assert count_list(unset.replaced({"DATA.PATH_TO_DATA_DIR": "."}), "train") == 1
