"""Render a small data set of videos whose classes can be told apart only by motion.

Every video has its own random generator, seeded by (seed, split, index), so the files depend
neither on the number of processes nor on interruptions.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import av
import numpy as np
from tqdm import tqdm

from slowfast_patches.datasets.demo.scenes import CLASSES, Clip, draw_scene, render
from slowfast_patches.datasets.demo.spec import SPLITS, DemoSpec
from slowfast_patches.utils.errors import RunError, UserError, mistake_in
from slowfast_patches.utils.files import atomic_write, make_folder, write_text
from slowfast_patches.utils.processes import WorkerCrashed, run_each

MANIFEST = "demo_data.json"
VERSION = 1  # increase when the pictures or the encoding change; `claim` then rejects old folders
FPS = 30

# Options that make decoding fast, because decoding is part of the cost of training: no loop filter
# and no arithmetic coding (fastdecode), no B-frames, no partitions of macroblocks, one reference
# frame, and a key frame every 8 frames. With a single thread and "cpu-independent", a video has the
# same bytes in every run and on every machine.
ENCODER = {
    "preset": "medium",
    "tune": "fastdecode",
    "crf": "28",
    "x264-params": "keyint=8:min-keyint=8:scenecut=0:bframes=0:partitions=none:ref=1:threads=1"
    ":cpu-independent=1",
}

# Matrix from RGB in [0, 255] to Y, U and V without offsets: ITU-R BT.601, limited range.
BT601 = (
    np.array([[65.738, 129.057, 25.064], [-37.945, -74.494, 112.439], [112.439, -94.154, -18.285]])
    / 256.0
)


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


def write_clip(path: Path, clip: Clip, fps: int, options: Mapping[str, str]) -> None:
    """Write an mp4 file with an H.264 stream. The write is atomic.

    Args:
        path: The file to write.
        clip: The frames, (T, H, W, 3) RGB.
        fps: Frame rate.
        options: Options of FFmpeg's encoder libx264.

    Raises:
        OSError: The file cannot be written.
    """
    with atomic_write(path) as file, av.open(file.name, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=fps, options=dict(options))
        stream.height, stream.width = clip.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for pixels in clip:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(_to_yuv(pixels), "yuv420p")))
        container.mux(stream.encode())


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


def _to_yuv(pixels: Clip) -> Clip:
    """Convert RGB (H, W, 3) to the planes of yuv420p (BT.601, limited range), (3H/2, W).

    Do not use FFmpeg's conversion, because it is not deterministic for such small frames.
    """
    y, u, v = np.moveaxis(pixels @ BT601.T + (16.0, 128.0, 128.0), 2, 0)
    halves = [(c[::2, ::2] + c[1::2, ::2] + c[::2, 1::2] + c[1::2, 1::2]) / 4 for c in (u, v)]
    planes = [y, *(half.reshape(-1, y.shape[1]) for half in halves)]
    return np.asarray(np.rint(np.concatenate(planes).round(3)), np.uint8)
