"""Sources of prepared files, their record, and the folder that they are written to."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from slowfast_patches.datasets.lists.csv_list import LabelledVideo
from slowfast_patches.datasets.preparing import output_folder, sources
from slowfast_patches.datasets.preparing.output_folder import (
    check_origins,
    claim,
    new_rows,
    write_lists,
    write_reasons,
)
from slowfast_patches.datasets.preparing.sources import (
    Recorder,
    Source,
    check_apart,
    find_sources,
    local_form,
    not_prepared,
    recorded,
)
from slowfast_patches.datasets.preparing.video_lists import VideoList
from slowfast_patches.utils.storage import Status

# Targets.


def test_sources_have_targets_below_their_root_and_their_own_status(tmp_path):
    (tmp_path / "data/deep").mkdir(parents=True)
    for name, size in (("a.mp4", 3), ("deep/b.AVI", 5), ("c.MP4", 7)):
        (tmp_path / "data" / name).write_bytes(bytes(size))
        os.utime(tmp_path / "data" / name, ns=(0, 5_900_000_000 + size))
    paths = [str(tmp_path / "data" / name) for name in ("a.mp4", "deep/b.AVI", "c.MP4", "none.mkv")]
    found = find_sources(paths, str(tmp_path / "data"))
    assert [source.target for source in found.values()] == [
        "videos/a.mp4",
        "videos/deep/b.AVI.mp4",
        "videos/c.MP4",
        "videos/none.mkv.mp4",
    ]
    assert found[paths[1]][2:] == (5, 5_900_000_005, 5)
    assert found[paths[3]][2:] == (0, 0, None)


def test_paths_outside_the_root_and_series_have_targets_within_the_output(tmp_path):
    found = find_sources([str(tmp_path / "x/img_*.jpg")], str(tmp_path / "y/z"))
    assert [source.target for source in found.values()] == ["videos/x/img_.jpg.mp4"]


def test_two_files_of_one_target_are_refused_but_not_two_paths_of_one_file(tmp_path, monkeypatch):
    (tmp_path / "a.mp4").touch()
    monkeypatch.chdir(tmp_path)
    one, same = find_sources(["a.mp4", str(tmp_path / "a.mp4")], str(tmp_path)).values()
    assert one == same
    with pytest.raises(ValueError, match=r"would both be written to videos/a\.mp4"):
        find_sources([str(tmp_path / "x/a.mp4"), "a.mp4"], str(tmp_path / "x"))


def test_the_scheme_of_a_remote_path_becomes_a_folder():
    assert local_form("s3://bucket/a.mp4") == "/s3/bucket/a.mp4"
    assert local_form("s3://bucket/b://c.mp4") == "/s3/bucket/b://c.mp4"
    assert local_form("/data/a.mp4") == "/data/a.mp4"


def source(path: str, target: str = "videos/a.mp4", *status: int) -> Source:
    return Source(path, target, *(status or (1, 2, 3)))


def test_sources_within_the_videos_of_the_output_are_refused(tmp_path):
    out = tmp_path / "out"
    check_apart(out, [source(f"{out}/videos2/a.mp4"), source(f"{out}/a.mp4"), source("s3://b/a")])
    for path in (f"{out}/videos/a.mp4", f"{out}/videos/deep/a.mp4"):
        with pytest.raises(ValueError, match=f"such as {path}"):
            check_apart(out, [source("/x/a.mp4"), source(path)])
    (tmp_path / "link").symlink_to(out)
    with pytest.raises(ValueError, match="among the original videos"):
        check_apart(tmp_path / "link", [source(f"{out}/videos/a.mp4")])
    with pytest.raises(ValueError, match="among the original videos"):
        check_apart(out, [source(f"{tmp_path}/link/videos/a.mp4")])


# The record.


@pytest.fixture
def out(tmp_path):
    (tmp_path / "videos").mkdir()
    return tmp_path


def test_a_file_is_prepared_if_the_record_has_its_size_and_those_of_its_source(out):
    sources = [source(f"/{n}.avi", f"videos/{n}.mp4", 10 + n, 20 + n, 30) for n in range(3)]
    assert not_prepared(out, sources) == sources
    with recorded(out) as recorder:
        for each in sources[:2]:
            (out / each.target).write_bytes(b"1234")
            recorder.add(each)
            assert each not in not_prepared(out, sources), "it is not written at once"
    lines = (out / "sources.jsonl").read_text().split("\n")
    assert lines == ["", *(json.dumps([s.target, s.size, s.version, 4]) for s in sources[:2]), ""]
    assert not_prepared(out, sources) == sources[2:]
    other_size = sources[0]._replace(size=99)
    other_version = sources[0]._replace(version=99)
    assert not_prepared(out, [other_size, other_version]) == [other_size, other_version]
    (out / sources[0].target).write_bytes(b"12345")
    assert not_prepared(out, sources) == [sources[0], sources[2]]
    gone = sources[0]._replace(modified=None)  # the source was deleted
    assert not_prepared(out, [gone]) == []
    (out / gone.target).unlink()
    assert not_prepared(out, [gone]) == [gone]


def test_a_local_file_without_a_record_is_prepared_again_however_new(out):
    (out / "videos/a.mp4").touch()
    assert not_prepared(out, [source("/a.avi")]) == [source("/a.avi")]


def test_half_a_line_of_the_record_is_skipped_and_the_latest_line_counts(out):
    (out / "videos/a.mp4").write_bytes(b"1234")
    line = json.dumps(["videos/a.mp4", 1, 2, 4])
    for text, is_known in (
        (f'["videos/a.mp4", 9, 9, 9]\n{line}\n', True),
        (f'{line}\n["videos/a.mp4", 9, 9, 9]\n', False),
        (f'{line}\n["videos/a.mp4", 9, 9\n["videos/b', True),
        (f'{line}\n["videos/a.mp4", 9, 9]\n[]\n\n', True),
        ("", False),
    ):
        (out / "sources.jsonl").write_text(text)
        assert (not_prepared(out, [source("/a.avi")]) == []) == is_known


def test_in_a_bucket_the_record_is_uploaded_at_the_end_also_after_an_error(monkeypatch):
    written = []
    there = {"s3:/b/videos/a.mp4": Status(4, 7, 50.0), "s3:/b/videos/b.mp4": Status(5, 8, 60.0)}
    monkeypatch.setattr(sources, "is_remote", lambda path: True)
    monkeypatch.setattr(
        sources, "list_status", lambda paths: {p: there[p] for p in paths if p in there}
    )
    monkeypatch.setattr(sources, "write_text", lambda path, text: written.append((path, text)))
    out = Path("s3:/b")

    def fail() -> None:
        with recorded(out) as recorder:
            recorder.add(source("/a.avi"))
            recorder.add(source("/c.avi", "videos/c.mp4"))
            assert written == []
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert written == [(out / "sources.jsonl", '["videos/a.mp4", 1, 2, 4]\n')]
    Recorder(out, None).upload()
    assert len(written) == 1, "there is nothing new"
    # Without a record, a prepared file must be newer than its source.
    for modified, is_prepared in ((49, True), (50, True), (51, False)):
        one = source("/a.avi", "videos/a.mp4", 1, 2, modified)
        assert (not_prepared(out, [one]) == []) == is_prepared


# The output folder.


def lists(tmp_path: Path, *videos: tuple[str, int], name: str = "train.csv") -> list[VideoList]:
    origin = tmp_path / "data/lists.csv"
    return [VideoList(name, origin, tmp_path, [LabelledVideo(*video) for video in videos])]


def test_the_output_must_not_be_the_folder_of_a_list_or_lie_among_classes(tmp_path):
    csv = SimpleNamespace(origin=tmp_path / "data/train.csv")
    check_origins([csv], tmp_path / "data/out")
    with pytest.raises(ValueError, match="lies in the folder of the original data set"):
        check_origins([csv], tmp_path / "data")
    (tmp_path / "classes").mkdir()
    folder = SimpleNamespace(origin=tmp_path / "classes")
    check_origins([folder], tmp_path / "out")
    check_origins([folder], tmp_path)
    for out in (tmp_path / "classes", tmp_path / "classes/a/b"):
        with pytest.raises(ValueError, match="lies in the folder of the original data set"):
            check_origins([csv, folder], out)


HOW = {"format": "1", "short_side": 256, "fps": None, "crf": 18, "root": "/"}


def test_a_folder_is_claimed_with_its_settings_and_only_with_equal_ones_again(tmp_path):
    claim(tmp_path, lists(tmp_path), [], HOW)
    assert json.loads((tmp_path / "prepared.json").read_text()) == HOW
    claim(tmp_path, lists(tmp_path), [], HOW)
    (tmp_path / "train.csv").touch()
    claim(tmp_path, lists(tmp_path), [], HOW)
    with pytest.raises(ValueError, match=r"with --fps not set \(this command: 30\), --crf 18 \("):
        claim(tmp_path, lists(tmp_path), [], HOW | {"fps": 30, "crf": 9})
    assert json.loads((tmp_path / "prepared.json").read_text()) == HOW


def test_another_root_is_accepted_if_the_first_is_gone(tmp_path):
    moved = HOW | {"root": str(tmp_path / "moved")}
    for root, is_gone in ((tmp_path / "gone", True), (tmp_path, False)):
        (tmp_path / "prepared.json").write_text(json.dumps(HOW | {"root": str(root)}))
        if is_gone:
            claim(tmp_path, lists(tmp_path), [], moved)
            assert json.loads((tmp_path / "prepared.json").read_text()) == moved
        else:
            with pytest.raises(ValueError, match="the folder of the videos"):
                claim(tmp_path, lists(tmp_path), [], moved)


@pytest.mark.parametrize("settings", [{"root": "/"}, HOW | {"root": 3}, HOW | {"more": 1}])
def test_settings_of_another_form_are_damaged(tmp_path, settings):
    (tmp_path / "prepared.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="is damaged: it must have the settings format, short_si"):
        claim(tmp_path, lists(tmp_path), [], HOW)


def test_foreign_lists_and_videos_are_not_claimed(tmp_path):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos/a.mp4").touch()
    with pytest.raises(ValueError, match=r"would overwrite: .*videos/a\.mp4"):
        claim(tmp_path, lists(tmp_path), [source("/x/a.avi")], HOW)
    (tmp_path / "train.csv").touch()
    with pytest.raises(ValueError, match=r"train\.csv was not written by multigrid-prepare"):
        claim(tmp_path, lists(tmp_path), [], HOW)
    assert not (tmp_path / "prepared.json").exists()


def test_reasons_are_a_line_each_and_go_if_there_are_none(tmp_path):
    reasons = {source("/a"): "cannot\nbe  read", source("/b"): "is\tdamaged"}
    write_reasons(tmp_path, reasons)
    text = (tmp_path / "unreadable.txt").read_text()
    assert text == "/a\tcannot be read\n/b\tis damaged\n"
    write_reasons(tmp_path, {})
    assert not (tmp_path / "unreadable.txt").exists()


def test_new_lists_have_the_readable_videos_and_lost_classes_are_named(tmp_path, caplog):
    made = {"a": "videos/a.mp4", "b": "videos/b.mp4"}
    given = lists(tmp_path, ("b", 3), ("x", 1), ("a", 0), ("y", 2), ("b", 0))
    expected = {"train.csv": [("videos/b.mp4", 3), ("videos/a.mp4", 0), ("videos/b.mp4", 0)]}
    assert new_rows(given, made, ()) == expected
    assert "videos of 2 class(es) can be read: 1 and 2" in caplog.text
    caplog.clear()
    assert new_rows(lists(tmp_path, ("a", 0), ("x", 0)), made, ()) == {
        "train.csv": [("videos/a.mp4", 0)]
    }
    assert caplog.text == ""
    with pytest.raises(ValueError, match=r"none of the videos that .* lists for val\.csv can be"):
        new_rows([*given, *lists(tmp_path, ("x", 0), name="val.csv")], made, ())


def test_lists_are_written_with_the_separator_and_classes_by_name(tmp_path):
    rows = {"train.csv": [("a.mp4", 1)], "val.csv": [("b.mp4", 0), ("c.mp4", 1)]}
    write_lists(rows, tmp_path, r"\t", ["ä", "b"])
    assert (tmp_path / "train.csv").read_text() == "a.mp4\t1\n"
    assert (tmp_path / "val.csv").read_text() == "b.mp4\t0\nc.mp4\t1\n"
    text = (tmp_path / "classes.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"ä": 0, "b": 1}
    assert "ä" in text
    (tmp_path / "classes.json").unlink()
    write_lists(rows, tmp_path, " ", [])
    assert not (tmp_path / "classes.json").exists()


def test_all_lists_are_on_the_disk_before_one_is_replaced(tmp_path, monkeypatch):
    """A full disk is noticed when a file is flushed."""
    events = []

    @contextmanager
    def atomic_write(path: Path):
        flush = partial(events.append, path.name)
        yield SimpleNamespace(write=lambda text: None, flush=flush)
        events.append(f"replaced {path.name}")

    monkeypatch.setattr(output_folder, "atomic_write", atomic_write)
    write_lists({"train.csv": [("a", 0)], "val.csv": [("b", 0)]}, tmp_path, " ", [])
    assert events == ["train.csv", "val.csv", "replaced val.csv", "replaced train.csv"]
