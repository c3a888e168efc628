"""Writing the prepared form of a video (`reading/prepared.py` says what it is and why).

source frames    decoded, turned as shown, resized, I420
groups of 48     each encoded by an encoder of its own, decoded again, and encoded anew with
                 more bits until its worst frame is close enough to the source
mp4              the groups one after another, under another name until it is whole
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, cast

import av
import cv2
import numpy as np
from av.bitstream import BitStreamFilterContext
from av.codec.context import Flags
from av.container import OutputContainer
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

from slowfast_patches.datasets.reading.files import (
    MAX_PIXELS,
    frame_files,
    open_video,
    read_jpeg,
    readable,
)
from slowfast_patches.datasets.reading.prepared import ANCHOR, GROUP, TAG
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError, VideoRecord
from slowfast_patches.utils.files import written_whole

__all__ = ["X264", "source_pictures", "write_prepared"]

Picture = NDArray[np.uint8]
"""A frame as I420: (H * 3 / 2, W) uint8, the planes Y, U, V one after another."""


X264 = {
    # What the form is made of.
    "keyint": GROUP,
    "min-keyint": GROUP,
    "scenecut": 0,
    "bframes": ANCHOR - 1,
    "b-adapt": 0,
    "b-pyramid": "none",
    "open-gop": 0,
    "ref": 1,
    # Half the cost of decoding: no CABAC, no deblocking, no weighted prediction.
    "cabac": 0,
    "no-deblock": 1,
    "weightp": 0,
    "weightb": 0,
    # Bits go where they raise the PSNR.
    "psy": 0,
    "aq-mode": 0,
    # The headers do not depend on the quality, so that groups of many encoders make one stream.
    "stitchable": 1,
    "threads": 1,
    "lookahead-threads": 1,
}
"""Parameters of x264, by its own names."""
_FIRST_CRF, _LAST_CRF, _CRF_PER_DB = 26.0, 1.0, 1.1
_BT601 = (2, 5, 6)
"""Matrices by their number (ITU-T H.273): unspecified, which is taken for it, and its two names."""
_MARGIN = 0.1
"""dB to aim above the floor when a group is encoded anew."""


def write_prepared(
    source: str,
    record: VideoRecord,
    target: Path,
    *,
    short_side: int = 256,
    floor: float = 37.0,
    max_pixels: int = MAX_PIXELS,
) -> float:
    """Write the prepared form of a video, or of a folder of JPEG files, to `target`.

    Every frame is kept, turned as it is shown, and resized to `short_side` pixels where it is
    larger. The PSNR of no frame's luma against the resized source is below `floor` dB, as far as
    x264 can reach that (its CRF goes down to 1); the lowest is returned.

    Raises:
        UnreadableVideoError: the source does not decode, or has frames of more than `max_pixels`.
        OSError: the target cannot be written.
    """
    rate = Fraction(record.video.fps).limit_denominator(100_000)
    frames, worst, stream = 0, float("inf"), None
    pictures = source_pictures(source, record, short_side, max_pixels)
    # Opened by its name, the system's own errors come through, as of a disk that is full.
    with written_whole(target) as file, av.open(file.name, "w", format="mp4") as container:
        container.metadata["comment"] = TAG
        while group := list(islice(pictures, GROUP)):
            packets, psnr = _encode_well(group, rate, floor)
            stream = stream or _add_stream(container, group[0], rate)
            _mux(container, stream, packets, frames)
            frames, worst = frames + len(group), min(worst, psnr)
        if frames != record.video.frames:
            all_frames = record.video.frames
            raise UnreadableVideoError(f"has {all_frames} frames, of which {frames} decode")
    return worst


def source_pictures(
    source: str, record: VideoRecord, short_side: int, max_pixels: int = MAX_PIXELS
) -> Iterator[Picture]:
    """Every frame of the source, of one even size, as it is shown."""
    video = record.video
    scale = min(1.0, short_side / min(video.width, video.height))
    size = [max(2, round(side * scale / 2) * 2) for side in (video.width, video.height)]
    width, height = size[::-1] if record.turns % 2 else size
    resize = VideoReformatter()

    def to(frame: VideoFrame, pixels: str) -> NDArray[np.uint8]:
        bicubic = Interpolation.BICUBIC
        resized = resize.reformat(frame, width, height, pixels, interpolation=bicubic, threads=1)
        return cast(NDArray[np.uint8], resized.to_ndarray())

    with readable():
        for frame in _decoded(source, record, max_pixels):
            if record.turns == 0 and _is_plain(frame):
                yield to(frame, "yuv420p")
                continue
            shown = np.ascontiguousarray(np.rot90(to(frame, "rgb24"), record.turns))
            picture = VideoFrame.from_ndarray(shown, format="rgb24").reformat(format="yuv420p")
            yield cast(Picture, picture.to_ndarray())


def _is_plain(frame: VideoFrame) -> bool:
    """Whether a frame's samples mean what an untagged stream's do: BT.601, 16 to 235, 8 bit."""
    return (
        frame.format.name == "yuv420p"
        and frame.colorspace in _BT601
        and frame.color_range in (ColorRange.UNSPECIFIED, ColorRange.MPEG)
    )


def _decoded(source: str, record: VideoRecord, max_pixels: int) -> Iterator[VideoFrame]:
    if record.kind == Kind.FRAMES:
        for name in frame_files(source):
            picture = read_jpeg(source, name, max_pixels=max_pixels)
            yield VideoFrame.from_ndarray(picture, format="bgr24")
    else:
        with open_video(source, max_pixels=max_pixels) as (container, stream):
            yield from container.decode(stream)


def _encode_well(
    group: list[Picture], rate: Fraction, floor: float
) -> tuple[list[Packet[Any]], float]:
    """The packets of a group whose worst frame has `floor` dB, and what it has."""
    crf, rows = _FIRST_CRF, len(group[0]) * 2 // 3  # of the luma
    while True:
        headers, packets = _encode(group, rate, crf)
        decoded = _decode(headers, packets)
        pairs = zip(group, decoded, strict=True)
        psnr = min(float(cv2.PSNR(one[:rows], other[:rows])) for one, other in pairs)
        if psnr >= floor or crf <= _LAST_CRF:
            return packets, psnr
        crf = max(_LAST_CRF, crf - max(0.5, _CRF_PER_DB * (floor + _MARGIN - psnr)))


def _encode(group: list[Picture], rate: Fraction, crf: float) -> tuple[bytes, list[Packet[Any]]]:
    """The headers and packets of a group at a quality."""
    encoder = av.CodecContext.create("libx264", "w")
    _configure(encoder, group[0], rate)
    encoder.options = {**encoder.options, "crf": f"{crf:.2f}"}
    packets = []
    for number, picture in enumerate(group):
        frame = VideoFrame.from_ndarray(picture, format="yuv420p")
        frame.pts, frame.time_base = number, 1 / rate
        packets += encoder.encode(frame)
    packets += encoder.encode(None)
    assert encoder.extradata is not None
    return encoder.extradata, packets


def _decode(headers: bytes, packets: list[Packet[Any]]) -> Iterator[Picture]:
    decoder = av.CodecContext.create("h264", "r")
    decoder.extradata, decoder.thread_count = headers, 1
    for packet in [*packets, None]:
        for frame in decoder.decode(packet):
            yield cast(Picture, frame.to_ndarray())


def _configure(encoder: VideoCodecContext, picture: Picture, rate: Fraction) -> None:
    """Set up an encoder; all groups of a video get the same headers."""
    height, width = picture.shape[0] * 2 // 3, picture.shape[1]
    encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuv420p"
    encoder.framerate, encoder.time_base, encoder.gop_size = rate, 1 / rate, GROUP
    encoder.flags |= Flags.global_header
    parameters = ":".join(f"{key}={value}" for key, value in X264.items())
    encoder.options = {"x264-params": parameters}


def _add_stream(container: OutputContainer, picture: Picture, rate: Fraction) -> VideoStream:
    """A stream with the headers of the groups' encoders; its own encoder encodes nothing."""
    stream = container.add_stream("libx264", rate=rate)
    _configure(stream.codec_context, picture, rate)
    stream.time_base = 1 / rate
    return stream


def _mux(
    container: OutputContainer, stream: VideoStream, packets: list[Packet[Any]], first: int
) -> None:
    """Write a group's packets, without x264's note on itself, which is as long as a picture."""
    without_note = BitStreamFilterContext("filter_units=remove_types=6", stream)
    for packet in packets:
        for kept in without_note.filter(packet):
            assert kept.pts is not None
            assert kept.dts is not None
            kept.pts, kept.dts, kept.stream = kept.pts + first, kept.dts + first, stream
            container.mux(kept)
