"""Write pictures as an mp4 file whose bytes are the same in every run and on every machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from slowfast_patches.utils.files import atomic_write

# Matrix from RGB in [0, 255] to Y, U and V without offsets: ITU-R BT.601, limited range.
BT601 = (
    np.array([[65.738, 129.057, 25.064], [-37.945, -74.494, 112.439], [112.439, -94.154, -18.285]])
    / 256.0
)


def write_clip(path: Path, clip: NDArray[np.uint8], fps: int, options: Mapping[str, str]) -> None:
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


def _to_yuv(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Convert RGB (H, W, 3) to the planes of yuv420p (BT.601, limited range), (3H/2, W).

    Do not use FFmpeg's conversion, because it is not deterministic for such small frames.
    """
    y, u, v = np.moveaxis(pixels @ BT601.T + (16.0, 128.0, 128.0), 2, 0)
    halves = [(c[::2, ::2] + c[1::2, ::2] + c[::2, 1::2] + c[1::2, 1::2]) / 4 for c in (u, v)]
    planes = [y, *(half.reshape(-1, y.shape[1]) for half in halves)]
    return np.asarray(np.rint(np.concatenate(planes).round(3)), np.uint8)
