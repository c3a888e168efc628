"""Reading clips: the frames asked for, the pixels asked for, and what is said of a bad file."""

import os
import wave
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from multigrid import ClipPlan, Shape, Video, make_grid, plan_test, plan_train
from slowfast_patches.datasets.clip_reader import ClipReader, UnreadableVideoError

SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "samples"
FRAMES, WIDTH, HEIGHT = 60, 64, 48
BITS, STRIPE = 6, 8
"""A frame shows its number in binary, in white and black stripes of so many pixels."""


def write_video(
    path: Path, frames: list[NDArray[np.uint8]], *, codec: str = "libx264", fps: int = 30
) -> Path:
    """A video of (H, W, 3) frames with a key frame in every twelve."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=Fraction(fps))
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.gop_size, stream.bit_rate = "yuv420p", 12, 4_000_000
        if codec == "libx264":
            stream.options = {"crf": "4"}
        for image in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    return path


def numbered(frames: int = FRAMES) -> list[NDArray[np.uint8]]:
    images = np.zeros((frames, HEIGHT, WIDTH, 3), np.uint8)
    for number, image in enumerate(images):
        for bit in range(BITS):
            image[:, bit * STRIPE : (bit + 1) * STRIPE] = 255 * (number >> bit & 1)
    return list(images)


def numbers(clip: NDArray[np.uint8]) -> list[int]:
    """The numbers of the frames of a clip."""
    assert clip.shape[1:] == (HEIGHT, HEIGHT, 3)
    stripes = clip.reshape(len(clip), HEIGHT, BITS, STRIPE, 3).mean((1, 3, 4))
    return [sum(int(level > 127) << bit for bit, level in enumerate(row)) for row in stripes]


def plan(positions: list[int]) -> ClipPlan:
    return ClipPlan(np.array(positions), (WIDTH, HEIGHT), (0, 0), HEIGHT, False)


def read(path: Path, positions: list[int]) -> list[int]:
    with ClipReader(str(path)) as reader:
        return numbers(reader.read(plan(positions)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("videos")


@pytest.fixture(scope="module")
def video(folder: Path) -> Path:
    return write_video(folder / "numbered.mp4", numbered())


# Which frames.


def test_a_reader_says_what_the_video_is(video):
    with ClipReader(str(video)) as reader:
        assert reader.video == Video(frames=60, fps=30.0, width=64, height=48)


positions = st.lists(st.integers(0, FRAMES - 1), min_size=1, max_size=8).map(sorted)


@settings(max_examples=40, deadline=None)
@given(positions=positions)
def test_the_frames_asked_for_are_read(video, positions):
    assert read(video, positions) == positions


@settings(max_examples=15, deadline=None)
@given(clips=st.lists(positions, min_size=2, max_size=4))
def test_a_reader_reads_clip_after_clip(video, clips):
    with ClipReader(str(video)) as reader:
        assert [numbers(reader.read(plan(clip))) for clip in clips] == clips


@pytest.mark.parametrize(("name", "codec"), [("a.mkv", "libx264"), ("a.avi", "mpeg4")])
def test_other_containers_and_codecs_give_the_frames_asked_for(folder, name, codec):
    path = write_video(folder / name, numbered(), codec=codec)
    with ClipReader(str(path)) as reader:
        assert reader.video == Video(frames=60, fps=30.0, width=64, height=48)
    for first in (0, 1, 11, 12, 13, 30, 57):
        wanted = [first, first, first + 2]
        assert read(path, wanted) == wanted


def test_beyond_the_end_the_last_frame_is_repeated(video):
    assert read(video, [58, 59, 65, 90]) == [58, 59, 59, 59]
    assert read(video, [70, 80]) == [59, 59]


def test_strides_count_in_the_target_rate(folder):
    path = write_video(folder / "25fps.mp4", numbered(50), fps=25)
    with ClipReader(str(path)) as reader:
        assert reader.video.fps == 25.0
        # 8 frames of stride 6 at 30 fps are 48 / 30 s, 40 frames at 25 fps, from 5 to 44.
        clip = plan_test(reader.video, frames=8, stride=6, crop=48, target_fps=30.0)
        assert clip.positions.tolist() == [5, 10, 16, 21, 27, 32, 38, 44]
        assert numbers(reader.read(plan(clip.positions.tolist()))) == clip.positions.tolist()


def test_threads_change_nothing(video):
    with ClipReader(str(video), threads=0) as reader:
        assert numbers(reader.read(plan([7, 31, 59]))) == [7, 31, 59]


# Which pixels.


@pytest.mark.parametrize("scale", [1, 2])
def test_the_crop_is_cut_at_its_corner_from_the_resized_frame(folder, scale):
    """Red says the column and green the row."""
    columns, rows = np.meshgrid(4 * np.arange(WIDTH), 4 * np.arange(HEIGHT))
    image = np.stack([columns, rows, np.full_like(rows, 128)], axis=2).astype(np.uint8)
    path = write_video(folder / "places.mp4", [image] * 3)
    x, y, crop = 10 * scale, 20 * scale, 16 * scale
    size = (WIDTH * scale, HEIGHT * scale)
    with ClipReader(str(path)) as reader:
        clip = reader.read(ClipPlan(np.array([0, 2]), size, (x, y), crop, flip=True))
    assert clip.shape == (2, crop, crop, 3)
    assert clip.dtype == np.uint8
    # From pixel 10 to 25 and 20 to 35 of the file, not flipped: that is done on the device.
    red, green = clip[1, :, :, 0].mean(0) / 4, clip[1, :, :, 1].mean(1) / 4
    assert red[[0, -1]] == pytest.approx([10, 25], abs=1.5)
    assert green[[0, -1]] == pytest.approx([20, 35], abs=1.5)
    assert all(b > a for a, b in pairwise(red[::4]))


# Files that cannot be read.


def bad_file(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.mp4"
    if kind == "directory":
        path.mkdir(exist_ok=True)
    elif kind == "empty":
        path.touch()
    elif kind == "text":
        path.write_text("this is no video\n" * 100)
    elif kind == "truncated":
        whole = write_video(folder / "whole.mp4", numbered())
        path.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    elif kind == "sound":
        with wave.open(str(path), "wb") as sound:
            sound.setparams((1, 2, 8000, 0, "NONE", ""))
            sound.writeframes(bytes(16000))
    return path


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "cannot be opened: .*No such file"),
        ("empty", "cannot be opened: .*Invalid data"),
        ("text", "cannot be opened: .*Invalid data"),
        ("truncated", "cannot be opened: .*Invalid data"),
        ("directory", "cannot be opened: .*[Dd]irectory"),
        ("sound", "has no video stream"),
    ],
)
def test_a_file_that_is_no_video_is_refused_with_the_reason(folder, kind, reason):
    with pytest.raises(UnreadableVideoError, match=reason):
        ClipReader(str(bad_file(folder, kind)))


def test_a_video_that_is_damaged_inside_is_refused_when_read(folder, video):
    content = bytearray(video.read_bytes())
    start, stop = content.index(b"mdat") + 4, content.index(b"moov") - 4
    content[start:stop] = bytes(stop - start)
    path = folder / "damaged.mp4"
    path.write_bytes(content)
    with ClipReader(str(path)) as reader, pytest.raises(UnreadableVideoError, match="decode"):
        reader.read(plan(list(range(FRAMES))))


def test_no_file_stays_open(folder, video):
    text = bad_file(folder, "text")
    sound = bad_file(folder, "sound")

    def read_everything() -> int:
        for _ in range(50):
            read(video, [3, 40])
            for path in (text, sound):
                with pytest.raises(UnreadableVideoError):
                    ClipReader(str(path))
        return len(os.listdir("/dev/fd"))

    before = len(os.listdir("/dev/fd"))
    assert read_everything() == before


# Real files.

DECODABLE = sorted(p for p in SAMPLES.glob("*") if p.stem != "corrupted")
BLANK = {"unordered_pts.mov"}  # shows a white wall
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="shared/data/samples is absent")


@needs_samples
@pytest.mark.parametrize("path", DECODABLE, ids=lambda path: path.name)
def test_every_sample_is_read_on_a_coarse_and_on_the_fine_grid(path):
    base = Shape(1, 8, 96)
    for shape in (Shape(8, 2, 48), base):
        grid = make_grid(shape, base, stride=2, short_sides=(96, 128))
        with ClipReader(str(path)) as reader:
            clip = reader.read(plan_train(np.random.default_rng(0), grid, reader.video))
        assert clip.shape == (shape.frames, shape.crop, shape.crop, 3)
        assert clip.dtype == np.uint8
        assert all(image.std() > 1 for image in clip) == (path.name not in BLANK)


@needs_samples
@pytest.mark.parametrize(
    "name",
    ["ucf11_biking_mpeg1.mpg", "kinetics_pancake_h264.mkv", "ucf101_basketball_mpeg4.avi"],
)
def test_seeking_in_a_sample_gives_what_decoding_it_from_the_start_gives(name):
    """An MPEG program stream seeks beyond what it is asked for; Matroska counts no frames."""

    def read_at(positions: list[int]) -> NDArray[np.uint8]:
        return reader.read(ClipPlan(np.array(positions), (128, 96), (0, 0), 96, False))

    with ClipReader(str(SAMPLES / name)) as reader:
        from_start = read_at(list(range(130)))
        for first in (0, 5, 40, 96, 128):
            assert np.array_equal(read_at([first, first + 1]), from_start[first : first + 2])


@needs_samples
def test_the_corrupted_sample_is_refused():
    with ClipReader(str(SAMPLES / "corrupted.mp4")) as reader:
        whole = plan_test(reader.video, frames=8, stride=18, crop=96)
        with pytest.raises(UnreadableVideoError, match=r"cannot be decoded: .*Invalid data"):
            reader.read(whole)
