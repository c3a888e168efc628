"""How pictures are shown. FFMS2 317: rotated or mirrored, by a display matrix or by Exif."""

import struct

import cv2
import numpy as np
import pytest

from multigrid import ClipPlan
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading.jpeg import jpeg_size
from slowfast_patches.datasets.reading.reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from tests.slowfast_patches.datasets.public_reports.numbered import write

COLOURS = {"r": (220, 40, 40), "g": (40, 200, 40), "b": (40, 40, 220), "w": (235, 235, 235)}
STORED = "rgbw"  # quarters of the stored picture: red and green above, blue and white below
WIDTH, HEIGHT, SIDE = 96, 64, 32

# For each Exif orientation (TIFF 6.0, tag 274), the matrix (a, b, c, d) that moves a stored point
# (x, y) to (ax + cy, bx + dy), and the quarters that are shown.
ORIENTATIONS = {
    1: ((1, 0, 0, 1), "rgbw"),
    2: ((-1, 0, 0, 1), "grwb"),
    3: ((-1, 0, 0, -1), "wbgr"),
    4: ((1, 0, 0, -1), "bwrg"),
    5: ((0, 1, 1, 0), "rbgw"),
    6: ((0, 1, -1, 0), "brwg"),
    7: ((0, -1, -1, 0), "wgbr"),
    8: ((0, -1, 1, 0), "gwrb"),
}


def picture():
    quarters = np.array([COLOURS[letter] for letter in STORED], np.uint8).reshape(2, 2, 3)
    return quarters.repeat(HEIGHT // 2, 0).repeat(WIDTH // 2, 1)


def video(folder, orientation):
    a, b, c, d = (part << 16 for part in ORIENTATIONS[orientation][0])
    matrix = (a, b, 0, c, d, 0, 0, 0, 1 << 30)
    return write(folder / "a.mp4", images=[picture()] * 3, matrix=matrix)


def jpegs(folder, orientation):
    (folder / "frames").mkdir()
    _, jpeg = cv2.imencode(".jpg", picture()[..., ::-1])
    field = struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    exif = b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 1) + field + bytes(4)
    segment = b"\xff\xe1" + (len(exif) + 2).to_bytes(2) + exif
    for number in range(3):
        content = jpeg[:2].tobytes() + segment + jpeg[2:].tobytes()
        (folder / "frames" / f"{number}.jpg").write_bytes(content)
    return folder / "frames"


def quarters(path):
    """Return the colours in the middle of each quarter of the shown picture."""
    whole = ClipPlan(np.array([1]), (SIDE, SIDE), (0, 0), SIDE, False)
    (shown,) = read_clip(str(path), scan(str(path)), whole)
    middles = shown[SIDE // 4 :: SIDE // 2, SIDE // 4 :: SIDE // 2].reshape(4, 3).astype(int)
    return "".join(
        min(COLOURS, key=lambda letter: np.abs(colour - COLOURS[letter]).sum())
        for colour in middles
    )


@pytest.mark.parametrize("make", [video, jpegs])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_all_eight_orientations_are_shown_upright(tmp_path, make, orientation):
    path = make(tmp_path, orientation)
    record = scan(str(path))
    size = (record.video.width, record.video.height)
    assert size == ((HEIGHT, WIDTH) if orientation > 4 else (WIDTH, HEIGHT))
    if make == jpegs:
        assert jpeg_size(str(path / "0.jpg")) == size
    assert quarters(path) == ORIENTATIONS[orientation][1]
    prepared = tmp_path / "prepared.mp4"
    write_prepared(str(path), record, prepared)
    assert scan(str(prepared)).video[2:4] == size
    assert quarters(prepared) == ORIENTATIONS[orientation][1]
