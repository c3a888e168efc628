"""The demo data set as Charades comes: JPEG frames in frame lists, with several labels a video.

Two videos of different classes, one after the other, are an item, and each frame has a label. So
recipes for Charades run at toy size.
"""

from __future__ import annotations

from pathlib import Path

import cv2

from slowfast_patches.datasets.demo.synthetic import CLASSES
from slowfast_patches.datasets.lists.csv_list import read_csv
from slowfast_patches.datasets.lists.frame_list import HEADER
from slowfast_patches.datasets.reading.files import open_video
from slowfast_patches.utils.files import write_text

__all__ = ["write_charades_form"]


def write_charades_form(demo: Path, out: Path) -> None:
    """Write the training and validation videos of a demo data set as Charades' users have theirs:
    train.csv, val.csv, Charades_v1_classes.txt and the frames, with 8 classes.

    The items are as many as the videos, each of which is the first part of one and the second part
    of another; all pairs of classes come up. Nothing is done where the lists are there.

    Raises:
        ValueError: `demo` has no lists, or videos of one class alone.
        UnreadableVideoError: a video of it is damaged.
    """
    names = (f"c{number:03d} {name}\n" for number, name in enumerate(CLASSES))
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "Charades_v1_classes.txt", "".join(names))
    for split in ("train", "val"):
        if not (out / f"{split}.csv").exists():
            write_text(out / f"{split}.csv", _write_frames(demo, split, out))


def _write_frames(demo: Path, split: str, out: Path) -> str:
    """Write the frames of a split's videos, each to a folder of its own; returns the list of items,
    which are two videos each."""
    videos = read_csv(demo / f"{split}.csv", num_classes=len(CLASSES))
    labels = [video.label for video in videos]
    files = [_write_video(video.path, out, f"{split}{n:04d}") for n, video in enumerate(videos)]
    lines = [HEADER]
    for number in range(len(videos)):
        parts = (number, _partner(labels, number))
        frames = [(file, labels[part]) for part in parts for file in files[part]]
        lines += [
            f'{split}{number:04d} {number} {count} {file} "{label}"'
            for count, (file, label) in enumerate(frames)
        ]
    return "\n".join(lines) + "\n"


def _write_video(path: str, out: Path, name: str) -> list[str]:
    """Write a video's frames; returns the files, relative to `out`."""
    files = list[str]()
    (out / "frames" / name).mkdir(parents=True, exist_ok=True)
    with open_video(path) as (container, stream):
        for count, frame in enumerate(container.decode(stream), start=1):
            # FFmpeg's conversion of such small frames does not always give the same bytes.
            image = cv2.cvtColor(frame.to_ndarray(), cv2.COLOR_YUV2BGR_I420)
            files.append(f"frames/{name}/{name}_{count:06d}.jpg")
            if not cv2.imwrite(str(out / files[-1]), image, [cv2.IMWRITE_JPEG_QUALITY, 92]):
                raise OSError(f"{out / files[-1]} cannot be written")
    return files


def _partner(labels: list[int], number: int) -> int:
    """A video of another class. The step to it grows from 1 to 7 and begins again, so that classes,
    which come in turn, meet all others."""
    step = 1 + number // len(CLASSES) % (len(CLASSES) - 1)
    for more in range(len(labels)):
        partner = (number + step + more) % len(labels)
        if labels[partner] != labels[number]:
            return partner
    raise ValueError("a demo data set of one class has no pairs; make a larger one")
