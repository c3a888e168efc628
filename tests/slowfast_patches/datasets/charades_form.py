"""Write the demo data set in the form of Charades: JPEG frames in frame lists, several labels.

Each item joins two videos of different classes, and each frame has one label. So recipes for
Charades can run at toy size.
"""

from __future__ import annotations

from pathlib import Path

import cv2

from slowfast_patches.datasets.demo.synthetic import CLASSES
from slowfast_patches.datasets.lists.csv_list import read_csv
from slowfast_patches.datasets.lists.frame_list import HEADER
from slowfast_patches.datasets.reading.video_file import open_video
from slowfast_patches.utils.files import write_text


def write_charades_form(demo: Path, out: Path) -> None:
    """Write the training and validation videos of a demo data set in the form of Charades.

    This writes train.csv, val.csv, Charades_v1_classes.txt and the frames, with 8 classes. There
    are as many items as videos, because each video is the first part of one item and the second
    part of another. All pairs of classes occur. Lists that exist are kept.

    Raises:
        ValueError: `demo` has no lists, or only videos of one class.
        UnreadableVideoError: A video of `demo` is damaged.
    """
    names = (f"c{number:03d} {name}\n" for number, name in enumerate(CLASSES))
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "Charades_v1_classes.txt", "".join(names))
    for split in ("train", "val"):
        if not (out / f"{split}.csv").exists():
            write_text(out / f"{split}.csv", _write_frames(demo, split, out))


def _write_frames(demo: Path, split: str, out: Path) -> str:
    """Write the frames of a split's videos, each to its own folder.

    Returns:
        The text of the frame list. Each of its items is two videos.
    """
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
    """Write the frames of a video. Returns their paths, relative to `out`."""
    files = list[str]()
    (out / "frames" / name).mkdir(parents=True, exist_ok=True)
    with open_video(path) as file:
        for count, frame in enumerate(file.frames(), start=1):
            # FFmpeg's conversion of such small frames is not deterministic.
            image = cv2.cvtColor(frame.to_ndarray(), cv2.COLOR_YUV2BGR_I420)
            files.append(f"frames/{name}/{name}_{count:06d}.jpg")
            if not cv2.imwrite(str(out / files[-1]), image, [cv2.IMWRITE_JPEG_QUALITY, 92]):
                raise OSError(f"{out / files[-1]} cannot be written")
    return files


def _partner(labels: list[int], number: int) -> int:
    """Return the number of a video of another class.

    The classes alternate. The step to the partner cycles from 1 to 7, so that every class is paired
    with all others.
    """
    step = 1 + number // len(CLASSES) % (len(CLASSES) - 1)
    for more in range(len(labels)):
        partner = (number + step + more) % len(labels)
        if labels[partner] != labels[number]:
            return partner
    raise ValueError("a demo data set of one class has no pairs; make a larger one")
