"""Find the mouth of a speaker in videos by its motion, and cut out a square around the mouth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from grid_corpus import Sentence, decode
from numpy.typing import NDArray

from multigrid import Window
from slowfast_patches.datasets.reading.pixels import Cropper
from slowfast_patches.datasets.reading.unreadable import UnreadableVideoError
from slowfast_patches.utils.files import atomic_write

_SIDE = 112 / 288
"""Default side of the square, as a fraction of the frame's height.

The mouth fills about half of the square.
"""
_MIN_MOTION = 0.5
"""Minimum mean change from frame to frame around a mouth, in grey levels from 0 to 255."""


@dataclass(frozen=True)
class Look:
    """Mean picture and motion of a video.

    Attributes:
        picture: Mean of the frames, (H, W), in grey levels from 0 to 255.
        motion: Motion at each pixel that is due to speaking, (H, W), in grey levels. This is the
            mean absolute difference between consecutive frames while words are spoken, minus the
            same mean for the silence before and after.
    """

    picture: NDArray[np.float32]
    motion: NDArray[np.float32]


def look_at(sentence: Sentence) -> Look:
    """Compute the mean frame and the mean motion of the video of a sentence.

    Raises:
        UnreadableVideoError: As in `decode`.
    """
    frames = np.stack([frame.to_ndarray(format="gray") for frame in decode(sentence)])
    changes = np.abs(np.diff(frames.astype(np.int16), axis=0))
    between = np.arange(1, len(frames))  # time of each change, in frames from the video's start
    spoken = (sentence.words[0].start <= between) & (between <= sentence.words[-1].end)
    motion, still = (
        changes[part].mean(0, dtype=np.float32) if part.any() else np.float32(0)
        for part in (spoken, ~spoken)
    )
    return Look(frames.mean(0, dtype=np.float32), np.asarray(motion - still, np.float32))


@dataclass(frozen=True)
class Square:
    """Square that is cut out of each frame around the mouth, and resized.

    Attributes:
        x: Horizontal position of the mouth's centre, in pixels of the frame.
        y: Vertical position of the mouth's centre, in pixels of the frame.
        side: Side of the square, in pixels of the frame.
        width: Width of the frames, in pixels.
        height: Height of the frames, in pixels.
        size: Width and height to which the square is resized, in pixels.
    """

    x: float
    y: float
    side: int
    width: int
    height: int
    size: int = 80

    def __post_init__(self) -> None:
        size = f"frames of {self.width}×{self.height} pixels"
        if not (0 <= self.x < self.width and 0 <= self.y < self.height):
            raise ValueError(f"--mouth {self.x:g} {self.y:g} must lie inside the {size}")
        if not 16 <= self.side <= min(self.width, self.height):
            raise ValueError(
                f"--side is {self.side}, but must be from 16 to {min(self.width, self.height)} for "
                f"{size}"
            )
        if self.size < 16 or self.size % 2:
            raise ValueError(f"--size is {self.size}, but must be an even number of at least 16")

    @property
    def window(self) -> Window:
        """Position of the square in the frame, in pixels.

        The mouth is in the centre, unless the square must be shifted to lie inside the frame.
        """
        left = min(max(0.0, self.x - self.side / 2), self.width - self.side)
        top = min(max(0.0, self.y - self.side / 2), self.height - self.side)
        return Window(left, top, self.side, self.side)

    def cut(self, sentence: Sentence) -> NDArray[np.uint8]:
        """Cut the square out of each frame of a sentence's video, and resize it.

        Returns:
            RGB pictures (T, size, size, 3) uint8.

        Raises:
            UnreadableVideoError: As in `decode`, or the frames do not have `width` × `height`
                pixels.
        """
        size = (self.width, self.height)
        pictures = list[NDArray[np.uint8]]()
        cropper = Cropper(self.window, size, self.size)
        for frame in decode(sentence):
            if (frame.width, frame.height) != size:
                raise UnreadableVideoError(
                    f"has frames of {frame.width}×{frame.height} pixels, but other videos have "
                    f"{self.width}×{self.height}"
                )
            cropper(frame, picture := np.empty((self.size, self.size, 3), np.uint8))
            pictures.append(picture)
        return np.stack(pictures)


def find_square(
    look: Look, mouth: tuple[float, float] | None, side: int | None, size: int
) -> Square:
    """Return the square around the mouth.

    Args:
        look: Mean picture and motion of the speaker's videos.
        mouth: (x, y) of the mouth's centre, in pixels. None means to find the mouth by its motion.
        side: Side of the square, in pixels of the frame. None means 112 for a height of 288 pixels,
            and in proportion for other heights.
        size: Width and height of the clips, in pixels.

    Raises:
        ValueError: No motion is found, the mouth lies outside the frame, or the square does not fit
            into the frame.
    """
    height, width = look.motion.shape
    side = round(_SIDE * height / 2) * 2 if side is None else side
    x, y = _find_mouth(look.motion, side) if mouth is None else mouth
    return Square(x, y, side, width, height, size)


def _find_mouth(motion: NDArray[np.float32], side: int) -> tuple[float, float]:
    """Return the position (x, y) with the most motion in the lower middle of the frame.

    Motion is averaged over the surroundings of a position.

    Raises:
        ValueError: There is no motion in the lower middle.
    """
    height, width = motion.shape
    top = height // 2
    left = width // 4
    smooth = cv2.GaussianBlur(motion, (0, 0), side / 8)[top:, left : width - left]
    _, most, _, (x, y) = cv2.minMaxLoc(smooth)
    if most < _MIN_MOTION:
        raise ValueError(
            "no mouth was found, because nothing moves in the lower middle of the frames. Give "
            "--mouth X Y"
        )
    return float(left + x), float(top + y)


def write_picture(path: Path, look: Look, square: Square) -> None:
    """Draw the motion (in red), the mouth and the square over the mean frame, as a PNG file."""
    motion = 255 * np.clip(look.motion / max(look.motion.max(), 1e-6), 0, 1)
    red = np.maximum(look.picture, motion)
    image = np.stack([look.picture, look.picture, red], 2).astype(np.uint8)
    left, top, side, _ = (round(value) for value in square.window)
    colour = (0, 255, 255)
    cv2.rectangle(image, (left, top), (left + side - 1, top + side - 1), colour)
    cv2.drawMarker(image, (round(square.x), round(square.y)), colour, markerSize=9)
    with atomic_write(path) as file:
        file.write(cv2.imencode(".png", image)[1].tobytes())
