"""Tests of frame lists: files, labels, and what makes no difference."""

import pytest

from slowfast_patches.datasets.lists.frame_list import HEADER, read_frame_list

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
