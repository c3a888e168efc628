"""Pictures that show a number, and videos of such pictures in many containers and codecs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import cv2
import numpy as np
from av.container import OutputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from tests.slowfast_patches.datasets.made_videos import write_video

Image = NDArray[np.uint8]

SIDE = 64
FRAMES = 40
BITS = 8
LIT = np.array((235, 200, 40), np.uint8)
PYRAMID = "bframes=3:b-pyramid=normal:b-adapt=0:keyint=16:scenecut=0"
"""Parameters of x264: B-frames that other B-frames depend on."""
DARK = np.array((30, 20, 60), np.uint8)


def picture(number: int) -> Image:
    """Show a number in binary: eight stripes, yellow for 1 and dark for 0, low bit first."""
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
    options: dict[str, str] | None = None,
    **how: Any,
) -> Path:
    """Write pictures 0 to 39 to a video file with a key frame at every tenth."""
    images = images or [picture(number) for number in range(FRAMES)]
    rate = {} if codec == "libx264" else {"b": "4000000"}
    grid = {"fps": 25, "gop": 10, "pixels": pixels}
    return write_video(path, images, codec=codec, options=rate | (options or {}), **grid, **how)


def encode(container: OutputContainer, stream: VideoStream, frames: Iterable[VideoFrame]) -> None:
    """Write frames to a video stream, with 25 frames per second."""
    for number, frame in enumerate(frames):
        frame.pts, frame.time_base = number, Fraction(1, 25)
        container.mux(stream.encode(frame))
    container.mux(stream.encode())


def write_palette(path: Path, changes_at: int = FRAMES) -> Path:
    """Write pictures of indices into a palette, whose order changes after some pictures."""
    frames = []
    for number in range(FRAMES):
        colours = [DARK, LIT] if number < changes_at else [LIT, DARK]
        palette = np.zeros((256, 4), np.uint8)
        palette[:2] = [(255, *colour) for colour in colours]
        indices = (picture(number) == colours[1]).all(-1).astype(np.uint8)
        frames.append(VideoFrame.from_ndarray((indices, palette), format="pal8"))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("rawvideo", rate=25)
        stream.height = stream.width = SIDE
        stream.pix_fmt = "pal8"
        encode(container, stream, frames)
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


def copy_from(source: Path, target: Path, first: int) -> Path:
    """Copy the packets of a video from an index on."""
    with av.open(str(source)) as old, av.open(str(target), "w") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for packet in [p for p in old.demux(video=0) if p.size][first:]:
            packet.stream = stream
            new.mux(packet)
    return target


def encode_again(source: Path, target: Path) -> Path:
    """Encode a video with the default options and the metadata of the source, as ffmpeg does."""
    with av.open(str(source)) as old, av.open(str(target), "w") as new:
        new.metadata.update(old.metadata)
        stream = new.add_stream("libx264", rate=25)
        stream.height = stream.width = SIDE
        stream.pix_fmt = "yuv420p"
        encode(new, stream, old.decode(video=0))
    return target


def write_without_limit(path: Path, **how: Any) -> Path:
    """Write H.264 with B-frames that does not say how far frames are reordered."""
    source = write(path.with_name("limited.mp4"), options={"x264-params": PYRAMID})
    with av.open(str(source)) as old, av.open(str(path), "w", **how) as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        stream.codec_context.extradata = _without_limit(
            old.streams.video[0].codec_context.extradata
        )
        for packet in [p for p in old.demux(video=0) if p.size]:
            packet.stream = stream
            new.mux(packet)
    return path


def _without_limit(header: bytes) -> bytes:
    """Remove the last part (VUI) of a sequence parameter set of x264, High profile."""
    length = int.from_bytes(header[6:8])
    unit, others = header[8 : 8 + length], header[8 + length :]
    bits = "".join(f"{byte:08b}" for byte in unit[4:].replace(b"\0\0\3", b"\0\0"))
    position = 0

    def code() -> None:
        nonlocal position
        zeros = bits.index("1", position) - position
        position += 2 * zeros + 1

    # The set's number, the chroma, depths; flags; frame numbers, order, references; flag; sides.
    for codes, flags in ((4, 2), (4, 1), (2, 3)):
        for _ in range(codes):
            code()
        position += flags
    if bits[position - 1] == "1":  # margins
        for _ in range(4):
            code()
    bits = bits[:position] + "01"
    bits += "0" * (-len(bits) % 8)
    new = unit[:4] + int(bits, 2).to_bytes(len(bits) // 8)
    return header[:6] + len(new).to_bytes(2) + new + others


def write_wrapped(path: Path) -> Path:
    """Write a transport stream whose timestamps, which have 33 bits, start again from 0."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"g": "10"})
        stream.height = stream.width = SIDE
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, 90_000)
        for number in range(FRAMES):
            frame = VideoFrame.from_ndarray(picture(number), format="rgb24")
            frame.pts = 2**33 - 60_000 + 3_600 * number
            frame.time_base = Fraction(1, 90_000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


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
        streams = list[VideoStream]()
        for track in tracks:
            stream = container.add_stream(track.codec, rate=25)
            stream.height = stream.width = track.side
            stream.pix_fmt = "yuvj420p" if track.codec == "mjpeg" else "yuv420p"
            stream.disposition = track.disposition
            streams.append(stream)
        for stream, track in zip(streams, tracks, strict=True):
            black = np.zeros((track.side, track.side, 3), np.uint8)
            count = 1 if track.codec == "mjpeg" else FRAMES
            images = [picture(n) if track.side == SIDE else black for n in range(count)]
            frames = [VideoFrame.from_ndarray(image, format="rgb24") for image in images]
            encode(container, stream, frames)
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
