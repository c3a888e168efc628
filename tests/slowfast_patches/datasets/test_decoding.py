"""Which frames are decoded and what is said, with made-up files and decoders."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import av
import numpy as np
import pytest

from multigrid import Video
from slowfast_patches.datasets.reading import decoding
from slowfast_patches.datasets.reading.decoding import decode_all, decode_from, decode_video
from slowfast_patches.datasets.reading.scanned_video import Kind, ScannedVideo
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError


def scanned(frames: int, **fields: object) -> ScannedVideo:
    """Return a video whose frames are 10 ticks apart, with a key frame every 20 frames."""
    known = {"timestamps": 10 * np.arange(frames), "keys": np.arange(0, frames, 20)}
    return ScannedVideo(Kind.VIDEO, Video(frames, 25.0, 64, 48), **known | fields)


@pytest.fixture(autouse=True)
def unreliable(monkeypatch):
    files = set()
    monkeypatch.setattr(decoding, "_unreliable", files)
    return files


@pytest.fixture
def said(monkeypatch):
    """Return a list to which each warning of damage is added."""
    texts = []
    monkeypatch.setattr(decoding, "warn_of_damage", lambda path, what: texts.append((path, what)))
    return texts


# Where to seek.


@pytest.fixture
def runs(monkeypatch):
    """Return the wanted frames of each run. Of each run, the frames and the next are decoded."""
    wanted = []

    def run(path, made, numbers):
        wanted.append(numbers)
        for number in numbers:
            yield number, f"frame {number}"

    monkeypatch.setattr(decoding, "_decode_run", run)
    return wanted


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([5], [[5]]),
        ([5, 250], [[5, 250]]),  # the key frame 240 follows 235 frames later
        ([10, 260], [[10, 260]]),  # 250 frames later
        ([9, 260], [[9], [260]]),
        ([9, 10, 270, 290, 600], [[9, 10, 270, 290], [600]]),
        ([0, 300, 301, 900], [[0], [300, 301], [900]]),
    ],
)
def test_a_seek_leaves_out_more_than_250_frames(runs, unreliable, wanted, expected):
    frames = list(decode_video("a", scanned(1000), wanted))
    assert [number for number, _ in frames] == wanted
    assert runs == expected
    assert decoding.is_reliable("a")


def test_a_video_in_which_a_frame_is_missing_is_decoded_from_the_beginning(runs, monkeypatch, said):
    """Also for later clips."""
    monkeypatch.setattr(decoding, "_decode_run", lambda path, made, numbers: iter([(3, "frame 3")]))
    whole = [(number, f"whole {number}") for number in range(9)]
    monkeypatch.setattr(decoding, "decode_all", lambda path, made: iter(whole))
    frames = list(decode_video("a", scanned(9), [3, 5]))
    assert frames == [(3, "frame 3"), *whole[:6]]
    assert not decoding.is_reliable("a")
    assert decoding.is_reliable("b")
    assert list(decode_video("a", scanned(9), [1])) == whole[:2]
    assert said == []


@pytest.mark.parametrize(
    ("decoded", "wanted", "expected", "lost"),
    [
        ([0, 1, 3, 4], [1, 2, 3], {1: 1, 2: 1, 3: 3}, 2),
        ([2, 3], [0, 2, 3], {0: 2, 2: 2, 3: 3}, 0),
        ([0, 1, 2], [1, 2, 7], {1: 1, 2: 2, 7: 2}, 7),
        ([0, 1, 2], [2, 7, 8], None, 7),
        ([5], [4, 5], {4: 5, 5: 5}, 4),
        ([5], [3, 4, 5], None, 3),
        ([], [0], None, 0),
    ],
)
def test_up_to_half_of_the_frames_are_replaced_by_the_ones_before_them(
    unreliable, monkeypatch, said, decoded, wanted, expected, lost
):
    unreliable.add("a")
    monkeypatch.setattr(decoding, "decode_all", lambda path, made: ((n, n) for n in decoded))
    if expected is None:
        with pytest.raises(UnreadableVideoError, match=f"did not return frame {lost}"):
            list(decode_video("a", scanned(9), wanted))
        return
    shown = {}
    for number, frame in decode_video("a", scanned(9), wanted):
        shown.setdefault(number, frame)
    assert {number: shown[number] for number in wanted} == expected
    assert said == [("a", f"frame {lost} does not decode, so the one before it is shown")]


# Seeks that land too late.


@pytest.fixture
def landings(monkeypatch):
    """Return a function that says which frame comes first after a seek to each timestamp."""

    def make(first_after):
        seeks = []

        @contextlib.contextmanager
        def open_video(path, probes):
            seeks.append(probes)
            yield SimpleNamespace(packets=lambda: "all packets")

        def seek(file, timestamp):
            seeks.append(timestamp)
            return timestamp

        def from_here(file, packets, made, wanted, entry):
            number = first_after.get(packets)
            seeks.append(entry)
            yield from ((n, n) for n in range(number, wanted[-1] + 1)) if number is not None else ()

        monkeypatch.setattr(decoding, "open_video", open_video)
        monkeypatch.setattr(decoding, "_seek", seek)
        monkeypatch.setattr(decoding, "_decode_from_here", from_here)
        return seeks

    return make


def test_a_seek_goes_to_the_key_frame_before_the_first_wanted(landings):
    seeks = landings({600: 60})
    frames = dict(decode_video("a", scanned(200), [70, 75]))
    assert set(frames) == {*range(60, 76)}
    assert seeks == [True, 600, 60]
    for wanted, entry in (([60], 60), ([59], 40)):
        seeks = landings({10 * entry: entry})
        assert list(decode_video("a", scanned(200, streams=2), wanted))
        assert seeks == [False, 10 * entry, entry]


def test_a_seek_that_lands_late_goes_back_by_twice_as_many_key_frames(landings):
    """From the key frame 160, it goes back by 1, 2 and 4 further ones, of 20 frames each."""
    late = dict.fromkeys((1600, 1400, 1000), 171)
    seeks = landings(late | {200: 20})
    frames = dict(decode_video("a", scanned(200), [170]))
    assert 170 in frames
    assert seeks[1::3] == [1600, 1400, 1000, 200]
    seeks = landings(late | {200: 170})
    assert 170 in dict(decode_video("a", scanned(200), [170]))
    assert seeks[1::3] == [1600, 1400, 1000, 200]


def test_a_seek_that_finds_nothing_ends_at_the_beginning_of_the_file(landings, said):
    seeks = landings({"all packets": 0})
    assert 50 in dict(decode_video("a", scanned(200), [50]))
    assert seeks == [True, 400, 40, True, 200, 20, True, 0]


# All frames.


class File:
    """Open file whose packets decode to the frames that they list."""

    def __init__(self, *packets: SimpleNamespace, codec: str = "vp9") -> None:
        self.path = "a"
        self.used = list[tuple[object, str]]()
        context = SimpleNamespace(name=codec, skip_frame="DEFAULT")
        self.stream = SimpleNamespace(codec_context=context, bits_per_coded_sample=0)
        self._packets = packets
        self.rest = list[object]()

    def packets(self):
        return iter(self._packets)

    def decode(self, packet: SimpleNamespace | None) -> list[object]:
        self.used.append((packet and packet.pts, self.stream.codec_context.skip_frame))
        return list(packet.frames) if packet else self.rest

    def is_shown(self, packet: SimpleNamespace) -> bool:
        return packet.is_shown


def frame(time: int | None, *, corrupt: bool = False) -> SimpleNamespace:
    return SimpleNamespace(pts=time, is_corrupt=corrupt)


def packet(time: int | None, *frames: object, **other: object) -> SimpleNamespace:
    """Return a packet that decodes to these frames, by default to one of its own time."""
    usual = {"size": 10, "is_keyframe": False, "is_shown": True, "frames": frames or (frame(time),)}
    return SimpleNamespace(pts=time, **usual | other)


@pytest.fixture
def opened(monkeypatch):
    """Return a function that makes `open_video` open a made-up file."""

    def make(file: File):
        calls = []

        @contextlib.contextmanager
        def open_video(path, probes):
            calls.append(probes)
            yield file

        def seek(given, timestamp):
            assert given is file
            calls.append(timestamp)
            return file.packets()

        monkeypatch.setattr(decoding, "open_video", open_video)
        monkeypatch.setattr(decoding, "_seek", seek)
        return calls

    return make


def test_frames_are_known_by_their_timestamps_or_else_by_their_place(opened):
    """Frames with other timestamps are no frames of the video."""
    file = File(packet(0), packet(10), packet(15), packet(20, None, frame(20)))
    calls = opened(file)
    assert [number for number, _ in decode_from("a", scanned(9), 0)] == [0, 1, 2]
    counted = scanned(3, timestamps=None)
    assert [number for number, _ in decode_from("a", counted, 0)] == [0, 1, 2]
    assert calls == [True, True]
    assert [number for number, _ in decode_from("a", scanned(9, streams=1), 4)] == [0, 1, 2]
    assert calls[2:] == [False, 40]


class Log:
    """Errors that FFmpeg logs, one for each call."""

    def __init__(self, *errors: str) -> None:
        self.errors = list(errors)

    def new(self) -> str:
        return self.errors.pop(0) if self.errors else ""


def test_a_whole_decode_names_errors_and_damaged_frames(opened, monkeypatch, said):
    opened(File(packet(0), packet(10, frame(10, corrupt=True))))
    monkeypatch.setattr(decoding, "ErrorLog", lambda: Log("first", "", "last"))
    assert len(list(decode_all("a", scanned(9)))) == 2
    assert said == [
        ("a", "FFmpeg reports 'first'"),
        ("a", "frame 1 is damaged"),
        ("a", "FFmpeg reports 'last'"),
    ]


# Decoding from a key frame on.


def decoded(file, wanted, opened, *, made=None, log=(), monkeypatch=None):
    """Decode wanted frames of a made-up file, and return the numbers of the frames."""
    opened(file)
    if monkeypatch:
        monkeypatch.setattr(decoding, "ErrorLog", lambda: Log(*log))
    return [number for number, _ in decode_video("a", made or scanned(9), wanted)]


def test_decoding_stops_as_soon_as_all_wanted_frames_have_come(opened):
    file = File(*(packet(10 * n) for n in range(9)))
    assert decoded(file, [1, 3], opened) == [0, 1, 2, 3]
    assert [time for time, _ in file.used if time is not None] == [0, 10, 20, 30]


def test_decoding_stops_by_frames_if_packets_are_out_of_step(opened):
    file = File(*(packet(10 * n) for n in range(9)))
    assert decoded(file, [1], opened, made=scanned(9, is_in_step=False)) == [0, 1]
    assert [time for time, _ in file.used] == [0, 10]


def test_frames_that_the_decoder_holds_are_taken_when_the_last_wanted_packet_was_sent(opened):
    """The decoder returns a frame two packets late."""
    late = [packet(0, frames=()), packet(10, frames=()), packet(20, frame(0)), packet(30)]
    file = File(*late)
    file.rest = [frame(10), frame(20)]
    assert decoded(file, [2], opened) == [0, 1, 2]
    assert file.used[-1] == (None, "DEFAULT")


def test_unneeded_frames_that_no_other_depends_on_are_skipped_after_the_first(opened):
    file = File(*(packet(10 * n) for n in range(5)), codec="h264")
    assert 4 in decoded(file, [2, 4], opened)
    assert file.used[:5] == [
        (0, "DEFAULT"),
        (10, "NONREF"),
        (20, "DEFAULT"),
        (30, "NONREF"),
        (40, "DEFAULT"),
    ]


@pytest.mark.parametrize(
    ("codec", "fields"),
    [
        ("vp9", {}),
        ("h264", {"is_in_step": False}),
        ("h264", {"timestamps": None}),
        ("h264", {"timestamps": np.array([0, 20, 10, 30, 40])}),
    ],
)
def test_nothing_is_skipped_if_packets_do_not_tell_which_frames_follow(opened, codec, fields):
    file = File(*(packet(10 * n) for n in range(5)), codec=codec)
    assert 4 in decoded(file, [4], opened, made=scanned(5, **fields))
    assert {skip for _, skip in file.used} == {"DEFAULT"}


def test_a_hidden_packet_is_not_the_wanted_one(opened):
    file = File(packet(0), packet(10, frames=(), is_shown=False), packet(10), packet(20))
    assert decoded(file, [1], opened) == [0, 1]


def test_an_empty_packet_at_the_end_is_not_followed_by_another(opened):
    last = packet(None, frame(10), size=0, is_shown=False)
    file = File(packet(0), packet(10, frames=()), last)
    made = scanned(2, is_in_step=False)
    assert decoded(file, [1], opened, made=made) == [0, 1]
    assert [time for time, _ in file.used] == [0, 10, None]


def test_damage_of_wanted_frames_is_named(opened, said):
    file = File(packet(0, frame(0, corrupt=True)), packet(10, frame(10, corrupt=True)), packet(20))
    assert decoded(file, [1, 2], opened) == [0, 1, 2]
    assert said == [("a", "frame 1 is damaged")]


def test_a_frame_that_comes_after_a_later_one_has_a_wrong_timestamp(opened, said):
    file = File(packet(0), packet(10, frame(20)), packet(20, frame(10)))
    assert decoded(file, [1, 2], opened) == [0, 2, 1]
    assert said == [("a", "frame 1 has a wrong timestamp")]


def test_a_frame_that_comes_twice_is_not_out_of_order(opened, said):
    file = File(packet(0), packet(10, frame(10), frame(10)), packet(20))
    assert decoded(file, [1, 2], opened) == [0, 1, 1, 2]
    assert said == []


def test_an_error_in_a_picture_that_is_shown_before_the_key_frame_is_not_named(
    opened, monkeypatch, said
):
    """The packets after the key frame at 20 are one that is shown at 10, and one at 30."""
    packets = [packet(time, is_keyframe=time == 20) for time in (20, 10, 30)]
    made = scanned(9, keys=np.array([0, 2]))
    log = ("", "error", "")
    decoded(File(*packets), [2, 3], opened, made=made, log=log, monkeypatch=monkeypatch)
    assert [what for _, what in said if "error" in what] == []


@pytest.mark.parametrize(
    ("wanted", "errors", "named"),
    [
        ([1], ["", "error"], ["error"]),
        ([1], ["reference picture missing", ""], ["reference picture missing"]),
        # After a seek to the key frame 2 at 20, the packet before it does not count.
        ([3], ["error", "", ""], []),
        ([3], ["", "mmco: unref short failure", ""], []),
        ([3], ["", "co located POCs unavailable", ""], []),
        ([3], ["", "First slice is no RefPicSet", ""], []),
        ([3], ["", "error", ""], ["error"]),
        ([3], ["", "", "error"], ["error"]),
    ],
)
def test_errors_are_named_unless_a_seek_explains_them(
    opened, monkeypatch, said, wanted, errors, named
):
    times = [0, 10] if wanted == [1] else [10, 20, 30]
    packets = [packet(time, is_keyframe=time == 20) for time in times]
    made = scanned(9, keys=np.array([0, 2]))
    decoded(File(*packets), wanted, opened, made=made, log=errors, monkeypatch=monkeypatch)
    assert said == [("a", f"FFmpeg reports {text!r}") for text in named]


# Seeks in a container.


def seekable(bits: int, *sides: tuple[str, ...], error: Exception | None = None):
    """Return a file whose packets have side data, and the timestamps of its seeks."""
    seeks = []
    packets = [
        SimpleNamespace(number=n, has_sidedata=lambda kind, side=side: kind in side)
        for n, side in enumerate(sides)
    ]

    def seek(timestamp, stream):
        seeks.append(timestamp)
        if error:
            raise error

    stream = SimpleNamespace(bits_per_coded_sample=bits)
    container = SimpleNamespace(seek=seek)
    return SimpleNamespace(stream=stream, container=container, packets=lambda: iter(packets)), seeks


@pytest.mark.parametrize(
    ("bits", "sides", "expected"),
    [
        (8, ("palette",), [0]),
        (1, ("palette",), [0]),
        (0, ("palette",), []),
        (24, ("palette",), []),
        (8, (), []),
    ],
)
def test_the_palette_of_the_first_packet_is_attached_after_a_seek(
    monkeypatch, bits, sides, expected
):
    attached = []
    palette = SimpleNamespace(to_packet=lambda packet: attached.append(packet.number))
    data = SimpleNamespace(from_packet=lambda packet, kind: palette)
    monkeypatch.setattr(decoding, "PacketSideData", data)
    file, seeks = seekable(bits, sides, ())
    assert [packet.number for packet in decoding._seek(file, 30)] == [0, 1]
    assert attached == expected
    assert seeks == [30]


def test_a_container_that_cannot_seek_is_read_from_the_beginning():
    file, seeks = seekable(0, (), (), error=av.PermissionError(1, "no seek"))
    assert [packet.number for packet in decoding._seek(file, 30)] == [0, 1]
    assert seeks == [30]
