"""Read all packets of a video stream once, and compare the container with what a decoder returns.

A container can be wrong in many ways. A packet may hold half a frame or none, a frame that is
marked as a key frame may depend on earlier frames, and timestamps may be in decoding order. There
are two kinds of surveys:

- A full survey decodes all packets, so it knows the frames as the decoder returns them.
- A quick survey decodes the frames that are marked as key frames. Of all other packets, it only
  parses the headers, which takes little time. If anything contradicts the container, the quick
  survey has doubts, and the scan repeats it as a full survey.

Each key frame is decoded alone, by a decoder that knows no other frames. The decoder must confirm
that it is a key frame.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple, cast

import av
from av.codec.context import CodecContext
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from slowfast_patches.datasets.reading.damage import has_swallowed, looks_whole
from slowfast_patches.datasets.reading.h264 import field_test
from slowfast_patches.datasets.reading.video_file import (
    CAN_SKIP,
    DEMUX_ERRORS,
    PALETTE_BITS,
    ErrorLog,
    UnreadableVideoError,
    VideoFile,
)

_H26X = {"h264", "hevc", "h261", "h263", "h263i", "h263p"}
_MPEG = {"mpeg1video", "mpeg2video", "mpeg4", "msmpeg4v1", "msmpeg4v2", "msmpeg4"}
_VP = {"vp3", "theora", "vp6", "vp6f", "vp8", "vp9", "libvpx", "libvpx-vp9", "av1", "libdav1d"}
_OTHER = {"flv", "wmv1", "wmv2", "wmv3", "vc1", "rv10", "rv20", "rv30", "rv40"}
MARKS_KEYS = frozenset(_H26X | _MPEG | _VP | _OTHER)
"""Names of the decoders that tell whether a frame is a key frame. All frames of their streams can
be decoded from any key frame on."""
_FIRST_CHECKED = 8
"""If all frames so far are marked as key frames, this many are checked, and after that every frame
whose index is a power of 2."""
_COPIED = ("extradata", "width", "height", "codec_tag", "bits_per_coded_sample", "options")


Place = tuple[int | None, int | None]
"""Decoding timestamp of a packet, and its position in the file."""


class Stamp(NamedTuple):
    """Presentation timestamp of a packet or a frame, and whether it is marked as a key frame."""

    time: int | None
    is_key: bool


class Survey:
    """Properties of a video stream that one pass over its packets shows.

    Args:
        file: The file, from which nothing was read yet.
        log: The `ErrorLog`, which was created before the file was opened.
        full: Whether to decode all frames.
        checks_keys: Whether to check the frames that are marked as key frames.

    Attributes:
        is_full: The argument `full`.
        checks_keys: Whether key frames were checked. The decoder must be one of `MARKS_KEYS`.
        packets: Stamps of the packets that are shown, in decoding order.
        decoding_times: The decoding timestamps of these packets.
        frames: FULL: stamps of the frames, in the order in which the decoder returns them.
        entries: Timestamps of the key frames, except the first packet, that decode alone.
        first: The first frame, if it was decoded.
        last: The largest timestamp, or 0.
        end: Position in the file at which the last packet ends.
        places: Decoding timestamp and position in the file of each packet.
        palettes: Number of packets with a new palette.
        failed: Number of packets that do not decode.
        damaged: FULL: `failed`, plus the number of damaged frames.
        begins_with_key: Whether the first packet is marked as a key frame.
        has_doubts: Whether something contradicts the container.
        has_false_keys: Whether all frames are marked as key frames, but some are not key frames.
        overlaps: Whether a packet that is not shown has the timestamp of another packet, as in mp4
            files with several edits.
        error: The latest error that FFmpeg has logged, or "".

    Raises:
        UnreadableVideoError: The file is encrypted, or its frames are too large.
    """

    def __init__(
        self, file: VideoFile, log: ErrorLog, *, full: bool, checks_keys: bool = True
    ) -> None:
        self.is_full = full
        self.packets = list[Stamp]()
        self.decoding_times = list[int | None]()
        self.frames = list[Stamp]()
        self.entries = set[int]()
        self.places = set[Place]()
        self.first: VideoFrame | None = None
        self.last = self.end = self.palettes = self.failed = self.damaged = 0
        self.begins_with_key = True
        self.has_doubts = self.has_false_keys = self.overlaps = False
        self.error = ""
        self._file = file
        self._log = log
        self._decoder = file.stream.codec_context
        self._parses = not full and self._decoder.name in CAN_SKIP
        self.checks_keys = checks_keys and self._decoder.name in MARKS_KEYS
        self._is_whole = None if full else looks_whole(file.stream)
        self._is_field = None if full else field_test(file.stream)
        self._has_palettes = 0 < file.stream.bits_per_coded_sample <= PALETTE_BITS
        # Only whether pictures can be decoded matters here, not how they look.
        self._decoder.options = self._decoder.options | {"skip_loop_filter": "all"}
        self._is_gif = full and file.codec == "gif"
        self._all_keys = True
        self._unchecked = set[int]()
        self._hidden = set[int | None]()
        self._run()

    def _run(self) -> None:
        seen = 0
        try:
            for packet in self._file.container.demux(self._file.stream):
                self._see(packet, is_first=seen == 0)
                seen += 1
        except DEMUX_ERRORS:
            self.has_doubts = True
            if self.is_full:
                self._decode(cast("Packet[VideoStream]", Packet()))
        if self._all_keys and not self.has_false_keys:
            self.entries |= self._unchecked
        times = {stamp.time for stamp in self.packets}
        self.overlaps = not times.isdisjoint(self._hidden)
        self.error = self._log.new() or self.error
        self.has_doubts |= self.overlaps or self.has_false_keys or bool(self.error)

    def _see(self, packet: Packet[VideoStream], *, is_first: bool) -> None:
        time, decoded, size, is_key = packet.pts, packet.dts, packet.size, packet.is_keyframe
        self.last = max(self.last, time or 0, decoded or 0)
        if is_first and size:
            self._see_first(packet)
        if self.is_full:
            self._decode(packet)
        elif self._parses and not is_first and size:
            self._parse(packet)
        if not size or self._file.is_header(packet):
            return
        place = packet.pos
        self.end = (place or 0) + size
        self.places.add((decoded, place))
        if self._is_gif and has_swallowed(packet):
            self.damaged += 1
        if not self._file.is_shown(packet):
            self._hidden.add(time)
            return
        self.packets.append(Stamp(time, is_key))
        self.decoding_times.append(decoded)
        self.palettes += self._has_palettes and packet.has_sidedata("palette")
        if (self._is_whole and not self._is_whole(packet)) or (
            self._is_field and self._is_field(packet)
        ):
            self.has_doubts = True
        if not is_key:
            self._all_keys = False
        elif self.checks_keys and not is_first and time is not None:
            self._see_key(packet, time)

    def _see_first(self, packet: Packet[VideoStream]) -> None:
        """Decode the first packet, and check that the video begins with a key frame."""
        if packet.has_sidedata("encryption_info"):
            raise UnreadableVideoError("is encrypted")
        self.begins_with_key = packet.is_keyframe or self._decoder.codec.intra_only
        self.has_doubts |= not self.begins_with_key
        if self.is_full or not packet.is_keyframe:
            return
        for frame in [*self._file.decode(packet), *self._file.decode(None)]:
            self.first = self.first or frame
        self._decoder.flush_buffers()
        if self._parses:
            self._decoder.skip_frame = "ALL"

    def _decode(self, packet: Packet[VideoStream]) -> None:
        for frame in self._file.decode(packet):
            if frame is None:
                self.failed += 1
                self.damaged += 1
                continue
            self.first = self.first or frame
            self.damaged += frame.is_corrupt
            self.frames.append(Stamp(frame.pts, frame.key_frame))

    def _parse(self, packet: Packet[VideoStream]) -> None:
        """Parse the headers of a packet."""
        if None in self._file.decode(packet):
            self.failed += 1
            self.has_doubts = True

    def _see_key(self, packet: Packet[VideoStream], time: int) -> None:
        """Check a packet that is marked as a key frame. If all packets are marked, check later."""
        number = len(self.packets) - 1
        if self._all_keys and number > _FIRST_CHECKED and number & (number - 1):
            self._unchecked.add(time)
            return
        earlier = self._log.new()
        if self._decodes_alone(packet):
            self.entries.add(time)
            earlier = self._log.new() or earlier
        elif self._all_keys:
            self.has_false_keys = True
        self._log.new()  # a new decoder also complains about a frame that is no key frame
        self.error = earlier or self.error

    def _decodes_alone(self, packet: Packet[VideoStream]) -> bool:
        """Return whether a packet is a key frame that decodes without other packets."""
        try:
            decoder = new_decoder(self._file.stream)
            frames = [*decoder.decode(packet), *decoder.decode(None)]
        except av.FFmpegError:
            self.has_doubts = True
            return False
        return [(f.pts, f.key_frame, f.is_corrupt) for f in frames] == [(packet.pts, True, False)]


def new_decoder(stream: VideoStream) -> VideoCodecContext:
    """Return a decoder for a stream that has decoded nothing yet."""
    known = stream.codec_context
    decoder = CodecContext.create(known.codec, "r")
    assert isinstance(decoder, VideoCodecContext)
    for name in _COPIED:
        with contextlib.suppress(UnicodeError):  # a damaged codec tag
            setattr(decoder, name, getattr(known, name))
    decoder.thread_count = 1
    return decoder
