"""Writing a clip of the demo sets as a video file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from slowfast_patches.utils.files import written_whole

__all__ = ["write_clip"]

Clip = NDArray[np.uint8]

# From RGB in [0, 255] to Y, U, V: ITU-R BT.601, limited range.
BT601 = (
    np.array([[65.738, 129.057, 25.064], [-37.945, -74.494, 112.439], [112.439, -94.154, -18.285]])
    / 256.0
)


def write_clip(path: Path, clip: Clip, fps: int, options: Mapping[str, str]) -> None:
    """Write (T, H, W, 3) RGB frames as h264 in mp4; `options` are those of FFmpeg's libx264.

    Raises:
        OSError: it cannot be written; `path` is as it was.
    """
    with written_whole(path) as file, av.open(file.name, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=fps, options=dict(options))
        stream.height, stream.width = clip.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for pixels in clip:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(_to_yuv(pixels), "yuv420p")))
        container.mux(stream.encode())


def _to_yuv(pixels: Clip) -> Clip:
    """RGB (H, W, 3) as the planes of yuv420p (BT.601, limited range), (3H/2, W).

    FFmpeg's own conversion of such small frames does not give the same bytes every time.
    """
    y, u, v = np.moveaxis(pixels @ BT601.T + (16.0, 128.0, 128.0), 2, 0)
    halves = [(c[::2, ::2] + c[1::2, ::2] + c[::2, 1::2] + c[1::2, 1::2]) / 4 for c in (u, v)]
    planes = [y, *(half.reshape(-1, y.shape[1]) for half in halves)]
    return np.asarray(np.rint(np.concatenate(planes).round(3)), np.uint8)
