"""Files that name other files, that never end, or that are too large: refused, never followed."""

import os
import threading

import numpy as np
import pytest

from multigrid import ClipPlan
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading import video_file
from slowfast_patches.datasets.reading.errors import UnreadableVideoError
from slowfast_patches.datasets.reading.reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from tests.slowfast_patches.datasets.made_videos import grey, write_jpeg, write_video

WIDTH, HEIGHT, FRAMES = 64, 48, 24
PIXELS = WIDTH * HEIGHT
HANGS = 5.0
"""Seconds; refusing takes milliseconds, and what is followed may wait for ever."""


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return write_video(tmp_path_factory.mktemp("videos") / "video.mp4", grey(FRAMES))


def plan():
    return ClipPlan(np.array([3]), (WIDTH, HEIGHT), (0, 0), HEIGHT, False)


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
        lambda: read_clip(str(path), record, plan()),
        lambda: write_prepared(str(path), record, tmp_path / "o"),
    ):
        assert reason in refusal(call)


# Frames that are too large.


@pytest.mark.parametrize("kind", ["video", "frames"])
def test_frames_of_too_many_pixels_are_refused(tmp_path, video, monkeypatch, kind):
    path = str(video)
    if kind == "frames":
        write_jpeg(tmp_path / "0.jpg", WIDTH, HEIGHT)
        path = str(tmp_path)
    record = scan(path)
    for call in (
        lambda: scan(path),
        lambda: read_clip(path, record, plan()),
        lambda: write_prepared(path, record, tmp_path / "o"),
    ):
        monkeypatch.setattr(video_file, "MAX_PIXELS", PIXELS)
        call()
        monkeypatch.setattr(video_file, "MAX_PIXELS", PIXELS - 1)
        assert "has frames of 64×48 pixels, more than" in refusal(call)
