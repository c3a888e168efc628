"""Frames at which decoding can start, from made-up surveys and decoders."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import av
import numpy as np
import pytest

from multigrid import Video
from slowfast_patches.datasets.reading import entries
from slowfast_patches.datasets.reading.entries import find_entries
from slowfast_patches.datasets.reading.scanned_video import Kind, ScannedVideo
from slowfast_patches.datasets.reading.survey import Stamp

FRAMES = 12
KNOWN = {"is_known": True, "is_trusted": True}


def scanned(**fields: object) -> ScannedVideo:
    """Return a video with a frame every 10 ticks."""
    known = {"timestamps": np.arange(FRAMES) * 10} | fields
    return ScannedVideo(Kind.VIDEO, Video(FRAMES, 25.0, 64, 48), **known)


def stamps(*keys: int) -> list[Stamp]:
    """Return the stamps of all frames, of which some are key frames."""
    return [Stamp(10 * number, number in keys) for number in range(FRAMES)]


def survey(**found: object) -> SimpleNamespace:
    usual = {"palettes": 0, "is_full": False, "overlaps": False, "has_false_keys": False}
    usual |= {"checks_keys": True, "packets": stamps(0, 4, 8), "frames": stamps(0, 6)}
    return SimpleNamespace(**usual | {"entries": {40, 60, 80}} | found)


def found(made: ScannedVideo, survey: SimpleNamespace, **how: bool) -> list[int]:
    return find_entries("a", made, survey, **KNOWN | how).tolist()


def test_marked_frames_that_decode_alone_are_entries_and_the_first():
    assert found(scanned(), survey()) == [0, 4, 8]
    assert found(scanned(), survey(entries={80})) == [0, 8]
    assert found(scanned(), survey(packets=stamps(4))) == [0, 4]


def test_a_full_survey_knows_the_key_frames_of_the_decoder():
    assert found(scanned(), survey(is_full=True)) == [0, 6]


def test_without_timestamps_or_with_several_palettes_decoding_starts_at_the_beginning():
    assert found(scanned(timestamps=None), survey()) == [0]
    assert found(scanned(), survey(palettes=2)) == [0]
    assert found(scanned(), survey(palettes=1)) == [0, 4, 8]


# Odd files, whose frames are compared.


def frame(content: int) -> SimpleNamespace:
    return SimpleNamespace(planes=[bytes([1, 2]), bytes([content])])


@pytest.fixture
def decoded(monkeypatch):
    """From 4 on, all frames are right. From 6 on, a frame is wrong, and from 9 on one is lost."""
    starts = []

    def decode_from(path, made, entry):
        starts.append(entry)
        for number in range(max(0, entry - 1), FRAMES):
            if (entry, number) != (9, 10):
                yield number, frame(99 if (entry, number) == (6, 7) else number)

    monkeypatch.setattr(entries, "decode_from", decode_from)
    return starts


ODD = {"packets": stamps(0, 4, 6, 9), "frames": stamps(0, 4, 6, 9)}


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({"overlaps": True}, {}),
        ({"has_false_keys": True}, {}),
        ({}, {"is_known": False}),
        ({"is_full": True}, {"is_known": False}),
    ],
)
def test_entries_of_an_odd_file_give_the_frames_of_a_whole_decode(decoded, changes, how):
    assert found(scanned(), survey(**ODD, **changes), **how) == [0, 4]
    assert decoded == [0, 4, 6, 9]


def test_packets_out_of_step_are_odd_only_in_a_trusted_container(decoded):
    made = scanned(is_in_step=False)
    every = survey(**ODD, entries={40, 60, 90})
    assert found(made, every) == [0, 4]
    assert found(made, every, is_trusted=False) == [0, 4, 6, 9]


def test_nothing_is_decoded_if_only_the_first_frame_is_marked(decoded):
    assert found(scanned(), survey(packets=stamps(0), overlaps=True)) == [0]
    assert decoded == []


# Containers whose packets are not trusted.


class Packet(SimpleNamespace):
    """Packet that decodes to frames."""


def shown(time: int | None, *, key: bool = True, corrupt: bool = False) -> SimpleNamespace:
    return SimpleNamespace(pts=time, key_frame=key, is_corrupt=corrupt)


@pytest.fixture
def seekable(monkeypatch):
    """Return a function that makes a file from the packets after a seek to each timestamp."""

    def make(packets, *, format="mpeg", intra_only=False):
        where = []
        container = SimpleNamespace(
            format=SimpleNamespace(name=format),
            seek=lambda timestamp, stream: where.append((timestamp, stream)),
            demux=lambda stream: iter(packets.get(where[-1][0], [])),
        )
        codec = SimpleNamespace(codec=SimpleNamespace(intra_only=intra_only))
        file = SimpleNamespace(container=container, stream=SimpleNamespace(codec_context=codec))

        @contextlib.contextmanager
        def open_video(path, probes):
            where.append(("probes", probes))
            yield file

        def new_decoder(stream):
            assert stream is file.stream
            return SimpleNamespace(decode=lambda packet: packet.frames)

        monkeypatch.setattr(entries, "open_video", open_video)
        monkeypatch.setattr(entries, "new_decoder", new_decoder)
        return where

    return make


UNCHECKED = {"checks_keys": False, "is_full": True, "frames": stamps(0, 2, 4, 6, 8, 10)}


def test_a_frame_after_a_seek_must_be_a_whole_key_frame(seekable):
    """Frames before the timestamp do not count."""
    where = seekable(
        {
            20: [Packet(frames=[]), Packet(frames=[shown(10, key=False), shown(20)])],
            40: [Packet(frames=[shown(40, key=False), shown(50)])],
            60: [Packet(frames=[shown(60, corrupt=True)]), Packet(frames=[shown(70)])],
            80: [Packet(frames=[shown(None)])],
            100: [Packet(frames=[shown(90)])],
        }
    )
    assert found(scanned(), survey(**UNCHECKED), is_trusted=False) == [0, 2, 8]
    assert [place for place, _ in where[1:]] == [20, 40, 60, 80, 100]


@pytest.mark.parametrize(("streams", "probes"), [(0, True), (2, False)])
def test_the_streams_are_probed_if_their_number_is_unknown(seekable, streams, probes):
    where = seekable({}, intra_only=True)
    made = scanned(streams=streams)
    assert found(made, survey(**UNCHECKED), is_trusted=False) == [0, 2, 4, 6, 8, 10]
    assert where == [("probes", probes)]


@pytest.mark.parametrize("error", [av.InvalidDataError, IndexError, av.PermissionError])
def test_a_container_that_cannot_seek_has_no_other_entry(seekable, monkeypatch, error):
    def fail(packet):
        raise error(1, "no seek") if issubclass(error, av.FFmpegError) else error

    seekable({time: [Packet(frames=[])] for time in range(0, 120, 10)})
    monkeypatch.setattr(entries, "new_decoder", lambda stream: SimpleNamespace(decode=fail))
    assert found(scanned(), survey(**UNCHECKED), is_trusted=False) == [0]


@pytest.mark.parametrize("format", ["avi", "mxf"])
def test_a_seek_by_an_index_must_land_at_a_packet_that_was_seen(seekable, format):
    """After a seek to 60, the packet has another timestamp, and after one to 80, another place."""
    packets = {time: [Packet(dts=time, pos=time)] for time in range(0, 120, 20)}
    packets[60] = [Packet(dts=61, pos=60)]
    packets[80] = [Packet(dts=80, pos=70)]
    seekable(packets, format=format, intra_only=True)
    made = survey(**UNCHECKED, places={(time, time) for time in range(0, 120, 10)})
    assert found(scanned(), made, is_trusted=False) == [0, 2, 4, 10]


def test_a_seek_by_an_index_that_fails_is_no_entry(seekable):
    def fail(timestamp, stream):
        raise av.InvalidDataError(1, "no index")

    seekable({}, format="avi", intra_only=True)
    with entries.open_video("a", probes=True) as file:
        file.container.seek = fail
    made = survey(**UNCHECKED, places=set())
    assert found(scanned(), made, is_trusted=False) == [0]
