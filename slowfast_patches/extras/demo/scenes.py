"""Draw the pictures of the demo data: textured objects that move over a textured background.

The class of a video is the motion of the objects. The initial scene does not depend on the class.
Positions wrap around the edges of the frame, and an object that has reached its largest or smallest
size starts again from the other end. Therefore a single frame does not reveal the class, and every
part of a video shows the same motion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.float32]
Clip = NDArray[np.uint8]

# Maps each class to the signs of the changes of (x, y, angle, size).
# The y axis points down, so an increasing angle is a clockwise rotation.
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

# Lengths are in units of 1/80 of the short side of the frame. A clip has a stride of 8 frames.
# Between two frames of a clip, an object moves by at most 24 units.
# A rotating object turns by at most 64 degrees.
# An object that changes its size passes through at most a quarter of the size cycle.
UNITS = 80.0
RADII = (14.0, 36.0)  # smallest and largest radius in units
SPEED = (1.5, 3.0)  # units per frame
TURN = (np.deg2rad(4.0), np.deg2rad(8.0))  # radians per frame
ZOOM = (0.015, 0.03)  # size cycles per frame
SHAKE = 0.3  # standard deviation in units

# Textures: range of the mean colour, and range of the standard deviation, both in [0, 1].
# Objects are bright and the background is dark, so that a small network finds the objects.
GROUND = ((0.05, 0.3), (0.02, 0.05))
THING = ((0.5, 0.9), (0.15, 0.3))
SPRITE = 64  # width and height in pixels of the picture of an object


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
    # Spread out the positions and sizes of the objects.
    # They stay spread out, because all objects change at the same rates.
    # A crop therefore always shows some clearly visible objects.
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
    # The last bits of a sum of products depend on the memory layout of the operands.
    # Round the values, so that the bytes of a file are reproducible.
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
