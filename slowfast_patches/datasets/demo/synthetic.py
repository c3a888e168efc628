"""Render a small data set of videos whose classes can be told apart only by motion.

Textured objects move over a textured background under a shaking camera. The class is the motion of
the objects: left, right, up, down, clockwise, counterclockwise, grow or shrink. The initial scene
does not depend on the class. Positions wrap around the edges of the frame, and an object that has
reached its largest or smallest size starts again from the other end. Therefore a single frame does
not reveal the class, and every part of a video shows the same motion.

Every video has its own random generator, seeded by (seed, split, index), so the files depend
neither on the number of processes nor on interruptions.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from slowfast_patches.utils.files import atomic_write, write_text
from slowfast_patches.utils.machine import available_cores
from slowfast_patches.utils.processes import WorkerCrashed, run_each

Image = NDArray[np.float32]
Clip = NDArray[np.uint8]

SPLITS = ("train", "val", "test")
MANIFEST = "demo_data.json"
VERSION = 1  # increase when the pictures or the encoding change; `claim` then rejects old folders
FPS = 30

# Maps each class to the signs of the changes of (x, y, angle, size). The y axis points down, so an
# increasing angle is a clockwise rotation.
MOTIONS: dict[str, tuple[int, int, int, int]] = {
    "left": (-1, 0, 0, 0),
    "right": (1, 0, 0, 0),
    "up": (0, -1, 0, 0),
    "down": (0, 1, 0, 0),
    "clockwise": (0, 0, 1, 0),
    "counterclockwise": (0, 0, -1, 0),
    "grow": (0, 0, 0, 1),
    "shrink": (0, 0, 0, -1),
}
CLASSES = tuple(MOTIONS)

# Lengths are in units of 1/80 of the short side of the frame. A clip has a stride of 8 frames, so
# between consecutive frames of a clip an object moves by at most 24 units, rotates by at most 64
# degrees, or passes through at most a quarter of the size cycle.
UNITS = 80.0
RADII = (14.0, 36.0)  # smallest and largest radius in units
SPEED = (1.5, 3.0)  # units per frame
TURN = (np.deg2rad(4.0), np.deg2rad(8.0))  # radians per frame
ZOOM = (0.015, 0.03)  # size cycles per frame
SHAKE = 0.3  # standard deviation in units

# Textures: range of the mean colour, and range of the standard deviation, both in [0, 1]. Objects
# are bright and the background is dark, so that a small network can find the objects easily.
GROUND = ((0.05, 0.3), (0.02, 0.05))
THING = ((0.5, 0.9), (0.15, 0.3))
SPRITE = 64  # width and height in pixels of the picture of an object

# Options that make decoding fast, because decoding is part of the cost of training: no loop filter
# and no arithmetic coding (fastdecode), no B-frames, no partitions of macroblocks, one reference
# frame, and a key frame every 8 frames. A single thread makes the bytes of a file independent of
# the number of cores.
ENCODER = {
    "preset": "medium",
    "tune": "fastdecode",
    "crf": "28",
    "x264-params": "keyint=8:min-keyint=8:scenecut=0:bframes=0:partitions=none:ref=1:threads=1",
}

# Matrix from RGB in [0, 255] to Y, U and V without offsets: ITU-R BT.601, limited range.
BT601 = (
    np.array([[65.738, 129.057, 25.064], [-37.945, -74.494, 112.439], [112.439, -94.154, -18.285]])
    / 256.0
)


@dataclass(frozen=True)
class DemoSpec:
    """Settings of a demo data set.

    Attributes:
        train: Number of training videos.
        val: Number of validation videos.
        test: Number of test videos.
        seed: Seed of all videos.
        frames: Number of frames per video.
        width: Width of a frame in pixels.
        height: Height of a frame in pixels.
    """

    train: int = 640
    val: int = 160
    test: int = 320
    seed: int = 0
    frames: int = 40
    width: int = 80
    height: int = 64

    def __post_init__(self) -> None:
        even = self.width % 2 == self.height % 2 == 0  # required by H.264
        if min(asdict(self).values()) < 0 or self.frames < 1 or not even:
            raise ValueError(
                f"{self} is invalid: no value may be negative, `frames` must be at least 1, and "
                "`width` and `height` must be even"
            )
        if min(self.width, self.height) < 32:
            raise ValueError(
                f"the frame size is {self.width} × {self.height}, but both must be at least 32"
            )


@dataclass(frozen=True)
class Thing:
    """Textured object of a scene.

    Attributes:
        sprite: Picture of the object, (SPRITE, SPRITE, 4): RGB times opacity, and opacity, both in
            [0, 1].
        state: X and y in pixels, angle in radians, and size phase from 0 (smallest) to 1 (largest),
            all in the frame `Scene.anchor`.
    """

    sprite: Image
    state: tuple[float, float, float, float]


@dataclass(frozen=True)
class Scene:
    """Everything that defines a video except its class."""

    ground: Image  # background (H, W, 3) in [0, 1], whose opposite edges match
    things: tuple[Thing, ...]
    # Absolute change per frame of each element of `Thing.state`. A class uses one of the elements.
    rates: tuple[float, float, float, float]
    shake: NDArray[np.float64]  # (T, 2): offset (x, y) in pixels of the camera in each frame
    anchor: int  # index of the frame in which the objects have their `state`


def draw_scene(rng: np.random.Generator, frames: int, width: int, height: int) -> Scene:
    """Return a random scene for a video of `frames` frames with `width` × `height` pixels."""
    unit = min(width, height) / UNITS
    count = int(rng.integers(2, 4))
    # Spread out the positions and sizes of the objects. They stay spread out, because all objects
    # change at the same rates. A crop therefore always shows some clearly visible objects.
    start = rng.random(3) + np.outer(np.arange(count), (0.7549, 0.5698, 1 / count))
    places = (start % 1.0) * (width, height, 1.0)
    speed = rng.uniform(*SPEED) * unit
    return Scene(
        ground=texture(rng, height, width, *GROUND),
        things=tuple(
            Thing(draw_sprite(rng), (x, y, 2 * np.pi * rng.random(), size))
            for x, y, size in places.tolist()
        ),
        rates=(speed, speed, rng.uniform(*TURN), rng.uniform(*ZOOM)),
        shake=_shake(rng, frames) * (SHAKE * unit),
        anchor=int(rng.integers(frames)),
    )


def render(scene: Scene, name: str) -> Clip:
    """Render a scene with the motion of the class `name`, and return (T, H, W, 3) uint8 RGB."""
    clip = np.empty((len(scene.shake), *scene.ground.shape), np.uint8)
    rates = np.multiply(scene.rates, MOTIONS[name])
    for t, (dx, dy) in enumerate(scene.shake):
        canvas = _shifted(scene.ground, dx, dy)
        for thing in scene.things:
            x, y, angle, size = thing.state + rates * (t - scene.anchor)
            paint(canvas, thing.sprite, x + dx, y + dy, angle, size % 1.0)
        clip[t] = np.rint(canvas * 255.0)
    return clip


def video_path(split: str, index: int) -> str:
    """Return the path of a video in the data set folder, such as `train/left_0003.mp4`."""
    return f"{split}/{CLASSES[_label(index)]}_{index // len(CLASSES):04d}.mp4"


def make_demo_data(output: Path, spec: DemoSpec, workers: int | None = None) -> int:
    """Render the videos of a data set that are missing in `output`, and then write the lists.

    Existing videos are kept, so calling the function again continues after an interruption.

    Args:
        output: Folder of the data set.
        spec: Number and size of the videos.
        workers: Number of processes that render videos. By default one per core.

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
    make: Callable[[tuple[str, int]], None], jobs: Sequence[tuple[str, int]], workers: int | None
) -> None:
    """Make videos in several processes.

    Args:
        make: Function that makes the video of a job.
        jobs: The (split, index) of each video.
        workers: Number of processes. None stands for one per core.

    Raises:
        ValueError: `workers` is less than 1.
        OSError: A video cannot be written.
    """
    workers = available_cores() if workers is None else workers
    if workers < 1:
        raise ValueError(f"the number of workers is {workers}, but must be at least 1")
    made = run_each(make, jobs, workers if workers > 1 else 0, jobs_per_worker=4)
    for (split, index), done in tqdm(made, "render", len(jobs), unit="video", disable=None):
        if isinstance(done, WorkerCrashed):
            raise OSError(f"two processes crashed while making video {index} of {split}")


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
        made = json.loads(manifest.read_text())
        if made != wanted:
            raise ValueError(
                f"{output} was made with the settings {made}. Use the same settings, or choose "
                "another folder"
            )
    elif any((output / f"{split}.csv").exists() for split in SPLITS):
        raise ValueError(
            f"{output} has csv files that do not belong to demo data. Choose another folder"
        )
    for split in SPLITS:
        (output / split).mkdir(parents=True, exist_ok=True)
    write_text(manifest, json.dumps(wanted, indent=2) + "\n")


def _make_video(output: Path, spec: DemoSpec, job: tuple[str, int]) -> None:
    split, index = job
    rng = np.random.default_rng((spec.seed, SPLITS.index(split), index))
    scene = draw_scene(rng, spec.frames, spec.width, spec.height)
    clip = render(scene, CLASSES[_label(index)])
    write_clip(output / video_path(split, index), clip, FPS, ENCODER)


def draw_sprite(rng: np.random.Generator) -> Image:
    opacity = _shape(rng)[..., None]
    return np.concatenate([texture(rng, SPRITE, SPRITE, *THING) * opacity, opacity], axis=2)


def texture(
    rng: np.random.Generator,
    height: int,
    width: int,
    level: tuple[float, float],
    contrast: tuple[float, float],
) -> Image:
    """Return random coloured noise, (height, width, 3) in [0, 1], whose opposite edges match.

    Args:
        rng: The random generator.
        height: Height in pixels.
        width: Width in pixels.
        level: Range from which the mean of each colour channel is drawn.
        contrast: Range from which the standard deviation is drawn.
    """
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width))
    gain = (frequency + 0.02) ** -rng.uniform(1.2, 2.2)
    gain[0, 0] = 0.0
    white = np.fft.fft2(rng.standard_normal((2, height, width)))
    fields = np.fft.ifft2(white * gain).real
    fields /= fields.std(axis=(1, 2), keepdims=True)
    directions = rng.standard_normal((2, 3))
    directions *= rng.uniform(*contrast) / np.linalg.norm(directions, axis=1, keepdims=True)
    colour = rng.uniform(*level, 3) + np.einsum("fhw,fc->hwc", fields, directions)
    # The last bits of a sum of products depend on the memory layout of the operands. Round, so that
    # the bytes of a file are reproducible.
    return np.asarray(np.clip(colour, 0.0, 1.0).round(4), np.float32)


def _shape(rng: np.random.Generator) -> Image:
    """Return the opacity, (SPRITE, SPRITE) in [0, 1], of a random polygon, oval or blob."""
    y, x = np.mgrid[0:SPRITE, 0:SPRITE] * (2.0 / (SPRITE - 1)) - 1.0
    radius = np.hypot(x, y)
    theta = np.arctan2(y, x)
    kind = int(rng.integers(3))
    if kind == 0:
        side = 2 * np.pi / int(rng.integers(3, 7))
        outline = np.cos(side / 2) / np.cos(theta % side - side / 2)
    elif kind == 1:
        outline = 1.0 / np.hypot(np.cos(theta), np.sin(theta) / rng.uniform(0.45, 0.95))
    else:
        outline = 1.0 + 0.1 * sum(np.cos(k * theta + 2 * np.pi * rng.random()) for k in (2, 3, 5))
        outline /= outline.max()
    edge = 2.5 / SPRITE  # width of the soft border; the outermost pixels stay transparent
    opacity = (outline * (1 - 2 * edge) - radius) / edge + 0.5
    return np.asarray(np.clip(opacity, 0.0, 1.0), np.float32)


def _shake(rng: np.random.Generator, frames: int) -> NDArray[np.float64]:
    """Return random camera offsets, (frames, 2), with unit variance.

    The offsets are correlated in time. Reversing the time does not change their distribution.
    """
    offsets = rng.standard_normal((frames, 2))
    for now, before in zip(offsets[1:], offsets, strict=False):
        now[:] = 0.6 * before + 0.8 * now
    return offsets


def _shifted(tile: Image, dx: float, dy: float) -> Image:
    """Shift a picture (H, W, 3) right by dx and down by dy pixels, with wrap-around.

    Fractions of pixels are interpolated.
    """
    for axis, offset in ((1, dx), (0, dy)):
        whole = int(np.floor(offset))
        part = np.float32(offset - whole)
        near = np.roll(tile, whole, axis)
        tile = near + part * (np.roll(near, 1, axis) - near)
    return tile


def radius_at(size: float, radii: tuple[float, float], short_side: int) -> float:
    """Return the radius in pixels of an object.

    Args:
        size: Size phase, from 0 (smallest) to 1 (largest).
        radii: Radii at the phases 0 and 1, in 1/80 of the short side of the frame.
        short_side: Short side of the frame in pixels.
    """
    return float(radii[0] * (radii[1] / radii[0]) ** size * short_side / UNITS)


def paint(
    canvas: Image,
    sprite: Image,
    x: float,
    y: float,
    angle: float,
    size: float,
    radii: tuple[float, float] = RADII,
) -> None:
    """Blend a sprite into the canvas (H, W, 3), in place. Parts beyond an edge wrap around.

    Args:
        canvas: The canvas.
        sprite: The picture of the object, (S, S, 4).
        x: Horizontal position of the centre in pixels.
        y: Vertical position of the centre in pixels.
        angle: Clockwise rotation in radians.
        size: Size phase, from 0 (smallest) to 1 (largest).
        radii: Radii at the phases 0 and 1, in 1/80 of the short side of the canvas.
    """
    height, width = canvas.shape[:2]
    radius = radius_at(size, radii, min(height, width))
    # Fade at both ends of the size cycle, so that the jump in size between the ends is invisible.
    strength = np.float32(min(1.0, size / 0.15, (1.0 - size) / 0.15))
    reach = int(np.ceil(radius)) + 1
    rows = np.arange(int(y) - reach, int(y) + reach + 1)
    columns = np.arange(int(x) - reach, int(x) + reach + 1)
    u = (columns - x) / radius
    v = ((rows - y) / radius)[:, None]
    cos = np.cos(angle)
    sin = np.sin(angle)
    layer = _sample(sprite, cos * u + sin * v, cos * v - sin * u) * strength
    window = np.ix_(rows % height, columns % width)
    canvas[window] = canvas[window] * (1.0 - layer[..., 3:]) + layer[..., :3]


def _sample(sprite: Image, u: NDArray[np.float64], v: NDArray[np.float64]) -> Image:
    """Sample a sprite (S, S, C) at positions (u, v) in [-1, 1] with bilinear interpolation.

    Positions outside this range get the value of the nearest border pixel, which is transparent.
    """
    last = sprite.shape[0] - 1
    column, row = (np.clip((c + 1) * (last / 2), 0, last - 1e-3)[..., None] for c in (u, v))
    points = sprite.reshape(-1, sprite.shape[2])
    corner = row[..., 0].astype(np.intp) * sprite.shape[1] + column[..., 0].astype(np.intp)
    lines = (corner, corner + sprite.shape[1])
    nearest = [(points.take(at, 0), points.take(at + 1, 0)) for at in lines]
    upper, lower = (near + np.float32(column % 1) * (next_ - near) for near, next_ in nearest)
    return np.asarray(upper + np.float32(row % 1) * (lower - upper), np.float32)


def _to_yuv(pixels: Clip) -> Clip:
    """Convert RGB (H, W, 3) to the planes of yuv420p (BT.601, limited range), (3H/2, W).

    Do not use FFmpeg's conversion, because it is not deterministic for such small frames.
    """
    y, u, v = np.moveaxis(pixels @ BT601.T + (16.0, 128.0, 128.0), 2, 0)
    halves = [(c[::2, ::2] + c[1::2, ::2] + c[::2, 1::2] + c[1::2, 1::2]) / 4 for c in (u, v)]
    planes = [y, *(half.reshape(-1, y.shape[1]) for half in halves)]
    return np.asarray(np.rint(np.concatenate(planes).round(3)), np.uint8)
