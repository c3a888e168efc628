"""Files that name other files, that never end, or that are too large: refused, never followed."""

import os
import struct
import threading

import numpy as np
import pytest

from multigrid import ClipPlan
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading import bounds, video_file
from slowfast_patches.datasets.reading.bounds import check_header
from slowfast_patches.datasets.reading.reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from tests.slowfast_patches.datasets.made_videos import grey, write_jpeg, write_video
from tests.slowfast_patches.datasets.public_reports.boxes import box

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


# Files that announce more than they have.

FEW = 50_000_000
"""Number of samples that takes FFmpeg gigabytes of memory."""


def announced(kind):
    """Return a moov box of a track that announces many samples in a few bytes."""
    table = box(b"stsz", struct.pack(">III", 0, 1, FEW))
    if kind == "fragment":
        run = box(b"trun", struct.pack(">II", 0, FEW))
        return box(b"moof", box(b"traf", run))
    handler = box(b"hdlr", bytes(8) + (b"soun" if kind == "sound" else b"vide"))
    media = box(b"mdia", handler + box(b"minf", box(b"stbl", table)))
    return box(b"moov", box(b"trak", media))


@pytest.mark.parametrize("kind", ["video", "fragment"])
def test_a_small_file_that_announces_many_samples_is_refused(tmp_path, kind):
    path = tmp_path / "a.mp4"
    path.write_bytes(box(b"ftyp", b"isom" + bytes(4)) + announced(kind) + box(b"mdat", bytes(2000)))
    assert "frames or audio samples, which is more than its bytes" in refusal(
        lambda: scan(str(path))
    )


def test_uncompressed_sound_may_have_many_samples(tmp_path):
    """Each value of the sound is a sample of its own, which FFmpeg does not store."""
    path = tmp_path / "a.mov"
    path.write_bytes(announced("sound") + box(b"mdat", bytes(200_000)))
    check_header(str(path))


def test_more_samples_than_the_maximum_are_refused(tmp_path, video, monkeypatch):
    check_header(str(video))
    monkeypatch.setattr(bounds, "MAX_SAMPLES", FRAMES - 1)
    assert "more than the maximum" in refusal(lambda: check_header(str(video)))
