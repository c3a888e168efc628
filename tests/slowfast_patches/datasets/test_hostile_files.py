"""Files that name other files, that never end, or that are too large: refused, never followed."""

import os
import threading
from pathlib import Path
from unittest.mock import patch

import cv2
import numpy as np
import pytest

from multigrid import ClipPlan
from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading import scan as scanning
from slowfast_patches.datasets.reading.reader import READER, ClipReader
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.unreadable import ReadingLimits, UnreadableVideoError
from slowfast_patches.datasets.reading.video_file import count_samples
from tests.slowfast_patches.datasets.made_videos import grey, write_video

WIDTH, HEIGHT, FRAMES = 64, 48, 24
PIXELS = WIDTH * HEIGHT
HANGS = 5.0
"""Seconds; refusing takes milliseconds, and what is followed may wait for ever."""


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return write_video(tmp_path_factory.mktemp("videos") / "video.mp4", grey(FRAMES))


def plan(position=3):
    return ClipPlan(np.array([position]), (WIDTH, HEIGHT), (0, 0), HEIGHT, False)


def refusal(call):
    """Return the error message of a call, which must fail within a short time."""
    messages = []

    def run():
        try:
            call()
        except UnreadableVideoError as error:
            messages.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANGS)
    assert not thread.is_alive(), "it waits"
    assert messages, "it was read"
    return messages[0]


# Files that name others.


CONCAT = "ffconcat version 1.0\nfile '{}'\n"
HLS = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{}\n#EXT-X-ENDLIST\n"
SDP = "v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 33\n"
HOSTILE = {
    "concat.mp4": CONCAT,
    "hls.m3u8": HLS,
    "dash.mpd": "<?xml version='1.0'?>\n<MPD>{}</MPD>\n",
    "stream.sdp": SDP,
    "letters.txt": "a line\r\n" * 900,
}


def lead(path, kind, target):
    """Make `path` a file that refers to the video `target`, and return the expected message."""
    if kind in HOSTILE:
        path.write_text(HOSTILE[kind].format(target.name))
        return "cannot be opened"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return "is not a regular file"


@pytest.mark.parametrize("to", ["video", "fifo"])
@pytest.mark.parametrize("kind", [*HOSTILE, "fifo", "device"])
def test_what_leads_elsewhere_is_refused(tmp_path, video, kind, to):
    record, target, path = scan(str(video)), tmp_path / "target.mp4", tmp_path / kind
    os.mkfifo(target) if to == "fifo" else target.write_bytes(video.read_bytes())
    reason = lead(path, kind, target)
    for call in (
        lambda: scan(str(path)),
        lambda: READER.read_clip(str(path), record, plan()),
        lambda: write_prepared(str(path), record, tmp_path / "o"),
    ):
        assert reason in refusal(call)


@pytest.mark.parametrize("name", ["%03d.jpg", "concat:000.jpg|001.jpg"])
def test_a_name_is_no_pattern_and_no_protocol(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in (0, 1):
        jpeg(tmp_path / f"00{number}.jpg")
    assert "No such file" in refusal(lambda: scan(name))
    Path(name).write_bytes(b"no video")
    assert "cannot be opened" in refusal(lambda: scan(name))


# Files that are too large.


def test_the_limits_of_the_config_are_those_of_the_reader():
    assert ClipReader.of_recipe(default_recipe()) == ClipReader()


def jpeg(path, width=WIDTH, height=HEIGHT):
    """Write a small picture whose header may state a larger size."""
    assert cv2.imwrite(str(path), np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    sides = [s.to_bytes(2) + t.to_bytes(2) for s, t in ((HEIGHT, WIDTH), (height, width))]
    assert path.read_bytes().count(sides[0]) == 1
    path.write_bytes(path.read_bytes().replace(*sides))
    return path


@pytest.mark.parametrize("kind", ["video", "frames"])
def test_videos_and_folders_of_frames_have_a_bound_on_pixels(tmp_path, video, kind):
    path = video if kind == "video" else jpeg(tmp_path / "0.jpg").parent
    record, prepared = scan(str(path)), tmp_path / "bounded.mp4"
    for call in (
        lambda **bound: scan(str(path), **bound),
        lambda **bound: ClipReader(**bound).read_clip(str(path), record, plan(0)),
        lambda **bound: write_prepared(str(path), record, prepared, **bound),
    ):
        call(limits=ReadingLimits(pixels=PIXELS))
        message = refusal(lambda call=call: call(limits=ReadingLimits(pixels=PIXELS - 1)))
        assert (
            message == f"has frames of 64×48 pixels, more than DATA.MAX_FRAME_PIXELS {PIXELS - 1}"
        )
    if kind == "frames":
        jpeg(tmp_path / "0.jpg", 9000, 9000)  # takes 243 MB; Pillow and OpenCV decode it
        for call in (
            lambda: scan(str(path)),
            lambda: READER.read_clip(str(path), record, plan(0)),
        ):
            assert "has frames of 9000×9000 pixels" in refusal(call)


def test_a_stream_that_grows_beyond_the_bound_is_refused(tmp_path):
    path, bound = tmp_path / "grows.h264", {"limits": ReadingLimits(pixels=PIXELS)}
    content = b""
    for size in ((WIDTH, HEIGHT), (256, 192)):
        content += write_video(path, grey(FRAMES, *size)).read_bytes()
    path.write_bytes(content)
    record = scan(str(path))
    assert (record.video.width, record.video.frames) == (WIDTH, 2 * FRAMES)
    for call in (
        lambda: scan(str(path), **bound),
        lambda: ClipReader(**bound).read_clip(str(path), record, plan(FRAMES + 3)),
    ):
        assert "has frames of 256×192 pixels, more than" in refusal(call)


def test_an_index_of_more_samples_than_allowed_is_refused_before_it_is_opened(
    tmp_path, video, monkeypatch
):
    """A file of 163 kB may announce 40 million samples, for which FFmpeg allocates 3 GB."""
    content = bytearray(video.read_bytes())
    place = content.index(b"stsz")
    content[place + 8 : place + 16] = (1).to_bytes(4) + (40_000_000).to_bytes(4)
    path = tmp_path / "claims.mp4"
    path.write_bytes(content)
    monkeypatch.setattr(scanning, "open_video", None)
    assert "has more frames or audio samples than" in refusal(lambda: scan(str(path)))


@pytest.mark.parametrize("flags", ["", "frag_keyframe+empty_moov"])
def test_samples_are_counted_in_indices_and_in_fragments(tmp_path, flags):
    counts, path = [], str(tmp_path / "a.mp4")
    for n in (12, 24, 36):
        write_video(Path(path), grey(n), container_options={"movflags": flags} if flags else None)
        counts.append(count_samples(path, 10**6) - n)
    of_group = 4 if flags else 0  # moof, mfhd, traf and others of each more fragment
    assert 10 < counts[0] < 60
    assert counts[1] - counts[0] >= of_group
    assert counts[2] - counts[1] == counts[1] - counts[0]


@pytest.mark.parametrize("suffix", ["avi", "mkv"])
def test_a_video_of_too_many_or_too_large_frames_is_refused(tmp_path, suffix):
    path = str(write_video(tmp_path / f"video.{suffix}", grey(FRAMES)))
    assert scan(path, ReadingLimits(frames=FRAMES)).video.frames == FRAMES
    for limits, said in (
        (ReadingLimits(frames=FRAMES - 1), "than DATA.MAX_VIDEO_FRAMES 23"),
        (ReadingLimits(bytes=8), "more than DATA.MAX_FRAME_BYTES 8"),
    ):
        assert said in refusal(lambda limits=limits: scan(path, limits))


def test_a_large_jpeg_is_refused_before_it_is_read(tmp_path):
    record = scan(str(jpeg(tmp_path / "0.jpg").parent))
    os.truncate(tmp_path / "0.jpg", 1 << 40)  # takes no place on the disk
    for call in (
        lambda: scan(str(tmp_path)),
        lambda: READER.read_clip(str(tmp_path), record, plan()),
    ):
        said = "0.jpg has 1099511627776 bytes, more than DATA.MAX_FRAME_BYTES"
        assert said in refusal(call)


# Files that take long.


def test_a_progressive_jpeg_of_thousands_of_scans_is_refused(tmp_path):
    """Decoding 8000 empty scans of a picture of 8192² pixels takes 45 s."""
    path = jpeg(tmp_path / "0.jpg")
    content = path.read_bytes()
    path.write_bytes(content[:-2] + 8000 * b"\xff\xda\x00\x02" + content[-2:])
    assert "0.jpg has 8001 scans" in refusal(lambda: scan(str(tmp_path)))


@pytest.mark.parametrize("kind", ["video.mp4", "video.avi", "prepared", "frames"])
def test_a_reading_beyond_its_time_is_ended(tmp_path, video, kind):
    path = tmp_path / kind
    if kind == "prepared":
        write_prepared(str(video), scan(str(video)), path)
    elif kind == "frames":
        path.mkdir()
        jpeg(path / "0.jpg")
    else:
        write_video(path, grey(FRAMES))
    record = scan(str(path))
    over = ReadingLimits(seconds=-99.0)  # as if so many had passed
    message = "takes too long to decode: more processor time than DATA.MAX_READ_SECONDS"
    assert message in refusal(lambda: ClipReader(over).read_clip(str(path), record, plan(0)))
    if kind.startswith("video"):
        assert message in refusal(lambda: scan(str(path), over))


# Videos that are long.


def test_a_scan_opens_a_file_as_often_whatever_its_key_frames(tmp_path):
    """Opening takes longer with more frames, so opening once per key frame would be quadratic."""
    counts = []
    for gop in (24, 3):
        video = write_video(tmp_path / f"{gop}.avi", grey(FRAMES), gop=gop, codec="libx264")
        with patch.object(scanning, "open_video", wraps=scanning.open_video) as opened:
            assert len(scan(str(video)).keys) == FRAMES // gop
        counts.append(opened.call_count)
    assert counts[0] == counts[1]
