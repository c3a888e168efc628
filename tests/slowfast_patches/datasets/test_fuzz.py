"""Damaged files: none crashes the reader, hangs it, or gives a clip of a wrong shape."""

import multiprocessing

import cv2
import numpy as np
import pytest

from multigrid import Shape, make_grid, plan_train
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading.reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from tests.slowfast_patches.datasets.made_videos import noise as moving
from tests.slowfast_patches.datasets.made_videos import write_video

CASES = 240
LIMIT = 300.0
"""Seconds for all of them."""
FRAMES, CROP = 4, 32


def flip(data, rng):
    for position in rng.integers(0, len(data), rng.integers(1, 200)):
        data[position] ^= int(rng.integers(1, 256))


def truncate(data, rng):
    del data[rng.integers(0, len(data)) :]


def splice(data, rng):
    """Replace a range of bytes, which may be empty, by random bytes or zeros."""
    start, length, removed = rng.integers(0, (len(data), 300, 500)).tolist()
    data[start : start + removed] = rng.bytes(length) if rng.random() < 0.5 else bytes(removed)


def number(data, rng):
    """Write an extreme number into the first or last bytes, where headers are."""
    position = int(rng.integers(-2000, 2000))
    data[position : position + 4] = rng.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)])


DAMAGES = (flip, truncate, splice, number)


def attempt(path, record, rng):
    """Read a clip with what `scan` says now, or with what it said when the file was whole."""
    try:
        record = record or scan(str(path))
        base = Shape(1, FRAMES, CROP)
        plan = plan_train(rng, make_grid(base, base, 4, (CROP, 2 * CROP)), record.video)
        clip = read_clip(str(path), record, plan)
    except UnreadableVideoError:
        return "error"
    assert (clip.shape, clip.dtype) == ((FRAMES, CROP, CROP, 3), np.uint8)
    return "clip"


def read_damaged(folder, log):
    """Damage videos in numbered ways, read them, and log one line per case.

    The number of the case decides the damage. Each damaged file is read with a new record and with
    the record of the undamaged file.
    """
    cv2.setNumThreads(0)  # this process is a fork
    whole = [(path, scan(str(path))) for path in sorted(folder.iterdir())]
    with log.open("w", buffering=1) as lines:
        for case in range(CASES):
            rng = np.random.default_rng(case)
            path, record = whole[rng.integers(len(whole))]
            content = bytearray(path.read_bytes())
            DAMAGES[case % len(DAMAGES)](content, rng)
            damaged = log.with_name(f"damaged{path.suffix}")
            damaged.write_bytes(content)
            print(case, *(attempt(damaged, each, rng) for each in (None, record)), file=lines)


VIDEOS = {
    "mpeg4.avi": "mpeg4",
    "h264.mkv": "libx264",
    "h264.mov": "libx264",
    "mpeg1.mpg": "mpeg1video",
    "h264.ts": "libx264",
    "vp9.webm": "libvpx-vp9",
}


@pytest.mark.slow("reads hundreds of files")
def test_damaged_files_are_read_or_refused(tmp_path):
    """Small videos in many containers and codecs, including the prepared form."""
    folder, log = tmp_path / "fuzz", tmp_path / "log"
    for name, codec in VIDEOS.items():
        video = write_video(folder / name, moving(60), codec=codec)
    write_prepared(str(video), scan(str(video)), folder / "prepared.mp4")
    worker = multiprocessing.get_context("fork").Process(target=read_damaged, args=(folder, log))
    worker.start()
    worker.join(LIMIT)
    worker.kill()
    outcomes = log.read_text().split()
    assert (worker.exitcode, len(outcomes)) == (0, 3 * CASES), f"stopped after {outcomes[-3:]}"
    assert outcomes.count("error") > CASES / 4
    assert outcomes.count("clip") > CASES / 10


@pytest.mark.parametrize("name", ["with space.mp4", "smörgås 日本.mp4", "a:b%03d.mp4", "-x.mp4"])
def test_any_name_will_do(tmp_path, name, monkeypatch):
    write_video(tmp_path / "plain.mp4", moving(10)).rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert scan(name).video.frames == 10
