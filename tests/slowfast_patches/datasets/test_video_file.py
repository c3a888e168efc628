"""Opening of video files: which stream, which packets, and which errors."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import av
import cv2
import pytest
from av.packet import Packet
from av.stream import Discard, Disposition

from slowfast_patches.datasets.reading import video_file
from slowfast_patches.datasets.reading.formats import FORMATS
from slowfast_patches.datasets.reading.video_file import (
    MAX_PIXELS,
    ErrorLog,
    UnreadableVideoError,
    VideoFile,
    check_pixels,
    check_regular,
    open_video,
    reason_of,
    translate_decode_errors,
)
from slowfast_patches.utils.errors import RunError
from tests.slowfast_patches.datasets.made_videos import grey, write_video
from tests.slowfast_patches.datasets.public_reports.numbered import Track, write_tracks

# Errors.


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EACCES, "Permission denied", "/a.mp4"), "Permission denied"),
        (av.InvalidDataError(1094995529, "Invalid data found", "a.mp4"), "Invalid data found"),
        (ValueError("a\n  long\ttext"), "a long text"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_the_reason_of_an_error_is_one_line_without_its_number(error, reason):
    assert reason_of(error) == reason


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(2, "No such file"), "cannot be opened: No such file"),
        (av.InvalidDataError(1, "Invalid data"), "cannot be decoded: Invalid data"),
        (cv2.error("no picture"), "cannot be decoded: no picture"),
        (OSError("disk"), "cannot be decoded: disk"),
        (EOFError("end"), "cannot be decoded: end"),
        (MemoryError("full"), "cannot be decoded: full"),
    ],
)
def test_errors_of_a_damaged_file_say_that_the_video_is_unreadable(error, said):
    with pytest.raises(UnreadableVideoError, match=f"^{said}$"), translate_decode_errors():
        raise error


@pytest.mark.parametrize("error", [TypeError("a bug"), RunError("no bucket"), KeyError("a bug")])
def test_other_errors_stay_as_they_are(error):
    with pytest.raises(type(error)) as caught, translate_decode_errors():
        raise error
    assert caught.value is error


def test_the_maximum_of_pixels_is_exact():
    check_pixels(8192, 8192)
    check_pixels(1 << 26, 1)
    with pytest.raises(UnreadableVideoError, match=r"8193×8192 pixels, more than .* 67108864"):
        check_pixels(8193, 8192)


def test_only_regular_files_are_opened_and_remote_ones_are_not_checked(tmp_path):
    (tmp_path / "a.mp4").touch()
    check_regular(str(tmp_path / "a.mp4"))
    check_regular("s3://bucket/none.mp4")
    for name, said in (("none", "No such file"), ("\0", "null"), ("", "not a regular file")):
        with pytest.raises(UnreadableVideoError, match=f"^v cannot be opened: .*{said}"):
            check_regular(os.path.join(tmp_path, name), "v ")


def test_the_latest_error_is_told_once_and_one_about_the_size_first(monkeypatch):
    errors = [(16, "h264", "before")]
    monkeypatch.setattr(video_file, "_errors_of_thread", lambda: errors)
    log = ErrorLog()
    assert log.new() == ""
    errors += [(16, "h264", "first"), (16, "hevc", "the\nlast")]
    assert log.new() == "hevc: the last"
    assert log.new() == ""
    errors += [(16, "vp9", "max pixel count 9"), (16, "vp9", "then this")]
    assert log.new() == "vp9: max pixel count 9"
    assert ErrorLog().new() == ""


def test_old_errors_are_dropped_when_there_are_many(monkeypatch):
    kept = video_file._errors_of_thread()
    monkeypatch.setattr(video_file, "_MAX_KEPT", 2)
    kept[:] = [(16, "h264", "old")] * 2
    assert ErrorLog().new() == ""
    assert len(kept) == 2
    kept.append((16, "h264", "old"))
    log = ErrorLog()
    assert kept == []
    kept.append((16, "h264", "new"))
    assert log.new() == "h264: new"


@pytest.mark.parametrize(
    ("level", "repeated", "set_to", "hidden"),
    [
        (None, True, [av.logging.ERROR, False], True),  # PyAV shows nothing
        (av.logging.FATAL, True, [av.logging.ERROR, False], False),
        (av.logging.ERROR, False, [], False),
        (av.logging.WARNING, False, [], False),
    ],
)
def test_errors_are_logged_each_time_but_not_shown_if_nothing_was(
    monkeypatch, level, repeated, set_to, hidden
):
    ErrorLog()  # PyAV adds errors of this thread to a list
    changes, levels = [], []
    fake = SimpleNamespace(
        ERROR=av.logging.ERROR,
        get_level=lambda: level,
        set_level=changes.append,
        get_skip_repeated=lambda: repeated,
        set_skip_repeated=changes.append,
    )
    monkeypatch.setattr(video_file.av, "logging", fake)
    logger = SimpleNamespace(setLevel=levels.append)
    monkeypatch.setattr(video_file, "logging", SimpleNamespace(getLogger=lambda name: logger))
    ErrorLog()
    assert changes == set_to
    assert len(levels) == hidden


# Packets.


class Data(bytes):
    """Packet of these bytes."""

    is_discard = False

    @property
    def size(self) -> int:
        return len(self)


def file_of(format: str = "mov", codec: str = "h264", **parts: object) -> VideoFile:
    context = SimpleNamespace(name=codec, width=9, height=9, **parts)
    container = SimpleNamespace(format=SimpleNamespace(name=format), **parts)
    return VideoFile("a", container, SimpleNamespace(codec_context=context), True, False)


def test_hidden_packets_are_those_of_edits_and_the_references_of_vp8():
    hidden = Data(b"\x10")
    hidden.is_discard = True
    for codec in ("h264", "vp8", "libvpx"):
        file = file_of("matroska", codec)
        assert not file.is_shown(hidden)
        assert not file.is_shown(Data())
        assert file.is_shown(Data(b"\x10"))
        assert file.is_shown(Data(b"\x0f")) == (codec == "h264")


def test_headers_within_an_ogg_file_are_no_frames():
    vp8, theora = Data(b"OVP80 and more"), Data(b"\x80theora")
    assert file_of("ogg", "vp8").is_header(vp8)
    assert file_of("ogg", "theora").is_header(theora)
    for file, packet in (
        (file_of("matroska", "vp8"), vp8),
        (file_of("ogg", "vp8"), theora),
        (file_of("ogg", "theora"), Data(b"\x7ftheora")),
        (file_of("ogg", "vp8"), Data(b"OVP8")),
        (file_of("ogg", "theora"), Data()),
    ):
        assert not file.is_header(packet)


def test_a_packet_is_decoded_or_none_stands_for_its_damage():
    def decode(packet):
        if isinstance(packet, Exception):
            raise packet
        return ["frame"] if packet else ["last"]

    file = file_of("ogg", "vp8", decode=decode)
    assert file.decode(Data(b"\x10")) == ["frame"]
    assert file.decode(None) == ["last"]
    assert file.decode(Data(b"OVP80")) == []
    file = file_of(decode=decode)
    assert file.decode(av.InvalidDataError(1, "damage")) == [None]
    for error in (EOFError("end"), MemoryError("full")):
        with pytest.raises(type(error)):
            file.decode(error)
    file.stream.codec_context.width = MAX_PIXELS
    with pytest.raises(UnreadableVideoError, match="more than the maximum"):
        file.decode(av.InvalidDataError(1, "damage"))


@pytest.mark.parametrize("error", [IndexError("no stream"), av.InvalidDataError(1, "damage")])
def test_after_damage_of_the_container_a_last_packet_empties_the_decoder(error):
    def demux(stream):
        yield Data(b"a")
        raise error

    first, last = file_of(demux=demux).packets()
    assert first == b"a"
    assert isinstance(last, Packet)
    assert last.size == 0


def test_frames_are_those_of_all_packets_without_the_damaged():
    packets = [Data(b"a"), Data(b"b"), None]

    def decode(packet):
        if packet == b"b":
            raise av.InvalidDataError(1, "damage")
        return [1, 2] if packet else [3]

    file = file_of(demux=lambda stream: iter(packets), decode=decode)
    assert [*file.frames()] == [1, 2, 3]


# Files.


@pytest.fixture
def opened(monkeypatch):
    """Return a list to which the arguments of each `av.open` are added."""
    calls = []
    real = av.open

    def spy(file, *mode, **how):
        if not mode:
            calls.append((file, how["options"]))
        return real(file, *mode, **how)

    monkeypatch.setattr(av, "open", spy)
    return calls


@pytest.mark.parametrize("probes", [True, False])
def test_known_formats_are_opened_as_files_and_probing_can_be_kept_short(tmp_path, opened, probes):
    path = str(write_video(tmp_path / "a.mp4", grey(4), options={"bf": "2"}))
    with open_video(path, probes=probes) as file:
        context = file.stream.codec_context
        assert (file.path, file.format, file.codec) == (path, file.container.format.name, "h264")
        assert (file.is_probed, file.reorders) == (probes, True)
        assert context.thread_count == 1
        assert context.options == {"max_pixels": str(MAX_PIXELS), "strict": "1"}
        assert len([*file.frames()]) == 4
    ((name, options),) = opened
    assert name == f"file:{path}"
    assert options["protocol_whitelist"] == "file"
    assert options["format_whitelist"].split(",") == [*FORMATS]
    assert options["max_pixels"] == str(MAX_PIXELS)
    assert ("skip_frame" in options, "analyzeduration" in options) == (not probes, not probes)


def test_the_path_and_the_size_are_checked(tmp_path, monkeypatch):
    checked = []
    path = write_video(tmp_path / "a.avi", grey(4))
    monkeypatch.setattr(video_file, "check_regular", checked.append)
    monkeypatch.setattr(video_file, "check_pixels", lambda *size: checked.append(size))
    with open_video(str(path)):
        assert checked == [str(path), (64, 48)]


def test_other_codecs_are_not_told_to_be_strict(tmp_path):
    with open_video(str(write_video(tmp_path / "a.avi", grey(4)))) as file:
        assert file.stream.codec_context.options == {"max_pixels": str(MAX_PIXELS)}
        assert not file.reorders


def test_all_other_streams_are_discarded(tmp_path):
    path = write_tracks(tmp_path / "a.mp4", Track(32), Track(64, Disposition.default), Track(48))
    with open_video(str(path)) as file:
        assert file.stream.index == 1
        kept = [stream.discard for stream in file.container.streams]
        assert kept[0] == kept[2] == Discard.all != kept[1]


def stream(width, height, disposition=0, codec=True):
    context = object() if codec else None
    return SimpleNamespace(
        width=width, height=height, disposition=Disposition(disposition), codec_context=context
    )


DEFAULT, COVER = int(Disposition.default), int(Disposition.attached_pic)


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        (stream(64, 48), stream(64, 49)),
        (stream(9000, 9000, codec=False), stream(1, 1, COVER)),
        (stream(9000, 9000, COVER | DEFAULT), stream(2, 1)),
        # The default flag is worth 5,000,000 pixels.
        (stream(5_000_000, 1), stream(1, 1, DEFAULT)),
        (stream(1, 1, DEFAULT), stream(5_000_002, 1)),
    ],
)
def test_streams_are_ranked_as_by_the_ffmpeg_program(worse, better):
    ranks = [video_file._preference(each) for each in (worse, better)]
    assert ranks[0] < ranks[1]


def test_a_file_without_video_says_so(tmp_path):
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        sound = container.add_stream("aac", rate=16_000)
        sound.layout = "mono"
        container.start_encoding()
    with (
        pytest.raises(UnreadableVideoError, match="no video stream"),
        open_video(str(tmp_path / "a.mp4")),
    ):
        pass


@pytest.mark.parametrize(
    ("error", "logged", "said"),
    [
        (av.ArgumentError(22, "Invalid argument"), "", "not in a supported video format"),
        (
            av.ArgumentError(22, "Invalid argument"),
            "h264: Picture size 9000x8000 is invalid",
            "frames of 9000×8000 pixels",
        ),
        (av.ArgumentError(22, "Invalid argument"), "h264: Picture size 9x8", "not in a supported"),
        (av.InvalidDataError(1, "Invalid data"), "", "cannot be opened: Invalid data"),
        (OSError(5, "Input/output error"), "", "cannot be opened: Input/output error"),
        (ValueError("embedded null"), "", "cannot be opened: embedded null"),
    ],
)
def test_a_file_that_ffmpeg_does_not_open_says_why(tmp_path, monkeypatch, error, logged, said):
    def fail(*args, **how):
        raise error

    monkeypatch.setattr(av, "open", fail)
    monkeypatch.setattr(ErrorLog, "new", lambda self: logged)
    (tmp_path / "a.mp4").touch()
    with pytest.raises(UnreadableVideoError, match=said), open_video(str(tmp_path / "a.mp4")):
        pass


def test_a_bucket_that_cannot_be_used_ends_the_run(monkeypatch):
    def fail(path):
        raise RunError("no credentials")

    monkeypatch.setattr(video_file, "open_file", fail)
    with pytest.raises(RunError, match="no credentials"), open_video("s3://bucket/a.mp4"):
        pass
