"""A small data set of videos: smooth noise that moves, in a direction for each class."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from tests.slowfast_patches.datasets.made_videos import Images, write_video

MOTIONS = {
    "left": (-2, 0),
    "right": (2, 0),
    "up": (0, -2),
    "down": (0, 2),
    "left_up": (-1, -1),
    "right_up": (1, -1),
    "left_down": (-1, 1),
    "right_down": (1, 1),
}
"""Maps each class to the pixels that the picture moves to the right and down in a frame."""
SPLITS = {"train": 24, "val": 8, "test": 8}
"""Number of videos of each split."""
FAST = {"preset": "veryfast", "tune": "fastdecode", "x264-params": "scenecut=0:bframes=0"}
"""Options of libx264 for videos that are read often."""


def write_moving_videos(folder: Path) -> None:
    """Write videos of 20 frames of 48 × 40 pixels, the lists of `SPLITS`, and classes.txt."""
    for split, (name, count) in enumerate(SPLITS.items()):
        rows = list[str]()
        for number in range(count):
            label = number % len(MOTIONS)
            motion = list(MOTIONS)[label]
            file = f"{name}/{motion}_{number // len(MOTIONS):04d}.mp4"
            images = moving(MOTIONS[motion], 20, 48, 40, seed=100 * split + number)
            write_video(folder / file, images, gop=8, options=FAST)
            rows.append(f"{file} {label}\n")
        (folder / f"{name}.csv").write_text("".join(rows))
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in MOTIONS))


def moving(step: tuple[int, int], frames: int, width: int, height: int, seed: int) -> Images:
    """Return pictures of coloured noise that moves by `step` pixels, and wraps around."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    picture = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 2), None, 0, 255, cv2.NORM_MINMAX)
    return [
        np.roll(picture, (number * step[1], number * step[0]), (0, 1)) for number in range(frames)
    ]
