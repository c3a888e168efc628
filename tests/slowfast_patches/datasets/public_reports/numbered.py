"""Pictures that show a number, and videos of such pictures in many containers and codecs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av
import cv2
import numpy as np
from av.packet import Packet
from av.stream import Disposition
from numpy.typing import NDArray

Image = NDArray[np.uint8]

SIDE = 48
FRAMES = 40
BITS = 6
LIT = np.array((235, 200, 40), np.uint8)
DARK = np.array((30, 20, 60), np.uint8)


def picture(number: int) -> Image:
    """Show a number in binary: six stripes that are yellow for 1 and dark for 0, low bit first."""
    stripes = np.repeat([number >> bit & 1 for bit in range(BITS)], SIDE // BITS)
    return np.tile(np.where(stripes[:, None], LIT, DARK), (SIDE, 1, 1))


def noisy(number: int) -> Image:
    """Return a picture that takes more bytes than the headers of a file."""
    noise = np.random.default_rng(number).integers(-20, 21, (SIDE, SIDE, 1))
    return (picture(number) + noise).clip(0, 255).astype(np.uint8)


def numbers(clip: Image) -> list[int]:
    """Read the numbers of the pictures of a clip (T, H, W, 3), whose colours must be right."""
    stripes = clip.reshape(len(clip), SIDE, BITS, SIDE // BITS, 3)[:, 4:-4, :, 2:-2].mean((1, 3))
    lit = stripes[..., 0] > 127
    assert np.abs(stripes - np.where(lit[..., None], LIT, DARK)).max() < 40
    return [int(row @ (1 << np.arange(BITS))) for row in lit]


def write(
    path: Path,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    images: Sequence[Image] | None = None,
    matrix: Sequence[int] | None = None,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
) -> Path:
    """Write pictures 0 to 39 to a video file with a key frame at every tenth."""
    images = images or [picture(number) for number in range(FRAMES)]
    with av.open(str(path), "w", options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=25, options=options or {})
        stream.height, stream.width = images[0].shape[:2]
        stream.pix_fmt, stream.gop_size = pixels, 10
        if codec != "libx264":
            stream.bit_rate = 4_000_000
        stream.set_display_matrix(matrix)
        for number, image in enumerate(images):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def write_palette(path: Path, codec: str, changes: bool = False) -> Path:
    """Write pictures of indices into a palette, whose order `changes` after 20 pictures."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25)
        stream.height = stream.width = SIDE
        stream.pix_fmt = "pal8"
        for number in range(FRAMES):
            colours = [DARK, LIT] if number < 20 or not changes else [LIT, DARK]
            palette = np.zeros((256, 4), np.uint8)
            palette[:2] = [(255, *colour) for colour in colours]
            indices = (picture(number) == colours[1]).all(-1).astype(np.uint8)
            frame = av.VideoFrame.from_ndarray((indices, palette), format="pal8")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def packets(path: Path) -> Iterator[Packet]:
    with av.open(str(path)) as container:
        yield from (packet for packet in container.demux(video=0) if packet.size)


def copy_as_decoded(source: Path, target: Path) -> Path:
    """Copy the packets of a video, with decoding timestamps as presentation timestamps."""
    with av.open(str(source)) as old, av.open(str(target), "w") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for number, packet in enumerate(packets(source)):
            packet.stream = stream
            packet.pts = packet.dts = number
            packet.time_base = Fraction(1, 25)
            new.mux(packet)
    return target


def overwrite(path: Path, which: slice) -> Path:
    """Overwrite packets with zeros."""
    content = bytearray(path.read_bytes())
    for packet in list(packets(path))[which]:
        content[packet.pos : packet.pos + packet.size] = bytes(packet.size)
    path.write_bytes(content)
    return path


def cut(path: Path, share: float, fill: bool = False) -> Path:
    """Cut the end off a file, or fill it with zeros."""
    content = path.read_bytes()
    size = int(share * len(content))
    path.write_bytes(content[:size] + bytes(len(content) - size) * fill)
    return path


class Track(NamedTuple):
    """Video stream that shows the pictures if its side is `SIDE`, and black pictures otherwise."""

    side: int
    disposition: Disposition = Disposition(0)
    codec: str = "libx264"


def write_tracks(path: Path, *tracks: Track) -> Path:
    """Write a file with several video streams. Cover art has one picture."""
    with av.open(str(path), "w") as container:
        streams = [container.add_stream(track.codec, rate=25) for track in tracks]
        for stream, track in zip(streams, tracks, strict=True):
            stream.height = stream.width = track.side
            stream.pix_fmt = "yuvj420p" if track.codec == "mjpeg" else "yuv420p"
            stream.disposition = track.disposition
        for number in range(FRAMES):
            for stream, track in zip(streams, tracks, strict=True):
                if number and track.codec == "mjpeg":
                    continue
                black = np.zeros((track.side, track.side, 3), np.uint8)
                image = picture(number) if track.side == SIDE else black
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                frame.pts, frame.time_base = number, Fraction(1, 25)
                container.mux(stream.encode(frame))
        for stream in streams:
            container.mux(stream.encode())
    return path


def put_cover_first(path: Path) -> Path:
    """Move the metadata of an mp4 file, which contain the cover, before the video."""
    content = path.read_bytes()
    first, second = content.index(b"trak") - 4, content.index(b"udta", content.index(b"moov")) - 4
    end = second + int.from_bytes(content[second : second + 4])
    path.write_bytes(content[:first] + content[second:end] + content[first:second] + content[end:])
    return path


def write_jpegs(folder: Path, name: str, after: bytes = b"") -> Path:
    """Write the pictures as JPEG files, whose names have the number, with bytes after their end."""
    folder.mkdir()
    for number in range(FRAMES):
        _, content = cv2.imencode(
            ".jpg", picture(number)[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 99]
        )
        (folder / name.format(number)).write_bytes(content.tobytes() + after)
    return folder
