"""Clip files: their colours, frame rate and size, and equal bytes for equal pictures."""

from __future__ import annotations

import av
import numpy as np
import pytest

from slowfast_patches.datasets.preparing.clip_file import _to_yuv, write_clip

LOSSLESS = {"crf": "0", "threads": "1"}


@pytest.mark.parametrize(
    ("rgb", "yuv"),
    [
        # ITU-R BT.601 gives white 235, black 16, and 81, 90, 240 for red, which are the published
        # codes of 100 % colour bars.
        ((255, 255, 255), (235, 128, 128)),
        ((0, 0, 0), (16, 128, 128)),
        ((255, 0, 0), (81, 90, 240)),
        ((0, 255, 0), (145, 54, 34)),
        ((0, 0, 255), (41, 240, 110)),
    ],
)
def test_colours_are_those_of_bt_601(rgb, yuv):
    planes = _to_yuv(np.full((4, 6, 3), rgb, np.uint8))
    assert (planes.shape, planes.dtype) == ((6, 6), np.uint8)
    assert set(planes[:4].flat) == {yuv[0]}
    assert set(planes[4].flat) == {yuv[1]}
    assert set(planes[5].flat) == {yuv[2]}


def test_chroma_is_the_mean_of_four_pixels():
    """A quarter of red in a block of white: V is (240 + 3 · 128) / 4 = 156, U (90 + 384) / 4."""
    for row in range(2):
        for column in range(2):
            pixels = np.full((4, 4, 3), 255, np.uint8)
            pixels[row, 2 + column] = (255, 0, 0)
            planes = _to_yuv(pixels)
            assert planes[4].tolist() == [128, pytest.approx(118.5, abs=0.6), 128, 128]
            assert planes[5].tolist() == [128, 156, 128, 128]
            assert planes[row, 2 + column] == 81


def test_a_clip_is_written_with_its_rate_and_pictures_and_the_same_bytes_again(tmp_path):
    levels = np.array([30, 120, 220], np.uint8)
    clip = np.broadcast_to(levels[:, None, None, None], (3, 32, 48, 3))
    for name in ("a.mp4", "b.mp4"):
        write_clip(tmp_path / name, clip, 15, LOSSLESS)
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()
    with av.open(str(tmp_path / "a.mp4")) as container:
        (stream,) = container.streams
        assert (stream.average_rate, stream.width, stream.height) == (15, 48, 32)
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        frames = [frame.to_ndarray() for frame in container.decode(stream)]
    assert [frame.shape for frame in frames] == [(48, 48)] * 3
    # A grey of level g has luma 16 + g · 219 / 255.
    expected = [42, 119, 205]
    assert [round(frame[:32].mean()) for frame in frames] == expected
