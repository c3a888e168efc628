"""Write H.264 in which each packet is a field, half of the lines of a frame, as cameras do.

The macroblocks are stored without compression (I_PCM), so that no encoder is needed. The syntax is
that of ITU-T H.264, 7.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from numpy.typing import NDArray

_START = b"\0\0\0\1"
_DELIMITER = _START + b"\x09\x10"
_GOP = 12


class _Writer:
    """Writer of bits."""

    def __init__(self) -> None:
        self.bits = ""

    def u(self, size: int, *numbers: int) -> None:
        """Write numbers of `size` bits."""
        self.bits += "".join(f"{number:0{size}b}" for number in numbers)

    def ue(self, *numbers: int) -> None:
        """Write Exp-Golomb codes."""
        for number in numbers:
            code = f"{number + 1:b}"
            self.bits += "0" * (len(code) - 1) + code

    def align(self, bit: str) -> bytes:
        """Fill the last byte with zeros after a bit, if `bit` is not empty, and return all."""
        self.bits += bit
        self.bits += "0" * (-len(self.bits) % 8)
        data = int(self.bits, 2).to_bytes(len(self.bits) // 8)
        self.bits = ""
        return data


def _unit(reference: int, kind: int, content: bytes) -> bytes:
    escaped, zeros = bytearray(), 0
    for byte in content:
        if zeros >= 2 and byte <= 3:
            escaped.append(3)
            zeros = 0
        escaped.append(byte)
        zeros = zeros + 1 if byte == 0 else 0
    return _START + bytes([reference << 5 | kind]) + bytes(escaped)


def _parameters(width: int, height: int) -> bytes:
    sets = _Writer()
    sets.u(8, 77, 0, 30)  # main profile
    sets.ue(0, 4, 0, 4, 1)  # frame numbers and picture order of 8 bits, one reference
    sets.u(1, 0)
    sets.ue(width // 16 - 1, height // 32 - 1)
    sets.u(1, 0, 0, 1, 0, 0)  # the frames may be fields
    sequence = _unit(3, 7, sets.align("1"))
    sets.ue(0, 0)
    sets.u(1, 0, 0)
    sets.ue(0, 0, 0)
    sets.u(1, 0, 0, 0)
    sets.ue(0, 0, 0)
    sets.u(1, 1, 0, 0)
    return sequence + _unit(3, 8, sets.align("1"))


def _field(planes: Sequence[NDArray[np.uint8]], bottom: int, number: int, key: bool) -> bytes:
    """Return the slice of a field of the frame with a number within its group."""
    writer = _Writer()
    writer.ue(0, 7, 0)
    writer.u(8, number)
    writer.u(1, 1, bottom)
    if key:
        writer.ue(0)
    writer.u(8, 2 * number + bottom)
    writer.u(1, *([0, 0] if key else [0]))
    writer.ue(0, 1)
    y, u, v = (plane[bottom::2] for plane in planes)
    data = b""
    for row in range(y.shape[0] // 16):
        for column in range(y.shape[1] // 16):
            writer.ue(25)  # I_PCM
            data += writer.align("")
            for plane, side in ((y, 16), (u, 8), (v, 8)):
                part = plane[side * row :, side * column :][:side, :side]
                data += part.tobytes()
    return _unit(3, 5 if key else 1, data + writer.align("1"))


def write_fields(path: Path, images: Sequence[NDArray[np.uint8]]) -> Path:
    """Write pictures (H, W, 3), whose height is a multiple of 32, at 25 frames per second."""
    raw = path.with_suffix(".264")
    height, width = images[0].shape[:2]
    stream = b""
    for number, image in enumerate(images):
        yuv = cv2.cvtColor(image, cv2.COLOR_RGB2YUV_I420).clip(1, 254)
        luma, chroma = yuv[:height], yuv[height:].reshape(2, height // 2, width // 2)
        place = number % _GOP
        stream += _DELIMITER + _parameters(width, height) * (place == 0)
        stream += _field((luma, *chroma), 0, place, place == 0)
        stream += _DELIMITER + _field((luma, *chroma), 1, place, False)
    raw.write_bytes(stream)
    with av.open(str(raw), options={"framerate": "25"}) as old, av.open(str(path), "w") as new:
        target = new.add_stream_from_template(old.streams.video[0])
        units = (packet for packet in old.demux(video=0) if packet.size)
        for number, packet in enumerate(units):
            packet.stream = target
            packet.pts = packet.dts = number
            packet.duration = 1
            packet.time_base = Fraction(1, 50)
            new.mux(packet)
    return path
