"""The index: what it keeps, what it scans anew, and what happens to it."""

import gzip
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from multigrid import Shape
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading import decoding
from slowfast_patches.datasets.reading import scan as scanning
from slowfast_patches.datasets.reading.index import index_files, open_index
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.scanned_video import Kind
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from slowfast_patches.datasets.video_clips import VideoClips
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.interruption import TrainingInterruptedError
from slowfast_patches.utils.processes import WorkerCrashed
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
