"""Determine the frame rate of a video, and when each frame is shown, from the timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MAX_DEVIATION = 1.0
"""Maximum deviation, in frames, of a frame from its time at a constant rate. If no frame deviates
more, the rate counts as constant. Rounding to milliseconds or one missing frame deviates less."""
_MAX_DISAGREEMENT = 0.03
"""Maximum relative difference between the rate of the timestamps and the rate that FFmpeg reports.
In addition, the durations may differ by the longest gap between frames. If the difference is
larger, the rate of the timestamps is used."""
_LONG_GAP = 0.5
"""Typical time between frames, in seconds, above which most clips have few distinct frames."""
_ROUNDING = 0.0005
"""Half a millisecond, in seconds. A frame counts as shown this much before its timestamp, because
Matroska and other containers round timestamps to milliseconds."""
_MAX_REORDER = 16
"""Number of places by which a frame may move when frames are sorted by timestamp. A codec moves
frames by at most 16 places. Frames move further in files that were joined."""
JOINABLE = {"mpegts", "mpeg"}
"""Names of the containers whose files may be joined, so that timestamps may jump."""
_MAX_GAP = 10.0
"""Gap between frames, in seconds, above which the timestamps of a joined file are assumed to have
jumped. FFmpeg uses the same value."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class FrameTiming(NamedTuple):
    """Frame rate of a video, and the times at which its frames are shown.

    Attributes:
        fps: The mean frame rate.
        times: See `ScannedVideo`. None if the rate is constant.
        remark: Description of a variable rate, of a rate that contradicts the one that FFmpeg
            reports, and of long times between frames. "" if there is nothing to describe.
    """

    fps: float
    times: Ints | None = None
    remark: str = ""


def timing_of(
    timestamps: Ints | None, tick: float, reported: float, *, joinable: bool = False
) -> FrameTiming | None:
    """Return the timing of a video, or None if its frame rate is unknown.

    Args:
        timestamps: Timestamps of the frames in display order, in ticks. None if they are unknown.
        tick: Duration of a tick in seconds. 0 if unknown.
        reported: The frame rate that FFmpeg reports. 0 if unknown.
        joinable: Whether the container is in `JOINABLE`.
    """
    times = None
    if timestamps is not None:
        times = _sorted_times(timestamps, tick, joinable=joinable)
    if times is None:
        return FrameTiming(reported) if reported else None
    intervals = len(times) - 1
    seconds = tick * int(times[-1] - times[0])
    measured = intervals / seconds
    places = _places(times)
    varies = np.abs(places - np.arange(len(places))).max() > _MAX_DEVIATION
    expected = intervals / reported if reported else seconds
    last = np.diff(places).max() / measured  # maximum duration of the last frame
    disagrees = abs(seconds - expected) > _MAX_DISAGREEMENT * expected + last
    remarks = list[str]()
    if varies:
        remarks.append(f"has a variable frame rate, {measured:.4g} frames per second on average")
    elif disagrees:
        remarks.append(f"has {measured:.4g} frames per second, but FFmpeg reports {reported:.4g}")
    if (gap := tick * _typical_gap(times)) > _LONG_GAP:
        remarks.append(f"shows a frame for {gap:.3g} s, so its clips have few distinct frames")
    fps = measured if varies or disagrees else reported or measured
    return FrameTiming(fps, times if varies else None, " and ".join(remarks))


def avi_times(decoding_times: Sequence[int | None], timestamps: Ints, *, reorders: bool) -> Ints:
    """Return when the frames of an AVI file are shown.

    AVI files have no presentation timestamps, so FFmpeg makes them up. For H.264 without B-frames,
    it gives each frame the timestamp of the next frame. In this case, return the decoding
    timestamps, which are correct.

    Args:
        decoding_times: Decoding timestamps of the packets.
        timestamps: Timestamps of the frames.
        reorders: Whether the codec reorders frames.
    """
    if reorders or [*decoding_times[1:]] != timestamps[:-1].tolist():
        return timestamps
    return np.array(decoding_times, np.int64)


def moments_of(times: Ints | None, fps: float) -> Floats | None:
    """Return the field `moments` of `multigrid.Video`.

    Args:
        times: The field `times` of `FrameTiming`.
        fps: The mean frame rate.
    """
    return None if times is None else _places(times) - _ROUNDING * fps


def _typical_gap(times: Ints) -> int:
    """Return the median gap between frames. Each gap is weighted by its duration."""
    gaps = np.sort(np.diff(times))
    return int(gaps[np.searchsorted(np.cumsum(gaps), gaps.sum() / 2)])


def _sorted_times(timestamps: Ints, tick: float, *, joinable: bool) -> Ints | None:
    """Return the timestamps in ascending order, or None if they do not tell when frames are shown.

    Timestamps may be in decoding order, as in AVI files with B-frames, so sort them. Return None
    for a single frame, for joined files, if no codec reorders frames so far, and if timestamps are
    too large for exact arithmetic.
    """
    if len(timestamps) < 2 or not tick:
        return None
    if max(-int(timestamps.min()), int(timestamps.max())) > 2**52:
        return None
    gaps = np.diff(timestamps)
    if gaps.min() < 0:
        order = np.argsort(timestamps)
        if np.abs(order - np.arange(len(order))).max() > _MAX_REORDER:
            return None
        timestamps = timestamps[order]
        gaps = np.diff(timestamps)
    return None if joinable and tick * gaps.max() > _MAX_GAP else timestamps


def _places(times: Ints) -> Floats:
    """Return the times of frames since the first, as multiples of the mean time between frames."""
    places: Floats = (times - times[0]) * ((len(times) - 1) / int(times[-1] - times[0]))
    return places
