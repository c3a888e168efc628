"""The index: what it keeps, what it scans anew, and what happens to it."""

import gzip
import itertools
import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from multigrid import Shape, Video
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading import decoding
from slowfast_patches.datasets.reading import index as indexing
from slowfast_patches.datasets.reading import scan as scanning
from slowfast_patches.datasets.reading.index import (
    Entry,
    index_files,
    open_index,
    publish_index,
    unlisted,
)
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.scanned_video import Kind, ScannedVideo
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from slowfast_patches.datasets.video_clips import VideoClips
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.interruption import TrainingInterruptedError
from slowfast_patches.utils.processes import WorkerCrashed
from slowfast_patches.utils.storage import as_path
from tests.slowfast_patches.datasets.made_videos import (
    break_frame,
    grey,
    noise,
    write_jpeg,
    write_video,
)

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make one video of each kind."""
    folder = tmp_path_factory.mktemp("made")
    for name in ("even.mp4", "bare.h264"):
        write_video(folder / name, grey(12), gop=5)
    write_video(folder / "uneven.mp4", grey(6), stamps=[0, 1, 5, 6, 30, 31])
    source = str(folder / "even.mp4")
    write_prepared(source, scan(source), folder / "prepared.mp4")
    for number in range(3):
        write_jpeg(folder / f"frames/{number}.jpg", 30, 20)
    return folder


@pytest.fixture
def data(made, tmp_path):
    """Copy the videos for one test. There is no list, because the index does not read it."""
    return Path(shutil.copytree(made, tmp_path / "data"))


@pytest.fixture
def file(data):
    return data / "train.index.json.gz"


@pytest.fixture
def scanned(monkeypatch):
    """Return a list to which the name of each scanned video is added."""
    names = []

    def spy(path):
        names.append(Path(path).name)
        return scan(path)

    monkeypatch.setattr(scanning, "scan", spy)
    return names


def videos(folder):
    return sorted(str(p) for p in folder.iterdir() if p.suffix not in (".gz", ".txt"))


def opened(folder, paths=None):
    return open_index(folder / "train.csv", paths or videos(folder))


def assert_right(index, paths):
    """Check that the records equal the results of a scan, in the order of the list."""
    found = [index[number].packed() for number in range(len(index))]
    assert found == [scan(path).packed() for path in paths]


# What is kept.


def test_the_records_are_what_scanning_finds_now_when_loaded_and_when_moved(data, scanned):
    paths = videos(data)
    for _ in range(2):
        index = opened(data)
        assert_right(index, paths)
    assert {index[number].kind for number in range(len(paths))} == {*Kind}
    moved = data.rename(data.with_name("moved"))
    assert_right(opened(moved), videos(moved))
    assert len(scanned) == len(paths), "nothing has changed"


def test_what_is_new_changed_or_gone(data, scanned):
    opened(data)
    scanned.clear()
    write_video(data / "new.mp4", grey(4))
    write_video(data / "even.mp4", grey(7))
    (data / "bare.h264").unlink()
    os.utime(data / "uneven.mp4", ns=(0, 1))
    write_jpeg(data / "frames/7.jpg", 30, 20)
    assert_right(opened(data), videos(data))
    assert sorted(scanned) == ["even.mp4", "frames", "new.mp4", "uneven.mp4"]


def test_relative_paths_and_paths_outside_the_folder(data, tmp_path, scanned, monkeypatch):
    outside = str(write_video(tmp_path / "größer als 2 MB.mp4", grey(5)))
    monkeypatch.chdir(data)
    opened(Path(), ["even.mp4", outside])
    scanned.clear()
    monkeypatch.chdir(tmp_path)
    paths = ["data/even.mp4", outside, str(data / "even.mp4")]  # in another order, one twice
    assert_right(opened(data, paths), paths)
    assert scanned == []


# Videos that cannot be read.


def test_videos_with_a_problem_are_named_and_unreadable_ones_tried_again(data, scanned, caplog):
    (data / "text.mp4").write_text("no video")
    part = break_frame(write_video(data / "part.mp4", noise(24), gop=30), 13)
    paths = videos(data)
    bad = str(data / "text.mp4")
    problems = (
        f"{bad} cannot be opened: Invalid data",
        f"{part} cannot be decoded completely: 1 of 24 frames are damaged\n",
    )
    for _ in range(2):
        caplog.clear()
        index = opened(data)
        assert [path for path, _ in index.unreadable] == [bad]
        with pytest.raises(UnreadableVideoError, match="Invalid data"):
            index[paths.index(bad)]
        assert f"1 of the {len(paths)} videos" in caplog.text
        for text in problems:
            assert text in (data / "train.index.problems.txt").read_text()
            assert text.strip() in caplog.text
    assert len(scanned) == len(paths) + 1
    write_video(Path(bad), grey(5))
    assert_right(opened(data), paths)


def test_a_disk_that_is_missing_for_once_costs_no_index(data, file, scanned):
    paths = videos(data)
    opened(data)
    away = data.rename(data.with_name("away"))
    data.mkdir()
    shutil.copy(away / file.name, data)
    assert len(opened(data, paths).unreadable) == len(paths)
    shutil.copytree(away, data, dirs_exist_ok=True, ignore=lambda *_: [file.name])
    scanned.clear()
    assert_right(opened(data), paths)
    assert scanned == []


def test_a_killer_is_named_and_not_tried_again_until_it_has_changed(data, scanned, monkeypatch):
    killer = data / "killer"
    killer.write_text("deadly")
    with monkeypatch.context() as patch:
        patch.setattr(scanning, "_try_scan", lambda _: WorkerCrashed())
        opened(data, [str(killer)])
    assert opened(data, [str(killer)]).unreadable == [(str(killer), scanning.KILLER)]
    assert scanned == []
    killer.write_text("harmless")
    opened(data, [str(killer)])
    assert scanned == ["killer"]


# The file.


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(json.dumps({"version": 2, "videos": {}}).encode())],
    ids=["damaged", "another version"],
)
def test_a_file_that_is_damaged_or_of_another_version_is_built_anew(data, file, caplog, content):
    file.write_bytes(content)
    for _ in range(2):
        assert_right(opened(data), videos(data))
    assert caplog.text.count(f"The index {file} will be rebuilt") == 1


def test_where_the_folder_is_not_writable_the_index_lies_in_the_cache(
    data, file, cache, scanned, caplog
):
    file.mkdir()  # what even the superuser cannot overwrite
    for _ in range(2):
        assert_right(opened(data), videos(data))
    assert list(cache.iterdir()) == [index_files(data / "train.csv")[1]]
    assert len(scanned) == len(videos(data))
    assert "cannot be saved" not in caplog.text
    shutil.rmtree(cache)
    cache.write_text("a file where a folder should be")
    assert_right(opened(data), videos(data))
    assert "cannot be saved" in caplog.text


def test_a_signal_ends_a_scan_after_the_video_that_is_read_and_another_continues(
    data, scanned, monkeypatch
):
    def scan_and_stop(path):
        os.kill(os.getpid(), signal.SIGTERM)
        return scan(path)

    with monkeypatch.context() as patch, StopRequest(World(0, 1, torch.device("cpu"))):
        patch.setattr(scanning, "scan", scan_and_stop)
        with pytest.raises(TrainingInterruptedError, match="SIGTERM while videos were scanned"):
            opened(data)
    assert_right(opened(data), videos(data))
    assert len(scanned) == len(videos(data)) - 1


@pytest.mark.parametrize("scanned", ["text", "eJyrrgUAAXUA+Q=="])
def test_a_damaged_entry_is_scanned_again(tmp_path, scanned):
    path = write_video(tmp_path / "a.mp4", grey(24))
    open_index(tmp_path / "train.csv", [str(path)])
    file = tmp_path / "train.index.json.gz"
    content = json.loads(gzip.decompress(file.read_bytes()))
    for entry in content["videos"].values():
        entry[2] = scanned
    file.write_bytes(gzip.compress(json.dumps(content).encode()))
    assert open_index(tmp_path / "train.csv", [str(path)])[0].video.frames == 24


def test_a_failed_seek_is_remembered_by_the_index(data, file, scanned, monkeypatch):
    """The next process reads the video from its beginning at once. The hash stays the same."""
    csv, name, notes = (
        data / "train.csv",
        str(data / "even.mp4"),
        data / "train.index.unseekable.txt",
    )
    csv.write_text("even.mp4 0\n")
    shape = Shape(1, 2, 32)
    clips = VideoClips(csv, shape)
    first = clips[0]
    assert clips.index[0].can_seek
    assert not notes.exists()
    monkeypatch.setattr(decoding, "_unreliable", {name})
    for _ in range(2):
        assert np.array_equal(clips[0]["clip"], first["clip"])
    assert notes.read_text() == '"even.mp4"\n'
    monkeypatch.setattr(decoding, "_unreliable", set())
    for _ in range(2):
        index = open_index(csv, [name])
        assert index[0].keys.tolist() == [0]
        assert index.content == clips.index.content
        assert not notes.exists()
    assert scanned == ["even.mp4"]


# Entries.

SCANNED = ScannedVideo(Kind.VIDEO, Video(7, 30.0, 64, 48), keys=np.array([0])).packed()


@pytest.mark.parametrize(
    ("entry", "status", "fits"),
    [
        (Entry(5, 9, SCANNED, ""), (5, 9), True),
        (Entry(5, 9, SCANNED, ""), (6, 9), False),
        (Entry(5, 9, SCANNED, ""), (5, 8), False),
        (Entry(5, 9, "", "cannot be opened"), (5, 9), False),
        (Entry(5, 9, "", scanning.KILLER), (5, 9), True),
        (Entry(5, 9, SCANNED[:-4], ""), (5, 9), False),
        (Entry(5, 9, "text", ""), (5, 9), False),
        # Versions of remote files are below -1. A local file that was uploaded has the same size.
        (Entry(5, 9, SCANNED, ""), (5, -2), True),
        (Entry(5, 0, SCANNED, ""), (5, -2), True),
        (Entry(6, 9, SCANNED, ""), (5, -2), False),
        (Entry(5, -3, SCANNED, ""), (5, -2), False),
        (Entry(5, -1, SCANNED, ""), (5, -2), False),
        (Entry(5, -2, SCANNED, ""), (5, 9), False),
        (Entry(-1, 9, SCANNED, ""), (-1, -1), False),
    ],
)
def test_an_entry_is_used_again_for_a_video_of_the_same_size_and_time(entry, status, fits):
    assert entry.fits(*status) == fits


def test_the_content_of_an_entry_is_its_size_and_scan_but_not_its_time():
    content = Entry(5, 9, SCANNED, "").content
    assert content == Entry(5, 8, SCANNED, "", damage="part", seeks=False).content
    others = [Entry(6, 9, SCANNED, ""), Entry(5, 9, "", "bad"), Entry(5, 9, "", "")]
    assert len({content, *(entry.content for entry in others)}) == 4


def test_hashes_of_an_index_tell_other_videos_and_other_times(data):
    index = opened(data)
    assert opened(data).content == index.content
    assert opened(data).times == index.times
    os.utime(data / "even.mp4", ns=(0, 1))
    touched = opened(data)
    assert touched.content == index.content
    assert touched.times != index.times
    write_video(data / "even.mp4", grey(7))
    assert opened(data).content != index.content


def test_an_index_is_saved_once_a_minute_and_at_the_end(data, monkeypatch):
    """The clock goes on by 25 s with each look at it."""
    saved = []
    clock = itertools.count(0, 25)
    monkeypatch.setattr(indexing, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(indexing, "_save", lambda csv, entries: saved.append(len(entries)))
    opened(data, [str(path) for path in sorted(data.glob("*.mp4"))] + [str(data / "bare.h264")])
    assert saved == [3, 4]
    opened(data, [str(data / "even.mp4")])
    assert saved[2:] == [1]


def test_an_index_without_new_videos_is_not_written_again(data, file):
    opened(data)
    file.touch()
    os.utime(file, (1, 1))
    opened(data)
    assert file.stat().st_mtime == 1


def test_the_list_of_problems_goes_with_the_problems(data, caplog):
    listing = data / "train.index.problems.txt"
    (data / "text.mp4").write_text("no video")
    write_video(data / "one.mp4", grey(1))
    opened(data)
    lines = listing.read_text().splitlines()
    assert {line.partition(" ")[0] for line in lines} == {
        str(data / name) for name in ("text.mp4", "one.mp4", "uneven.mp4")
    }
    assert len(lines) == 3
    for number, what in (
        (1, "cannot be read"),
        (1, "can be read only in part"),
        (1, "have an unusual frame rate"),
    ):
        assert f"{number} of the 7 videos of {data / 'train.csv'} {what}" in caplog.text
    assert f"All are listed in {listing}" in caplog.text
    caplog.clear()
    opened(data, [str(data / "even.mp4")])
    assert not listing.exists()
    assert caplog.text == ""


def test_videos_without_a_list_have_an_index_in_the_cache_by_their_paths(cache, tmp_path):
    paths = [str(tmp_path / name) for name in ("a.mp4", "b.mp4")]
    place = unlisted(paths)
    assert place.parent == cache
    assert place == unlisted([os.path.relpath(path) for path in paths])
    assert len({place, unlisted(paths[:1]), unlisted(paths[::-1]), unlisted([])}) == 4


def test_notes_about_seeks_may_end_within_a_line(data):
    opened(data)
    notes = data / "train.index.unseekable.txt"
    notes.write_text('"even.mp4"\n"gone.mp4"\n"uneven.m')
    index = opened(data, [str(data / "even.mp4"), str(data / "uneven.mp4")])
    assert index[0].keys.tolist() == [0]
    assert index[1].can_seek == (len(scan(str(data / "uneven.mp4")).keys) > 1)
    assert not notes.exists()
    assert opened(data, [str(data / "even.mp4")])[0].keys.tolist() == [0]


def test_an_index_of_a_bucket_is_uploaded_beside_its_list(tmp_path, monkeypatch):
    uploads = []
    cached = tmp_path / "cached.index.json.gz"
    beside = as_path("s3://b/train.index.json.gz")
    monkeypatch.setattr(indexing, "index_files", lambda csv: [beside, cached])
    monkeypatch.setattr(indexing, "upload", lambda file, path: uploads.append((file, path)))
    publish_index(as_path("s3://b/train.csv"))
    assert uploads == []
    cached.touch()
    publish_index(as_path("s3://b/train.csv"))
    assert uploads == [(cached, "s3://b/train.index.json.gz")]
