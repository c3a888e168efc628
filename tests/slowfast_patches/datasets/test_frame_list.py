"""Tests of frame lists: files, labels, and what makes no difference."""

import pytest

from slowfast_patches.datasets.lists.frame_list import HEADER, read_frame_list
from slowfast_patches.datasets.reading.scanned_video import Kind
from tests.slowfast_patches.datasets.made_videos import write_jpeg

TWO_VIDEOS = f"""{HEADER}
46GP8 0 0 46GP8/46GP8-000001.jpg ""
46GP8 0 1 46GP8/46GP8-000002.jpg ""
46GP8 0 2 46GP8/46GP8-000003.jpg "92,147"
46GP8 0 3 46GP8/46GP8-000004.jpg "92,147"
46GP8 0 4 46GP8/46GP8-000005.jpg "147"
N11GT 1 0 N11GT/N11GT-000001.jpg "5"
N11GT 1 1 N11GT/N11GT-000002.jpg ""
"""


def read(folder, text, **options):
    path = folder / "train.csv"
    path.write_bytes(text.encode())
    return read_frame_list(path, num_classes=157, fps=24.0, **options)


def test_videos_with_their_files_and_labels_in_the_order_of_the_list(tmp_path):
    one, other = read(tmp_path, TWO_VIDEOS)
    assert (one.name, other.name) == ("46GP8", "N11GT")
    assert one.files == tuple(f"{tmp_path}/46GP8/46GP8-00000{n}.jpg" for n in range(1, 6))
    assert one.labels == ((), (), (92, 147), (92, 147), (147,))
    assert (one.path, one.fps) == (f"{tmp_path}/46GP8", 24.0)
    assert other.labels == ((5,), ())
    assert (one.classes(), one.classes(3, 4), one.classes(0, 1)) == ({92, 147}, {92, 147}, set())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("vido", "video"),
        ("\n", "\r\n"),
        ("\n", "\r"),
        ("original", "\n \noriginal"),
        ("\n", "\n\n  \n"),
        ('"', ""),
        ("original", "\ufefforiginal"),
    ],
)
def test_what_makes_no_difference(tmp_path, old, new):
    text = TWO_VIDEOS.replace('""', "~").replace(old, new).replace("~", '""')
    assert list(read(tmp_path, text)) == list(read(tmp_path, TWO_VIDEOS))


def test_spaces_of_unicode_are_part_of_a_path(tmp_path):
    name = "46GP8/Capture\xa0d'écran\u2003.jpg"
    one, _ = read(tmp_path, TWO_VIDEOS.replace("46GP8/46GP8-000001.jpg", name))
    assert one.files[0] == f"{tmp_path}/{name}"


def test_a_list_takes_a_few_bytes_a_frame(tmp_path):
    lines = [f'{v} 0 {f} {v}/{v}_{f:06}.jpg "{v % 9}"' for v in range(200) for f in range(100)]
    frames = read(tmp_path, "\n".join([HEADER, *lines]))
    assert len(frames._data) < 7 * 200 * 100
    assert frames[150].files[42] == f"{tmp_path}/150/150_000042.jpg"
    assert frames[150].classes() == {6}


@pytest.mark.parametrize("text", [HEADER, f"{HEADER}\n  \n"])
def test_a_list_without_frames_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match=r"train\.csv contains no frames"):
        read(tmp_path, text)
    with pytest.raises(ValueError, match=r"does not exist\. Set DATA\.PATH"):
        read_frame_list(tmp_path / "none.csv", num_classes=3, fps=30)


def test_a_video_has_the_size_of_its_first_frame_and_the_label_of_the_list(tmp_path):
    for number, width in ((0, 64), (1, 80)):
        write_jpeg(tmp_path / f"a{number}.jpg", width, 48)
    (video,) = read(tmp_path, f'{HEADER}\na 0 3 a0.jpg "7"\na 0 5 a1.jpg "7"\n')
    record = video.scanned()
    assert record.kind == Kind.FRAMES
    assert record.video == (2, 24.0, 64, 48, None)
    assert record.files == (f"{tmp_path}/a0.jpg", f"{tmp_path}/a1.jpg")
    assert (video.label, video.annotation) == (7, "((7,), (7,))")


@pytest.mark.parametrize("ids", [(3, 3), (5, 3), (0, 2, 1), (1, 0, 2)])
def test_frame_ids_must_increase(tmp_path, ids):
    lines = "".join(f'a 0 {number} {place}.jpg ""\n' for place, number in enumerate(ids))
    with pytest.raises(ValueError, match="video a: the frame ids are not in ascending order"):
        read(tmp_path, f"{HEADER}\n{lines}")


@pytest.mark.parametrize(("number", "labels"), [("x", '""'), ("1", '"a"'), ("1.5", '""')])
def test_frame_ids_and_labels_are_whole_numbers(tmp_path, number, labels):
    with pytest.raises(ValueError, match="video a: a frame id or a label is not a whole number"):
        read(tmp_path, f"{HEADER}\na 0 {number} 1.jpg {labels}\n")
