"""Tests of Kinetics lists: valid lines, relative paths, and the messages for bad lines."""

import pytest

from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.datasets.lists import csv_list
from slowfast_patches.datasets.lists.csv_list import LabelledVideo, read_csv, split_line
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


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("a.mp4 123456789", ("a.mp4", 123456789)),
        ("a.mp4 1234567890", None),  # longer than any class index
        ("a.mp4 ²", None),
        ("a.mp4 ", None),
        (" 3", None),
        ("a.mp4 -1", None),
        ("'' 3", ("''", 3)),
        ("'a' 3", ("a", 3)),
    ],
)
def test_a_class_index_has_up_to_nine_digits_and_a_path_at_least_one_character(line, found):
    if found:
        assert split_line(line, " ") == found
        return
    with pytest.raises(ValueError, match="is not a path and a label"):
        split_line(line, " ")


def test_a_labelled_video_has_its_label_on_all_frames_and_as_text():
    video = LabelledVideo("a.mp4", 3)
    assert (video.annotation, video.classes(), video.classes(7, 9)) == ("3", {3}, {3})


@pytest.mark.parametrize("name", ["train", "test"])
def test_a_missing_list_is_named_and_a_test_may_be_left_out(tmp_path, name):
    with pytest.raises(ValueError, match=r"does not exist\. Set DATA\.PATH") as caught:
        read_csv(tmp_path / f"{name}.csv")
    assert ("TEST.ENABLE False" in str(caught.value)) == (name == "test")


def test_the_line_that_is_not_utf_8_is_counted_from_the_first(tmp_path):
    for before, line in ((b"", 1), (b"a.mp4 0\n", 2), (b"a.mp4 0\n\n", 3)):
        with pytest.raises(ValueError, match=f"line {line}: the text is not UTF-8"):
            read_csv(write(tmp_path, before + b"\xff.mp4 1\n\n"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("~/a.mp4", "Write the whole path"),
        ("$DATA/a.mp4", "Write the whole path"),
        ("D:/a.mp4", "not a path on this machine"),
        ("videos.zip/a.mp4", "in an archive"),
        ("S3://x/a.mp4", "is an address"),
        ("a.mp4 train", "more than two columns"),
    ],
)
def test_a_path_that_leads_nowhere_is_explained_unless_there_is_such_a_file(tmp_path, name, said):
    with pytest.raises(ValueError, match=f"line 1: .*{said}"):
        read_csv(write(tmp_path, f"{name} 0"))
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    assert list(read_csv(write(tmp_path, f"{name} 0"))) == [(str(tmp_path / name), 0)]


def test_a_folder_and_a_number_are_named_in_a_bucket_as_well(tmp_path, monkeypatch):
    class Remote(type(tmp_path)):
        """Path of a bucket with a single folder."""

        def is_dir(self) -> bool:
            return self.name == "v_Archery"

        def exists(self) -> bool:
            return self.is_dir()

    monkeypatch.setattr(csv_list, "is_remote", lambda path: path.startswith("s3:"))
    monkeypatch.setattr(csv_list, "as_path", Remote)
    monkeypatch.setattr(csv_list, "join", lambda folder, name: f"s3:/{name}")
    path = write(tmp_path, "v_Archery 120 5")
    with pytest.raises(ValueError, match="remove the number of frames"):
        read_csv(path)
    assert len(read_csv(write(tmp_path, "other 120 5"))) == 1
    with pytest.raises(ValueError, match="not a path on this machine"):
        read_csv(write(tmp_path, r"D:\a.mp4 5"))
    assert len(read_csv(write(tmp_path, r"D:\v_Archery/v_Archery 5"))) == 1


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
