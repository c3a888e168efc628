"""How the stored picture of a video is shown: one of four rotations, and mirrored or not."""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from multigrid import Box

Image = NDArray[np.uint8]


class Orientation(NamedTuple):
    """How to show a stored picture: mirror it left to right if `mirrored`, and then rotate it."""

    turns: int = 0  # quarter turns counterclockwise
    mirrored: bool = False

    def shown(self, image: Image) -> Image:
        """Return a view of a stored picture (H, W, ...) as it is shown."""
        if not any(self):  # np.rot90 is slow
            return image
        return np.rot90(image[:, ::-1] if self.mirrored else image, self.turns)

    def turned_size(self, width: int, height: int) -> tuple[int, int]:
        """Swap the width and height if a rotation swaps them."""
        return (height, width) if self.turns % 2 else (width, height)

    def stored(self, box: Box) -> Box:
        """Transform a box from the shown to the stored picture.

        Both boxes are in coordinates from 0 to 1 relative to the sides of the picture.
        """
        x, y, w, h = box.x, box.y, box.width, box.height
        for _ in range(self.turns):
            x, y, w, h = 1 - y - h, x, h, w
        return Box(1 - x - w if self.mirrored else x, y, w, h)


UPRIGHT = Orientation()


def orientation_of(frame: VideoFrame) -> Orientation:
    """Return the orientation that the display matrix of a frame states.

    The matrix (a b u, c d v, x y w) moves a stored point (p, q) to (ap + cq + x, bp + dq + y). Its
    rotation is rounded to a multiple of 90 degrees.
    """
    matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return UPRIGHT
    a, b, _, c, d = struct.unpack_from("=5i", matrix)
    mirrored = a * d < b * c
    sign = -1 if mirrored else 1
    return Orientation(round(math.atan2(-sign * b, sign * a) / (math.pi / 2)) % 4, mirrored)
