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
from slowfast_patches.datasets.reading.errors import UnreadableVideoError
from slowfast_patches.datasets.reading.limits import ReadingLimits
from slowfast_patches.datasets.reading.reader import READER, ClipReader
from slowfast_patches.datasets.reading.scan import scan
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

HOSTILE = {
    "concat.mp4": "ffconcat version 1.0\nfile '{}'\n",
    "hls.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{}\n#EXT-X-ENDLIST\n",
    "letters.txt": "a line\r\n" * 900,
}


@pytest.mark.parametrize("kind", [*HOSTILE, "fifo", "device"])
def test_what_leads_elsewhere_is_refused(tmp_path, video, kind):
    record, path, reason = scan(str(video)), tmp_path / kind, "cannot be opened"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_text(HOSTILE[kind].format(video))
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
        cv2.imwrite(f"00{number}.jpg", np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    assert "No such file" in refusal(lambda: scan(name))
    Path(name).write_bytes(b"no video")
    assert "cannot be opened" in refusal(lambda: scan(name))


# Limits.


def test_the_limits_of_the_config_are_those_of_the_reader():
    assert ClipReader.of_recipe(default_recipe()) == ClipReader()


@pytest.mark.parametrize("kind", ["video", "frames"])
def test_videos_and_folders_of_frames_have_a_bound_on_pixels(tmp_path, video, kind):
    path = str(video if kind == "video" else tmp_path)
    cv2.imwrite(str(tmp_path / "0.jpg"), np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    record = scan(path)
    for call in (
        lambda **bound: scan(path, **bound),
        lambda **bound: ClipReader(**bound).read_clip(path, record, plan(0)),
        lambda **bound: write_prepared(path, record, tmp_path / "bounded.mp4", **bound),
    ):
        call(limits=ReadingLimits(pixels=PIXELS))
        said = refusal(lambda call=call: call(limits=ReadingLimits(pixels=PIXELS - 1)))
        assert said == f"has frames of 64×48 pixels, more than DATA.MAX_FRAME_PIXELS {PIXELS - 1}"


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


@pytest.mark.parametrize("kind", ["video.mp4", "video.avi", "prepared"])
def test_a_reading_beyond_its_time_is_ended(tmp_path, video, kind):
    path = tmp_path / kind
    if kind == "prepared":
        write_prepared(str(video), scan(str(video)), path)
    else:
        write_video(path, grey(FRAMES))
    record = scan(str(path))
    over = ReadingLimits(seconds=-99.0)  # as if so many had passed
    message = "takes too long to decode: more processor time than DATA.MAX_READ_SECONDS"
    assert message in refusal(lambda: ClipReader(over).read_clip(str(path), record, plan(0)))
    if kind.startswith("video"):
        assert message in refusal(lambda: scan(str(path), over))


def test_a_scan_opens_a_file_as_often_whatever_its_key_frames(tmp_path):
    """Opening takes longer with more frames, so opening once per key frame would be quadratic."""
    counts = []
    for gop in (24, 3):
        video = write_video(tmp_path / f"{gop}.avi", grey(FRAMES), gop=gop, codec="libx264")
        with patch.object(scanning, "open_video", wraps=scanning.open_video) as opened:
            assert len(scan(str(video)).keys) == FRAMES // gop
        counts.append(opened.call_count)
    assert counts[0] == counts[1]
