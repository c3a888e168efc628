"""Triton kernels of batch normalisation over groups of clips in channels_last_3d.

`triton.py` runs them. A program of most of them takes `rows` rows, a chunk, of one clip and
WIDTH channels, in tiles of HEIGHT rows. The sizes that change with the batch are plain arguments,
and the kernels do not depend on their being round: nothing is compiled anew when the shape changes.
The number of channels comes as `units` of UNIT, so that the compiler knows that rows begin at
multiples of 16 bytes and loads so many at once.

This module needs triton, which comes with torch's CUDA builds: only `triton.py` imports it.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "combine_gradients",
    "combine_moments",
    "gradient_sums",
    "input_gradient",
    "moments",
    "normalize",
    "nothing",
]

_SIZES = ["groups", "positions", "rows", "chunks", "units"]


@triton.jit
def nothing(x):
    """Write a zero: the least that a kernel can do."""
    tl.store(x, 0.0)


@triton.jit
def _place(
    program,
    groups,
    positions,
    rows,
    chunks,
    channels,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """What a program works on: where its values begin, how many rows, its channels, its group."""
    blocks = tl.cdiv(channels, WIDTH)
    chunk = program // blocks  # of all clips
    clip = chunk // chunks
    first = (chunk % chunks) * rows
    length = tl.minimum(rows, positions - first)
    column = (program % blocks) * WIDTH
    begin = (clip.to(tl.int64) * positions + first) * channels + column
    offsets = tl.arange(0, HEIGHT)[:, None] * channels + tl.arange(0, WIDTH)[None, :]
    channel = column + tl.arange(0, WIDTH)
    return begin, offsets, length, channel, channel < channels, chunk, clip % groups


@triton.jit(do_not_specialize=_SIZES)
def moments(
    x,
    means,
    squares,
    groups,
    positions,
    rows,
    chunks,
    units,
    UNIT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Mean and sum of squared deviations from it, of each chunk and channel.

    Every lane of a tile follows its own values (Welford), and the lanes are combined at the end
    (Chan et al., 1979): a plain sum of squares would cancel where the mean is large beside the
    deviation.
    """
    channels = units * UNIT
    # From the end: what was written last, by the layer before, may still be in the cache.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    begin, offsets, length, channel, inside, chunk, _ = _place(
        program, groups, positions, rows, chunks, channels, HEIGHT, WIDTH
    )
    dtype: tl.constexpr = means.dtype.element_ty
    mean = tl.zeros((HEIGHT, WIDTH), dtype)
    square = tl.zeros((HEIGHT, WIDTH), dtype)
    seen = tl.zeros((1, 1), dtype)
    step = HEIGHT * channels
    columns = inside[None, :]
    # Four values join at once, in fewer operations than one by one and with four loads under way.
    whole = length // (4 * HEIGHT) * (4 * HEIGHT)
    for start in range(0, whole, 4 * HEIGHT):
        place = x + (begin + start * channels)
        a = tl.load(place + offsets, columns, other=0.0).to(dtype)
        b = tl.load(place + step + offsets, columns, other=0.0).to(dtype)
        c = tl.load(place + 2 * step + offsets, columns, other=0.0).to(dtype)
        d = tl.load(place + 3 * step + offsets, columns, other=0.0).to(dtype)
        four = (a + b + c + d) * 0.25
        a, b, c, d = a - four, b - four, c - four, d - four
        seen += 4.0
        delta = four - mean
        mean += delta * (4.0 / seen)
        square += a * a + b * b + c * c + d * d + delta * (four - mean) * 4.0
    count = tl.zeros((HEIGHT, 1), dtype) + seen
    for start in range(whole, length, HEIGHT):
        there = (start + tl.arange(0, HEIGHT) < length)[:, None]
        place = x + (begin + start * channels)
        value = tl.load(place + offsets, there & columns, other=0.0).to(dtype)
        count += there.to(dtype)
        delta = tl.where(there, value - mean, 0.0)
        mean += delta / tl.maximum(count, 1.0)
        square += delta * (value - mean)
    share = count / length.to(dtype)
    level = tl.sum(mean * share, 0)
    rest = mean - level[None, :]
    correction = tl.sum(rest * share, 0)  # what rounding has lost, where the level is large
    rest -= correction[None, :]
    place = chunk.to(tl.int64) * channels + channel
    tl.store(means + place, level + correction, inside)
    tl.store(squares + place, tl.sum(square + count * rest * rest, 0), inside)


@triton.jit
def _of_group(
    group,
    start,
    repeats,
    groups,
    positions,
    rows,
    chunks,
    HEIGHT: tl.constexpr,
):
    """Some of a group's chunks: their number among all, how many rows they have, and which are."""
    number = start + tl.arange(0, HEIGHT)
    there = number < repeats * chunks
    inner = number % chunks
    chunk = ((number // chunks) * groups + group) * chunks + inner
    length = tl.minimum(rows, positions - inner * rows)
    return chunk.to(tl.int64), length, there


@triton.jit(do_not_specialize=["repeats", *_SIZES])
def combine_moments(
    means,
    squares,
    weight,
    mean,
    invstd,
    scale,
    unbiased,
    repeats,
    groups,
    positions,
    rows,
    chunks,
    units,
    UNIT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
):
    """The statistics of one group from those of its chunks, in float64."""
    channels = units * UNIT
    blocks = tl.cdiv(channels, WIDTH)
    group = tl.program_id(0) // blocks
    channel = (tl.program_id(0) % blocks) * WIDTH + tl.arange(0, WIDTH)
    inside = channel < channels
    # Deviations are taken from the first chunk's mean: nothing cancels.
    first = group.to(tl.int64) * chunks * channels + channel
    pivot = tl.load(means + first, inside, other=0.0).to(tl.float64)
    total = tl.zeros((HEIGHT, WIDTH), tl.float64)
    square = tl.zeros((HEIGHT, WIDTH), tl.float64)
    for start in range(0, repeats * chunks, HEIGHT):
        chunk, length, there = _of_group(
            group, start, repeats, groups, positions, rows, chunks, HEIGHT
        )
        place = chunk[:, None] * channels + channel[None, :]
        mask = there[:, None] & inside[None, :]
        delta = tl.load(means + place, mask, other=0.0).to(tl.float64) - pivot[None, :]
        weighted = tl.where(mask, delta, 0.0) * length.to(tl.float64)[:, None]
        total += weighted
        square += tl.load(squares + place, mask, other=0.0).to(tl.float64) + weighted * delta
    count = repeats.to(tl.float64) * positions.to(tl.float64)
    share, rest = 1.0 / count, 1.0 / (count - 1.0)
    offset = tl.sum(total, 0) * share
    deviation = tl.sum(square, 0) - count * offset * offset
    deviation = tl.where(deviation < 0.0, 0.0, deviation)  # a NaN stays one
    inverse = 1.0 / tl.sqrt(deviation * share + EPS)
    place = group.to(tl.int64) * channels + channel
    factor = tl.load(weight + channel, inside, other=0.0).to(tl.float64)
    tl.store(mean + place, pivot + offset, inside)
    tl.store(invstd + place, inverse, inside)
    tl.store(scale + place, factor * inverse, inside)
    tl.store(unbiased + place, deviation * rest, inside)


@triton.jit(do_not_specialize=_SIZES)
def normalize(
    x,
    output,
    mean,
    scale,
    bias,
    groups,
    positions,
    rows,
    chunks,
    units,
    UNIT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """(x - mean) · scale + bias."""
    channels = units * UNIT
    begin, offsets, length, channel, inside, _, group = _place(
        tl.program_id(0), groups, positions, rows, chunks, channels, 2 * HEIGHT, WIDTH
    )
    place = group * channels + channel
    level = tl.load(mean + place, inside, other=0.0)[None, :]
    factor = tl.load(scale + place, inside, other=0.0)[None, :]
    shift = tl.load(bias + channel, inside, other=0.0)[None, :]
    for start in range(0, length, 2 * HEIGHT):
        here = begin + start * channels
        there = (start + tl.arange(0, 2 * HEIGHT) < length)[:, None] & inside[None, :]
        value = tl.load(x + here + offsets, there, other=0.0).to(level.dtype)
        tl.store(output + here + offsets, (value - level) * factor + shift, there)


@triton.jit(do_not_specialize=_SIZES)
def gradient_sums(
    grad,
    x,
    mean,
    sums,
    products,
    groups,
    positions,
    rows,
    chunks,
    units,
    UNIT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Sums of the gradient, and of its product with x - mean, of each chunk and channel."""
    channels = units * UNIT
    program = tl.num_programs(0) - 1 - tl.program_id(0)  # from the end, as in the forward
    begin, offsets, length, channel, inside, chunk, group = _place(
        program, groups, positions, rows, chunks, channels, 2 * HEIGHT, WIDTH
    )
    level = tl.load(mean + group * channels + channel, inside, other=0.0)[None, :]
    total = tl.zeros((2 * HEIGHT, WIDTH), level.dtype)
    product = tl.zeros((2 * HEIGHT, WIDTH), level.dtype)
    for start in range(0, length, 2 * HEIGHT):
        here = begin + start * channels
        there = (start + tl.arange(0, 2 * HEIGHT) < length)[:, None] & inside[None, :]
        slope = tl.load(grad + here + offsets, there, other=0.0).to(level.dtype)
        value = tl.load(x + here + offsets, there, other=0.0).to(level.dtype)
        total += slope
        product += slope * (value - level)
    place = chunk.to(tl.int64) * channels + channel
    tl.store(sums + place, tl.sum(total, 0), inside)
    tl.store(products + place, tl.sum(product, 0), inside)


@triton.jit(do_not_specialize=["repeats", *_SIZES])
def combine_gradients(
    sums,
    products,
    weight,
    invstd,
    scale,
    slope,
    level,
    grad_weight,
    grad_bias,
    repeats,
    groups,
    positions,
    rows,
    chunks,
    units,
    UNIT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One group's gradients of weight and bias, and what makes the input's, in float64."""
    channels = units * UNIT
    blocks = tl.cdiv(channels, WIDTH)
    group = tl.program_id(0) // blocks
    channel = (tl.program_id(0) % blocks) * WIDTH + tl.arange(0, WIDTH)
    inside = channel < channels
    total = tl.zeros((HEIGHT, WIDTH), tl.float64)
    product = tl.zeros((HEIGHT, WIDTH), tl.float64)
    for start in range(0, repeats * chunks, HEIGHT):
        chunk, _, there = _of_group(group, start, repeats, groups, positions, rows, chunks, HEIGHT)
        place = chunk[:, None] * channels + channel[None, :]
        mask = there[:, None] & inside[None, :]
        total += tl.load(sums + place, mask, other=0.0).to(tl.float64)
        product += tl.load(products + place, mask, other=0.0).to(tl.float64)
    share = 1.0 / (repeats.to(tl.float64) * positions.to(tl.float64))
    place = group.to(tl.int64) * channels + channel
    inverse = tl.load(invstd + place, inside, other=0.0).to(tl.float64)
    factor = inverse * tl.load(weight + channel, inside, other=0.0).to(tl.float64)
    along, across = tl.sum(product, 0), tl.sum(total, 0)
    tl.store(scale + place, factor, inside)
    tl.store(slope + place, -factor * inverse * inverse * along * share, inside)
    tl.store(level + place, -factor * across * share, inside)
    tl.store(grad_weight + place, along * inverse, inside)
    tl.store(grad_bias + place, across, inside)


@triton.jit(do_not_specialize=_SIZES)
def input_gradient(
    grad,
    x,
    grad_x,
    mean,
    scale,
    slope,
    level,
    groups,
    positions,
    rows,
    chunks,
    units,
    UNIT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """scale · grad + slope · (x - mean) + level."""
    channels = units * UNIT
    begin, offsets, length, channel, inside, _, group = _place(
        tl.program_id(0), groups, positions, rows, chunks, channels, 2 * HEIGHT, WIDTH
    )
    place = group * channels + channel
    middle = tl.load(mean + place, inside, other=0.0)[None, :]
    outer = tl.load(scale + place, inside, other=0.0)[None, :]
    inner = tl.load(slope + place, inside, other=0.0)[None, :]
    shift = tl.load(level + place, inside, other=0.0)[None, :]
    for start in range(0, length, 2 * HEIGHT):
        here = begin + start * channels
        there = (start + tl.arange(0, 2 * HEIGHT) < length)[:, None] & inside[None, :]
        above = tl.load(grad + here + offsets, there, other=0.0).to(middle.dtype)
        value = tl.load(x + here + offsets, there, other=0.0).to(middle.dtype)
        tl.store(grad_x + here + offsets, above * outer + (value - middle) * inner + shift, there)
