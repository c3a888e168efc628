"""Make a small data set of rendered videos whose classes can be told apart only by motion.

Textured things lie on a textured ground under a shaking camera. The class is their motion: they
move left, right, up or down, turn clockwise or counterclockwise, grow or shrink. The scene is drawn
independently of the class. Positions wrap around the frame, and sizes wrap around a cycle. So a
single frame is equally likely in every class, and every part of a video shows the same motion.

Every video has its own generator, seeded by (seed, split, index). So the files depend neither on
the number of processes nor on interruptions.
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
VERSION = 1  # increase when the pictures or the encoding change; old folders are then refused
FPS = 30

# Class name -> signs of the rates of (x, y, angle, size). y points down, so an increasing angle is
# a clockwise turn.
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

# Lengths are in units of 1/80 of the short side. Speeds are low enough for consecutive frames of a
# clip at stride 8 to match: at most 24 units, 64 degrees, or a quarter of the size cycle.
UNITS = 80.0
RADII = (14.0, 36.0)
SPEED = (1.5, 3.0)  # units per frame
TURN = (np.deg2rad(4.0), np.deg2rad(8.0))  # radians per frame
ZOOM = (0.015, 0.03)  # size cycles per frame
SHAKE = 0.3  # standard deviation in units

# Textures: ranges of the mean colour and of its standard deviation, in [0, 1]. Bright things lie on
# a dark ground, so that a small network need only learn their motion, not how to find them.
GROUND = ((0.05, 0.3), (0.02, 0.05))
THING = ((0.5, 0.9), (0.15, 0.3))
SPRITE = 64  # pixels along the side of a thing's picture

# Reading is part of the cost of a training run, so the stream is cheap to decode: no loop filter,
# no arithmetic coding (fastdecode), no B-frames, whole macroblocks, one reference, and a key frame
# every 8 frames. One thread, so that the bytes do not depend on the number of cores.
ENCODER = {
    "preset": "medium",
    "tune": "fastdecode",
    "crf": "28",
    "x264-params": "keyint=8:min-keyint=8:scenecut=0:bframes=0:partitions=none:ref=1:threads=1",
}

# From RGB in [0, 255] to Y, U, V: ITU-R BT.601, limited range.
BT601 = (
    np.array([[65.738, 129.057, 25.064], [-37.945, -74.494, 112.439], [112.439, -94.154, -18.285]])
    / 256.0
)


@dataclass(frozen=True)
class DemoSpec:
    """Size of a demo data set: videos per split, seed, frames per video, frame size in pixels."""

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
                f"{self}: numbers must not be negative, frames at least 1, and sizes even"
            )
        if min(self.width, self.height) < 32:
            raise ValueError(f"a size of {self.width} {self.height}: give 32 pixels or more")


@dataclass(frozen=True)
class Thing:
    """Textured thing, with its position and size at the anchor frame of the scene."""

    sprite: Image  # (SPRITE, SPRITE, 4): colour times opacity, and opacity, in [0, 1]
    state: tuple[float, float, float, float]  # x, y in pixels, angle, size as a place in its cycle


@dataclass(frozen=True)
class Scene:
    """Everything that defines a video except its class."""

    ground: Image  # (H, W, 3) in [0, 1], tiling the plane
    things: tuple[Thing, ...]
    rates: tuple[
        float, float, float, float
    ]  # change of a thing's state per frame; each class uses one of them
    shake: NDArray[np.float64]  # (T, 2): the camera's offset (x, y) in pixels in each frame
    anchor: int  # the frame in which things have their `state`, in every class


def draw_scene(rng: np.random.Generator, frames: int, width: int, height: int) -> Scene:
    """Draw a random scene for `frames` frames of `width` × `height` pixels."""
    unit = min(width, height) / UNITS
    count = int(rng.integers(2, 4))
    # Positions and sizes are spread out. They stay so, because all things have the same rates. So a
    # crop shows some things at any time in any class, and some of these are clearly visible.
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
    """Render the frames of a scene in class `name`, (T, H, W, 3) RGB."""
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
    """Return the path of a video relative to the data set, such as `train/left_0003.mp4`."""
    return f"{split}/{CLASSES[_label(index)]}_{index // len(CLASSES):04d}.mp4"


def make_demo_data(output: Path, spec: DemoSpec, workers: int | None = None) -> int:
    """Make the data set in `output` complete according to `spec`.

    Existing videos are kept, so an interrupted run can be continued. The csv files are written
    last.

    Args:
        output: The folder of the data set.
        spec: Its size.
        workers: Processes that render. By default one per core.

    Returns:
        The number of new videos.

    Raises:
        ValueError: `output` was made with another `spec`, or has csv files of another origin.
        OSError: `output` cannot be written.
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
    """Make videos in `workers` processes, by default one per core.

    Args:
        make: Makes the video of a job.
        jobs: The (split, index) of each video.
        workers: Number of processes.

    Raises:
        ValueError: `workers` is less than 1.
        OSError: A video cannot be written.
    """
    workers = available_cores() if workers is None else workers
    if workers < 1:
        raise ValueError(f"workers is {workers}: give 1 or more")
    made = run_each(make, jobs, workers if workers > 1 else 0, jobs_per_worker=4)
    for (split, index), done in tqdm(made, "render", len(jobs), unit="video", disable=None):
        if isinstance(done, WorkerCrashed):
            raise OSError(f"video {index} of {split}: two processes died while making it")


def write_clip(path: Path, clip: Clip, fps: int, options: Mapping[str, str]) -> None:
    """Write (T, H, W, 3) RGB frames as H.264 in mp4.

    The file is written atomically. `options` are options of FFmpeg's libx264.

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
    """Write the manifest, or check that the existing one in `output` is the same.

    Raises:
        ValueError: `output` was made with other settings, or has csv files of another origin.
    """
    wanted = asdict(spec) | {"version": VERSION} | more
    manifest = output / MANIFEST
    if manifest.exists():
        made = json.loads(manifest.read_text())
        if made != wanted:
            raise ValueError(
                f"{output} was made with {made}: give these numbers, or another folder"
            )
    elif any((output / f"{split}.csv").exists() for split in SPLITS):
        raise ValueError(
            f"{output} has csv files that are not part of demo data: give another folder"
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
    """Draw coloured noise (height, width, 3) in [0, 1] that tiles. It may be smooth or grainy."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width))
    gain = (frequency + 0.02) ** -rng.uniform(1.2, 2.2)
    gain[0, 0] = 0.0
    white = np.fft.fft2(rng.standard_normal((2, height, width)))
    fields = np.fft.ifft2(white * gain).real
    fields /= fields.std(axis=(1, 2), keepdims=True)
    directions = rng.standard_normal((2, 3))
    directions *= rng.uniform(*contrast) / np.linalg.norm(directions, axis=1, keepdims=True)
    colour = rng.uniform(*level, 3) + np.einsum("fhw,fc->hwc", fields, directions)
    # The last bits of a sum of products depend on the memory layout of its operands. Rounding makes
    # the bytes of a file reproducible.
    return np.asarray(np.clip(colour, 0.0, 1.0).round(4), np.float32)


def _shape(rng: np.random.Generator) -> Image:
    """Draw the opacity (SPRITE, SPRITE) of a polygon, an oval or a blob in the unit disc."""
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
    edge = 2.5 / SPRITE  # a soft border of about a pixel; the rim of the sprite stays transparent
    opacity = (outline * (1 - 2 * edge) - radius) / edge + 0.5
    return np.asarray(np.clip(opacity, 0.0, 1.0), np.float32)


def _shake(rng: np.random.Generator, frames: int) -> NDArray[np.float64]:
    """Draw the tremor of a camera (frames, 2), with unit variance and symmetric in time."""
    offsets = rng.standard_normal((frames, 2))
    for now, before in zip(offsets[1:], offsets, strict=False):
        now[:] = 0.6 * before + 0.8 * now
    return offsets


def _shifted(tile: Image, dx: float, dy: float) -> Image:
    """Move a tiling picture (H, W, 3) right by dx and down by dy pixels, with interpolation."""
    for axis, offset in ((1, dx), (0, dy)):
        whole = int(np.floor(offset))
        part = np.float32(offset - whole)
        near = np.roll(tile, whole, axis)
        tile = near + part * (np.roll(near, 1, axis) - near)
    return tile


def radius_at(size: float, radii: tuple[float, float], short_side: int) -> float:
    """Return the radius in pixels at a place in the size cycle, whose ends are `radii` in units."""
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
    """Blend a sprite into the canvas (H, W, 3), wrapping around its edges."""
    height, width = canvas.shape[:2]
    radius = radius_at(size, radii, min(height, width))
    # Fade at both ends of the cycle, so that the jump from one end to the other is not visible.
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
    """Sample a sprite (S, S, C) at (u, v) in [-1, 1] with bilinear interpolation.

    Points outside get the value of its transparent rim.
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

    FFmpeg's conversion of such small frames is not deterministic.
    """
    y, u, v = np.moveaxis(pixels @ BT601.T + (16.0, 128.0, 128.0), 2, 0)
    halves = [(c[::2, ::2] + c[1::2, ::2] + c[::2, 1::2] + c[1::2, 1::2]) / 4 for c in (u, v)]
    planes = [y, *(half.reshape(-1, y.shape[1]) for half in halves)]
    return np.asarray(np.rint(np.concatenate(planes).round(3)), np.uint8)
