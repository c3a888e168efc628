"""Small videos and pictures for the tests of data sets, and the sample files if they are there."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

Images = Sequence[NDArray[np.uint8]]

SAMPLES = Path(__file__).parents[3].parent / "shared" / "data" / "samples"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="shared/data/samples is absent")


def write_video(
    path: Path,
    images: Images,
    *,
    codec: str = "",
    fps: Fraction | int = 30,
    gop: int = 12,
    pixels: str = "yuv420p",
    stamps: Sequence[int] | None = None,
    matrix: Sequence[int] | None = None,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
) -> Path:
    """A video of (H, W, 3) RGB pictures; `stamps` says when each is shown, in units of 1 / fps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    codec = codec or ("mpeg4" if path.suffix == ".avi" else "libx264")
    with av.open(str(path), "w", options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=Fraction(fps), options=options or {})
        stream.height, stream.width = images[0].shape[:2]
        stream.pix_fmt, stream.gop_size = pixels, gop
        stream.thread_count = 1  # libvpx waits for its threads
        stream.set_display_matrix(matrix)
        for shown, image in zip(stamps or range(len(images)), images, strict=True):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts, frame.time_base = shown, 1 / Fraction(fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    if codec == "libsvtav1" and hasattr(os, "sched_setscheduler"):
        # As root, this encoder gives the calling thread real-time priority for good.
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return path


def break_frame(path: Path, number: int) -> Path:
    """Overwrite the length with which a frame of an H.264 mp4 file begins."""
    with av.open(str(path)) as container:
        place = [packet.pos for packet in container.demux(video=0) if packet.size][number]
    content = bytearray(path.read_bytes())
    content[place : place + 4] = b"\xff" * 4
    path.write_bytes(content)
    return path


def grey(frames: int, width: int = 64, height: int = 48) -> Images:
    """Flat pictures, each a little lighter than the one before."""
    return [np.full((height, width, 3), 9 * number % 256, np.uint8) for number in range(frames)]


def noise(frames: int, width: int = 64, height: int = 48, seed: int = 0) -> Images:
    """Noise that moves to the left, a pixel a frame."""
    rng = np.random.default_rng(seed)
    wide = rng.integers(60, 190, (height, width + frames, 3), np.uint8)
    return [wide[:, shift : shift + width] for shift in range(frames)]


def write_jpeg(path: Path, width: int = 64, height: int = 48, level: int = 90) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.full((height, width, 3), level, np.uint8))
    return path


def write_ssv2_json(folder: Path, **files: object) -> None:
    """Something-Something's json files: labels, train, validation."""
    for name, content in files.items():
        (folder / f"something-something-v2-{name}.json").write_text(json.dumps(content))


def rows(csv: Path, separator: str = " ") -> list[tuple[str, int]]:
    """Paths and labels of a list."""
    lines = [line.rpartition(separator) for line in csv.read_text(encoding="utf-8").splitlines()]
    return [(name, int(label)) for name, _, label in lines]


def times(out: Path) -> dict[str, int]:
    """When each file of a prepared set was written."""
    files = (path for path in (out / "videos").rglob("*") if path.is_file())
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in files}
