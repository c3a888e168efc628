"""What a pass over the packets of a stream shows, with made-up packets and decoders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import av
import pytest

from slowfast_patches.datasets.reading import survey as surveys
from slowfast_patches.datasets.reading.survey import Stamp, Survey, new_decoder
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError


class Frame(NamedTuple):
    """Decoded frame."""

    pts: int | None
    key_frame: bool = False
    is_corrupt: bool = False


class Packet:
    """Packet of 10 bytes that decodes to one frame, unless the test says otherwise.

    `alone` is what a new decoder returns: frames, or an error.
    """

    def __init__(self, time: int | None, *, key: bool = False, **other: object) -> None:
        self.pts, self.dts = time, other.pop("dts", time)
        self.is_keyframe = key
        self.size = 10
        self.pos = None if time is None else 100 + 10 * time
        self.sides = ()
        self.frames = [Frame(time, key)]
        self.alone = [Frame(time, True)]
        self.is_shown = self.is_whole = True
        self.is_header = self.is_field = False
        vars(self).update(other)

    def has_sidedata(self, kind: str) -> bool:
        return kind in self.sides


LAST = Packet(None, size=0, frames=[])


class File:
    """Stream of packets. `decoded` lists the packets that were decoded, and how."""

    def __init__(self, *packets: Packet, codec: str = "h264", bits: int = 0) -> None:
        self.decoded = list[tuple[int | None, object]]()
        self.codec = codec
        self.flushed = 0
        context = SimpleNamespace(
            name=codec,
            options={"strict": "1"},
            skip_frame="DEFAULT",
            codec=SimpleNamespace(intra_only=codec == "mjpeg"),
            flush_buffers=self._flush,
        )
        self.stream = SimpleNamespace(codec_context=context, bits_per_coded_sample=bits)
        self.error: Exception | None = None
        self.packets = [*packets, LAST]
        self.container = SimpleNamespace(demux=self._demux)

    def _flush(self) -> None:
        self.flushed += 1

    def _demux(self, stream: object):
        assert stream is self.stream
        for packet in self.packets:
            if packet is LAST and self.error:
                raise self.error
            yield packet

    def decode(self, packet: object) -> list[Frame | None]:
        if packet is None:
            return []
        time = getattr(packet, "pts", None)
        self.decoded.append((time, self.stream.codec_context.skip_frame))
        return list(getattr(packet, "frames", []))

    def is_shown(self, packet: Packet) -> bool:
        return packet.is_shown

    def is_header(self, packet: Packet) -> bool:
        return packet.is_header


class Log:
    """Errors that FFmpeg logs, one for each call."""

    def __init__(self, *errors: str) -> None:
        self.errors = list(errors)

    def new(self) -> str:
        return self.errors.pop(0) if self.errors else ""


class NewDecoder:
    """Decoder that gives what a packet says that it decodes to alone."""

    def decode(self, packet: Packet | None) -> list[Frame]:
        if packet is None:
            return []
        if isinstance(packet.alone, Exception):
            raise packet.alone
        return packet.alone


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    monkeypatch.setattr(surveys, "looks_whole", lambda stream: lambda packet: packet.is_whole)
    monkeypatch.setattr(surveys, "field_test", lambda stream: lambda packet: packet.is_field)
    monkeypatch.setattr(surveys, "has_swallowed", lambda packet: not packet.is_whole)
    monkeypatch.setattr(surveys, "new_decoder", lambda stream: NewDecoder())


def survey(*packets: Packet, full: bool = False, log: Log | None = None, **how: object) -> Survey:
    """Survey a stream of packets, of which the first is a key frame unless it says otherwise."""
    checks = how.pop("checks_keys", True)
    return Survey(File(*packets, **how), log or Log(), full=full, checks_keys=checks)


def test_a_quick_survey_decodes_the_first_frame_and_parses_the_others():
    file = File(Packet(0, key=True), Packet(3), Packet(1), Packet(2, key=True))
    found = Survey(file, Log(), full=False)
    assert found.packets == [Stamp(0, True), Stamp(3, False), Stamp(1, False), Stamp(2, True)]
    assert file.decoded == [(0, "DEFAULT"), (3, "ALL"), (1, "ALL"), (2, "ALL")]
    assert file.flushed == 1
    assert found.first == Frame(0, True)
    assert (found.frames, found.is_full) == ([], False)
    assert (found.entries, found.checks_keys, found.begins_with_key) == ({2}, True, True)
    assert (found.last, found.end) == (3, 130)  # the packet at 120 has 10 bytes
    assert found.places == {(0, 100), (3, 130), (1, 110), (2, 120)}
    assert (found.failed, found.damaged, found.palettes, found.error) == (0, 0, 0, "")
    assert [found.has_doubts, found.has_false_keys, found.overlaps] == [False] * 3
    assert file.stream.codec_context.options == {"strict": "1", "skip_loop_filter": "all"}


def test_a_codec_whose_frames_cannot_be_skipped_is_not_parsed():
    file = File(Packet(0, key=True), Packet(1), codec="vp9")
    Survey(file, Log(), full=False)
    assert file.decoded == [(0, "DEFAULT")]
    assert file.stream.codec_context.skip_frame == "DEFAULT"


def test_a_full_survey_decodes_all_and_counts_damage():
    packets = [
        Packet(0, key=True),
        Packet(2, frames=[]),
        Packet(1, frames=[Frame(1), Frame(2, is_corrupt=True)]),
        Packet(3, frames=[None], is_whole=False, is_field=True),
    ]
    found = survey(*packets, full=True)
    assert found.frames == [Stamp(0, True), Stamp(1, False), Stamp(2, False)]
    assert found.first == Frame(0, True)
    assert (found.failed, found.damaged) == (1, 2)
    assert not found.has_doubts


def test_the_times_and_the_end_are_those_of_all_packets():
    found = survey(Packet(0, key=True), Packet(None, dts=7), Packet(5, dts=4, pos=None))
    assert found.decoding_times == [0, 7, 4]
    assert found.last == 7
    assert found.end == 10  # a packet of an unknown place
    assert survey(Packet(0, key=True), Packet(9, dts=4)).last == 9
    assert survey(Packet(0, key=True)).last == survey(Packet(None, key=True)).last == 0


@pytest.mark.parametrize(
    ("change", "doubts"),
    [
        ({"frames": [None]}, True),
        ({"is_whole": False}, True),
        ({"is_field": True}, True),
        ({"frames": []}, False),
        ({}, False),
    ],
)
def test_a_packet_that_contradicts_the_container_gives_doubts(change, doubts):
    found = survey(Packet(0, key=True), Packet(1, **change))
    assert found.has_doubts == doubts
    assert found.failed == ("frames" in change and None in change["frames"])


@pytest.mark.parametrize(("codec", "begins"), [("h264", False), ("mjpeg", True)])
def test_a_video_should_begin_with_a_key_frame(codec, begins):
    found = survey(Packet(0), Packet(1, key=True), codec=codec)
    assert (found.begins_with_key, found.has_doubts) == (begins, not begins)
    assert found.first is None


def test_an_encrypted_file_is_refused():
    with pytest.raises(UnreadableVideoError, match="is encrypted"):
        survey(Packet(0, key=True, sides=("encryption_info",)))


def test_hidden_packets_overlap_if_they_have_the_time_of_another():
    for time, overlaps in ((1, True), (9, False)):
        found = survey(Packet(0, key=True), Packet(1), Packet(time, is_shown=False, size=7))
        assert (found.overlaps, found.has_doubts) == (overlaps, overlaps)
        assert [stamp.time for stamp in found.packets] == [0, 1]
        assert (time, 100 + 10 * time) in found.places
        assert found.end == 107 + 10 * time


def test_headers_are_no_packets():
    found = survey(Packet(0, key=True), Packet(1), Packet(5, is_header=True))
    assert [stamp.time for stamp in found.packets] == [0, 1]
    assert (found.end, len(found.places)) == (120, 2)


@pytest.mark.parametrize(("bits", "count"), [(0, 0), (1, 2), (8, 2), (9, 0), (24, 0)])
def test_palettes_are_counted_in_videos_of_up_to_8_bits(bits, count):
    packets = [Packet(n, key=True, sides=("palette",) * (n != 1)) for n in range(3)]
    assert survey(*packets, bits=bits, codec="rawvideo").palettes == count


# Key frames.


def test_a_frame_that_does_not_decode_alone_is_no_entry():
    wrong = ([], [Frame(2, False)], [Frame(2, True, True)], [Frame(3, True)], [Frame(2, True)] * 2)
    for alone in wrong:
        found = survey(Packet(0, key=True), Packet(1), Packet(2, key=True, alone=alone))
        assert (found.entries, found.has_false_keys, found.has_doubts) == (set(), False, False)
    damaged = av.InvalidDataError(1, "damage")
    found = survey(Packet(0, key=True), Packet(1), Packet(2, key=True, alone=damaged))
    assert (found.entries, found.has_doubts) == (set(), True)


def all_keys(count: int, *false: int) -> list[Packet]:
    """Return packets that are all marked as key frames, although some are none."""
    return [Packet(n, key=True, alone=[Frame(n, n not in false)]) for n in range(count)]


def test_if_all_frames_are_marked_the_first_and_every_power_of_2_are_checked():
    assert survey(*all_keys(40)).entries == {*range(1, 40)}
    for false in (*range(1, 9), 16, 32):
        found = survey(*all_keys(40, false))
        assert (found.has_false_keys, found.has_doubts) == (True, True)
        assert false not in found.entries
        assert {9, 17, 31, 33}.isdisjoint(found.entries)
    for false in (9, 17, 31, 33):
        found = survey(*all_keys(40, false))
        assert (found.has_false_keys, found.has_doubts) == (False, False)


def test_key_frames_after_another_frame_are_all_checked():
    packets = [*all_keys(10), Packet(10), *all_keys(30, 21)[11:]]
    found = survey(*packets)
    assert found.entries == {*range(1, 9), *range(11, 30)} - {21}
    assert not found.has_false_keys


@pytest.mark.parametrize("how", [{"checks_keys": False}, {"codec": "prores"}])
def test_key_frames_are_checked_only_if_they_are_asked_for_and_marked_by_the_decoder(how):
    found = survey(*all_keys(5, 2), **how)
    assert (found.entries, found.checks_keys, found.has_doubts) == (set(), False, False)


def test_a_key_frame_without_a_time_is_no_entry():
    assert survey(Packet(0, key=True), Packet(None, key=True)).entries == set()


# Damage.


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("error", [IndexError("no stream"), av.InvalidDataError(1, "damage")])
def test_a_container_that_breaks_off_gives_doubts_and_its_last_frames(full, error):
    file = File(Packet(0, key=True), Packet(1))
    file.error = error
    found = Survey(file, Log(), full=full)
    assert found.has_doubts
    assert len(found.packets) == 2
    assert len(file.decoded) == (3 if full else 2)


def test_a_gif_picture_that_has_swallowed_others_is_damaged():
    packets = [Packet(0, key=True), Packet(1, is_whole=False)]
    for full, codec, damaged in ((True, "gif", 1), (False, "gif", 0), (True, "apng", 0)):
        assert survey(*packets, full=full, codec=codec).damaged == damaged


def test_the_latest_error_counts_but_those_of_new_decoders_do_not():
    """For a key frame, the log is asked before, after a success, and once more."""
    packets = [Packet(0, key=True), Packet(1), Packet(2, key=True)]
    for errors, error in (
        (("before", "alone", "", ""), "alone"),
        (("before", "", "", ""), "before"),
        (("before", "", "", "end"), "end"),
        (("", "", "complaint", ""), ""),
    ):
        found = survey(*packets, log=Log(*errors))
        assert (found.error, found.has_doubts) == (error, bool(error))
    packets[2].alone = []
    found = survey(*packets, log=Log("", "complaint", ""))
    assert (found.error, found.has_doubts) == ("", False)


def test_a_new_decoder_knows_the_headers_of_the_stream(tmp_path, monkeypatch):
    monkeypatch.undo()
    with av.open(str(tmp_path / "a.avi"), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height = 64, 48
        container.mux(stream.encode(av.VideoFrame(64, 48)))
        container.mux(stream.encode())
    with av.open(str(tmp_path / "a.avi")) as container:
        known = container.streams.video[0].codec_context
        decoder = new_decoder(container.streams.video[0])
        assert decoder is not known
        assert (decoder.name, decoder.width, decoder.height) == ("mpeg4", 64, 48)
        assert (decoder.extradata, decoder.codec_tag) == (known.extradata, known.codec_tag)
        assert decoder.thread_count == 1
