"""Render a small data set of videos whose classes can be told apart only by motion.

Every video has its own random generator, seeded by (seed, split, index), so the files depend
neither on the number of processes nor on interruptions.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from slowfast_patches.datasets.preparing.clip_file import write_clip
from slowfast_patches.extras.demo.scenes import CLASSES, draw_scene, render
from slowfast_patches.extras.demo.spec import SPLITS, DemoSpec
from slowfast_patches.utils.errors import RunError, UserError, mistake_in
from slowfast_patches.utils.files import make_folder, write_text
from slowfast_patches.utils.processes import WorkerCrashed, run_each

MANIFEST = "demo_data.json"
VERSION = 1  # increase when the pictures or the encoding change; `claim` then rejects old folders
FPS = 30

# Options for fast decoding, because decoding is part of the cost of training.
# The tune "fastdecode" turns off the loop filter and arithmetic coding.
# There are no B-frames, no partitions of macroblocks, and one reference frame.
# Every 8th frame is a key frame.
# With one thread and "cpu-independent", a video has the same bytes in every run and on every CPU.
ENCODER = {
    "preset": "medium",
    "tune": "fastdecode",
    "crf": "28",
    "x264-params": "keyint=8:min-keyint=8:scenecut=0:bframes=0:partitions=none:ref=1:threads=1"
    ":cpu-independent=1",
}


def video_path(split: str, index: int) -> str:
    """Return the path of a video in the data set folder, such as `train/left_0003.mp4`."""
    return f"{split}/{CLASSES[_label(index)]}_{index // len(CLASSES):04d}.mp4"


def make_demo_data(output: Path, spec: DemoSpec, workers: int) -> int:
    """Render the videos of a data set that are missing in `output`, and then write the lists.

    Existing videos are kept, so calling the function again continues after an interruption.

    Args:
        output: Folder of the data set.
        spec: Number and size of the videos.
        workers: Number of processes that render videos.

    Returns:
        The number of videos that were rendered.

    Raises:
        ValueError: `output` was made with another `spec`, or has csv files of another data set.
        OSError: Writing to `output` fails.
    """
    claim(output, spec)
    wanted = [(split, index) for split in SPLITS for index in range(getattr(spec, split))]
    missing = [job for job in wanted if not (output / video_path(*job)).exists()]
    make_videos(partial(_make_video, output, spec), missing, workers)
    write_text(output / "classes.txt", "".join(f"{name}\n" for name in CLASSES))
    for split in SPLITS:
        rows = (f"{video_path(*job)} {_label(job[1])}\n" for job in wanted if job[0] == split)
        write_text(output / f"{split}.csv", "".join(rows))
    return len(missing)


def make_videos(
    make: Callable[[tuple[str, int]], None], jobs: Sequence[tuple[str, int]], workers: int
) -> None:
    """Make videos in several processes.

    Args:
        make: Function that makes the video of a job.
        jobs: The (split, index) of each video.
        workers: Number of processes.

    Raises:
        RunError: A video cannot be written.
    """
    made = run_each(make, jobs, workers if workers > 1 else 0, jobs_per_worker=4)
    for (split, index), done in tqdm(made, "render", len(jobs), unit="video", disable=None):
        if isinstance(done, WorkerCrashed):
            raise RunError(f"two processes crashed while making video {index} of {split}")


def _label(index: int) -> int:
    return index % len(CLASSES)  # classes alternate, so every split is balanced


def claim(output: Path, spec: DemoSpec, **more: str) -> None:
    """Write the settings of a data set to `output`, or check that they equal the existing ones.

    Args:
        output: Folder of the data set.
        spec: Number and size of the videos.
        more: Further settings.

    Raises:
        ValueError: `output` was made with other settings, or has csv files of another data set.
    """
    wanted = asdict(spec) | {"version": VERSION} | more
    manifest = output / MANIFEST
    if manifest.exists():
        with mistake_in(f"{manifest} is damaged. Choose another folder", OSError, ValueError):
            made = json.loads(manifest.read_text())
        if made != wanted:
            raise UserError(
                f"{output} was made with the settings {made}. Use the same settings, or choose "
                "another folder"
            )
    elif any((output / f"{split}.csv").exists() for split in SPLITS):
        raise UserError(
            f"{output} has csv files that do not belong to demo data. Choose another folder"
        )
    for split in SPLITS:
        make_folder(output / split, "--output")
    write_text(manifest, json.dumps(wanted, indent=2) + "\n")


def _make_video(output: Path, spec: DemoSpec, job: tuple[str, int]) -> None:
    split, index = job
    rng = np.random.default_rng((spec.seed, SPLITS.index(split), index))
    scene = draw_scene(rng, spec.frames, spec.width, spec.height)
    clip = render(scene, CLASSES[_label(index)])
    write_clip(output / video_path(split, index), clip, FPS, ENCODER)
