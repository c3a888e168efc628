"""Damaged files: none crashes the reader, hangs it, or gives a clip of a wrong shape."""

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading.scan import scan
from tests.slowfast_patches.datasets.made_videos import (
    SAMPLES,
    needs_samples,
    noise,
    write_video,
)

CASES = 240
LIMIT = 300.0
"""Seconds for all of them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small whole videos of many containers and codecs, the prepared form among them."""
    path = tmp_path_factory.mktemp("fuzz")
    video = write_video(path / "numbered.mp4", noise(60))
    write_prepared(str(video), scan(str(video)), path / "prepared.mp4")
    write_video(path / "mpeg4.avi", noise(60))
    write_video(path / "h264.mkv", noise(60))
    write_video(path / "mpeg1.mpg", noise(60), codec="mpeg1video")
    write_video(path / "h264.ts", noise(60))
    for name in ("av1.mkv", "testsrc_vp9.webm", "rotated_90.mov", "unordered_pts.mov"):
        shutil.copy(SAMPLES / name, path / name)
    return path


@pytest.mark.slow
@needs_samples
def test_damaged_files_are_read_or_refused(folder):
    """Each case, of milliseconds, is read with a fresh record and with that of the whole file."""
    script = [sys.executable, str(Path(__file__).with_name("fuzz_worker.py")), str(folder), "0"]
    worker = subprocess.run([*script, str(CASES)], capture_output=True, text=True, timeout=LIMIT)
    lines = worker.stdout.splitlines()
    assert len(lines) == CASES, f"stopped after {lines[-1:]}: {worker.stderr[-2000:]}"
    outcomes = Counter(outcome for line in lines for outcome in line.split()[3:])
    assert outcomes.total() == 2 * CASES
    assert outcomes["error"] > CASES / 4
    assert outcomes["clip"] > CASES / 10


@pytest.mark.parametrize("name", ["with space.mp4", "smörgås 日本.mp4", "a:b%03d.mp4", "-x.mp4"])
def test_any_name_will_do(tmp_path, name, monkeypatch):
    path = write_video(tmp_path / "plain.mp4", noise(10)).rename(tmp_path / name)
    assert scan(str(path)).video.frames == 10
    monkeypatch.chdir(tmp_path)
    assert scan(name).video.frames == 10
