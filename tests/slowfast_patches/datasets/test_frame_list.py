"""Frame lists: what parses, the message for a bad line, and that the listed files are read."""

import os
import zlib
from pathlib import Path

import numpy as np
import pytest

from multigrid import ClipPlan, Video
from slowfast_patches.datasets.lists.frame_list import (
    HEADER,
    FrameVideo,
    LabelledFrames,
    read_frame_list,
)
from slowfast_patches.datasets.reading.clip_reader import read_clip
from slowfast_patches.datasets.reading.files import jpeg_size
from slowfast_patches.datasets.reading.limits import ReadingLimits
from slowfast_patches.datasets.reading.shared_list import SharedList
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError
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
compress = zlib.compress


def read(folder: Path, text: str | bytes, **options: str) -> SharedList[FrameVideo]:
    path = folder / "train.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_frame_list(path, num_classes=157, fps=24.0, **options)


# What parses.


def test_videos_with_their_files_and_labels_in_the_order_of_the_list(tmp_path):
    one, other = read(tmp_path, TWO_VIDEOS)
    assert (one.name, other.name) == ("46GP8", "N11GT")
    assert one.files == tuple(f"{tmp_path}/46GP8/46GP8-00000{n}.jpg" for n in range(1, 6))
    assert one.runs == (
        LabelledFrames(2, ()),
        LabelledFrames(4, (92, 147)),
        LabelledFrames(5, (147,)),
    )
    assert (one.path, one.fps) == (f"{tmp_path}/46GP8", 24.0)
    assert other.runs == (LabelledFrames(1, (5,)), LabelledFrames(2, ()))


@pytest.mark.parametrize(
    "text",
    [
        TWO_VIDEOS.replace("vido", "video", 1),
        TWO_VIDEOS.replace("\n", "\r\n"),
        "\n" + TWO_VIDEOS.replace("\n", "\n\n  \n").rstrip(),
        TWO_VIDEOS.replace('"92,147"', "92,147").replace('"5"', "5"),
        b"\xef\xbb\xbf" + TWO_VIDEOS.encode(),
    ],
    ids=["spelling", "crlf", "blank", "unquoted", "mark"],
)
def test_what_makes_no_difference(tmp_path, text):
    assert list(read(tmp_path, text)) == list(read(tmp_path, TWO_VIDEOS))


def test_relative_paths_start_from_the_prefix_and_absolute_ones_stay(tmp_path):
    text = f'{HEADER}\nä 0 0 ä/1.jpg ""\nä 0 1 /elsewhere/2.jpg ""\n'
    assert read(tmp_path, text, prefix="jpg/")[0].files == ("jpg/ä/1.jpg", "/elsewhere/2.jpg")
    assert read(tmp_path, text)[0].name == "ä"


def test_a_list_takes_a_few_bytes_a_frame(tmp_path):
    lines = (
        f'{v} {v} {f} {v}/{v}_{f + 1:06d}.jpg "{v % 9}"\n' for v in range(200) for f in range(100)
    )
    frames = read(tmp_path, f"{HEADER}\n{''.join(lines)}")
    assert len(frames._data) < 6 * 200 * 100
    assert frames[150].files[42] == f"{tmp_path}/150/150_000043.jpg"
    assert frames[150].classes() == {6}


def test_a_list_is_parsed_once_and_again_when_it_has_changed(tmp_path, monkeypatch):
    first, parsed = list(read(tmp_path, TWO_VIDEOS)), list[bytes]()
    monkeypatch.setattr(zlib, "compress", lambda *a: parsed.append(a[0]) or compress(*a))
    path = tmp_path / "train.csv"
    assert list(read_frame_list(path, num_classes=157, fps=24.0)) == first
    assert parsed == []
    path.write_text(TWO_VIDEOS.replace('"5"', '"6"'))
    changed = read_frame_list(path, num_classes=157, fps=24.0)
    assert changed[1].classes() == {6}
    assert changed[0] == first[0]


# Bad lists.


@pytest.mark.parametrize(
    ("number", "line", "why"),
    [
        (4, "46GP8 0 2 46GP8/3.jpg", "video 46GP8: .* the 5 fields of 'original_vido_id"),
        (8, '46GP8 0 5 46GP8/6.jpg ""', "video 46GP8: its lines are not consecutive"),
        (4, '46GP8 0 1 46GP8/3.jpg ""', "video 46GP8: its frame ids do not ascend"),
        (5, '46GP8 0 3.5 46GP8/3.jpg ""', "video 46GP8: .*3.5"),
        (4, '46GP8 0 2 46GP8/3.jpg "92;147"', "video 46GP8: .*92;147"),
        (4, '46GP8 0 2 46GP8/3.jpg "-1"', "label -1 is outside"),
        (7, 'N11GT 1 0 x.jpg "4,157"', "video N11GT: label 157 is outside MODEL.NUM_CLASSES 157"),
        (1, 'a 0 0 a/1.jpg ""', f"the first line .*'{HEADER}'"),
        (1, HEADER.replace(" ", ","), f"the first line .*'{HEADER}'"),
    ],
)
def test_a_bad_line_is_named_by_file_and_video(tmp_path, number, line, why):
    lines = TWO_VIDEOS.splitlines()
    lines[number - 1] = line
    with pytest.raises(ValueError, match=rf"train.csv.*{why}"):
        read(tmp_path, "\n".join(lines))


def test_a_missing_list_one_without_frames_and_one_in_utf_16_are_refused(tmp_path):
    for content, why in ((f"{HEADER}\n\n", "no frames"), (TWO_VIDEOS.encode("utf-16"), "utf-16")):
        with pytest.raises(ValueError, match=f"train.csv.*: .*{why}"):
            read(tmp_path, content)
    with pytest.raises(ValueError, match=r"val.csv: no such file; set DATA.PATH_TO_DATA_DIR"):
        read_frame_list(tmp_path / "val.csv", num_classes=2, fps=30.0)


# Reading.


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """0.jpg to 9.jpg, each a grey of 20 times its number, of 96 × 64 pixels."""
    folder = tmp_path_factory.mktemp("frames")
    for number in range(10):
        write_jpeg(folder / f"{number}.jpg", 96, 64, 20 * number)
    return folder


def video_of(*files: Path) -> FrameVideo:
    packed = zlib.compress("\n".join(map(str, files)).encode())
    return FrameVideo("a", "", packed, (LabelledFrames(len(files), (0,)),), 25.0)


def plan(*positions: int) -> ClipPlan:
    return ClipPlan(np.array(positions), (96, 64), (0, 0), 64, False)


def test_exactly_the_listed_files_are_read_in_the_order_of_the_list(frames, tmp_path):
    (tmp_path / "other.jpg").symlink_to(frames / "9.jpg")
    files = [frames / "4.jpg", frames / "2.jpg", tmp_path / "other.jpg", frames / "0.jpg"]
    record = video_of(*files).record()
    assert (record.kind, record.video) == (Kind.FRAMES, Video(4, 25.0, 96, 64))
    clip = read_clip("nowhere", record, plan(0, 1, 1, 2, 3, 7))
    assert clip[:, 32, 32, 0].tolist() == [80, 40, 40, 180, 0, 0]


def test_a_listed_frame_that_cannot_be_read_is_named(frames, tmp_path):
    reasons = {
        "gone": "cannot be opened: No such file",
        "text": "is not a JPEG",
        "cut": "is not a whole JPEG",
        "fifo": "cannot be opened: is not a regular file",
    }
    paths = {name: tmp_path / f"{name}.jpg" for name in reasons}
    paths["text"].write_text("no picture")
    paths["cut"].write_bytes((frames / "3.jpg").read_bytes()[:-100])
    os.mkfifo(paths["fifo"])
    for name, path in paths.items():
        record = video_of(frames / "1.jpg", path).record()
        with pytest.raises(UnreadableVideoError, match=f"{name}.jpg {reasons[name]}"):
            read_clip("", record, plan(0, 1))
        if name == "cut":
            assert video_of(path).record().video.frames == 1  # its head is whole
            continue
        with pytest.raises(UnreadableVideoError, match=f"{name}.jpg {reasons[name]}"):
            video_of(path).record()


def test_damaged_heads_give_a_size_or_an_error(frames, tmp_path):
    whole, path = (frames / "3.jpg").read_bytes(), tmp_path / "damaged.jpg"
    messages, sizes = set(), set()
    for case in range(100):
        rng = np.random.default_rng(case)
        data = bytearray(whole[: rng.integers(1, len(whole))] if case % 4 == 0 else whole)
        for position in rng.integers(0, min(700, len(data)), 8):
            data[position] = rng.integers(256)
        path.write_bytes(data)
        try:
            sizes.add(jpeg_size(str(tmp_path), path.name, limits=ReadingLimits(pixels=1 << 32)))
        except UnreadableVideoError as error:
            messages.add(str(error))
    assert messages == {"cannot be decoded: damaged.jpg is not a JPEG"}
    assert (96, 64) in sizes
    assert all(min(size) > 0 for size in sizes)
