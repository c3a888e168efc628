"""Tests of preparing data sets: output, reuse of earlier output, and errors."""

import json
import os
import shutil

import pytest

from multigrid import ClipRequest, Shape
from slowfast_patches.datasets.clip_dataset import ClipDataset
from slowfast_patches.datasets.lists.dataset_lists import class_names
from slowfast_patches.datasets.preparing import prepare as preparing
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.scanned_video import Kind
from slowfast_patches.utils.processes import run_each
from tests.slowfast_patches.datasets.made_videos import (
    noise,
    rows,
    times,
    write_ssv2_json,
    write_video,
)
from tests.slowfast_patches.datasets.recipes import recipe_of

NAMES = ["a.mp4", "deep/er/b.avi", "with space/c d.mkv", "żółw/é.mp4", "a.avi"]
TARGETS = ["a.mp4", "deep/er/b.avi.mp4", "with space/c d.mkv.mp4", "żółw/é.mp4", "a.avi.mp4"]
PREPARED = [f"videos/{name}" for name in TARGETS]
COARSE = Shape(16, 4, 32)
KEPT = "videos that an earlier run had prepared:"


@pytest.fixture
def data(tmp_path):
    """Write five videos of classes 0, 1, 2, 0, 1. All are in train.csv, and two in val.csv."""
    folder = tmp_path / "data"
    for number, name in enumerate(NAMES):
        write_video(folder / name, noise(3 + number, seed=number))
        os.utime(folder / name, (number, number))
    lines = write_list(folder / "train.csv", *NAMES).read_text(encoding="utf-8").splitlines()
    (folder / "val.csv").write_text("\n".join(lines[3:]), encoding="utf-8")
    return folder


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def prepare(run, out):
    """Return `prepare(csv, ...)`, which writes to `out` and returns exit status and output."""
    return lambda csv, *options: run("--csv", csv, "--output", out, *options)


def write_list(csv, *names):
    lines = (f"{name} {number % 3}\n" for number, name in enumerate(names))
    csv.write_text("".join(lines), encoding="utf-8")
    return csv


# What comes out.


@pytest.mark.slow("trains for seconds")
def test_a_data_set_comes_out_as_it_went_in_and_trains(run, data, out, monkeypatch, caplog):
    monkeypatch.setattr(preparing, "run_each", run_each)  # in several processes
    (data / "classes.txt").write_text("a\nb\nc\nd\n")  # the lists have no video of the last
    lists = ("--csv", data / "train.csv", "--csv", data / "val.csv", "--output", out)
    status, output = run(*lists)
    keys = ("DATA.PATH_TO_DATA_DIR", str(out), "DATA.PATH_PREFIX", "", "MODEL.NUM_CLASSES", 4)
    assert status == 0
    assert f"{keys[0]} {out} DATA.PATH_PREFIX '' MODEL.NUM_CLASSES 4" in output
    assert "2 of the 2 videos of val are also in train" in caplog.text
    assert json.loads((out / "classes.json").read_text()) == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert rows(out / "train.csv") == list(zip(PREPARED, (0, 1, 2, 0, 1), strict=True))
    assert rows(out / "val.csv") == rows(out / "train.csv")[3:]
    assert sorted(times(out)) == sorted(PREPARED)  # each once
    train = ClipDataset.of_recipe(recipe_of(out, *keys), "train")
    for video, name in enumerate(PREPARED):
        record = scan(str(out / name))
        assert (record.kind, record.video.frames) == (Kind.PREPARED, 3 + video)
        item = train[ClipRequest(video, 0, COARSE, 0)]
        assert (item["label"], item["failures"]) == (video % 3, [])


def test_options_are_obeyed(prepare, data, out, tmp_path):
    csv = tmp_path / "my.csv"
    csv.write_text("a.avi\t7\nwith space/c d.mkv\t0\n")
    form = ("--separator", r"\t", "--short-side", 32, "--fps", 15)
    status, output = prepare(csv, "--prefix", data, *form)
    assert (status, r"DATA.PATH_LABEL_SEPARATOR '\t'" in output) == (0, True)
    names = [("videos/a.avi.mp4", 7), ("videos/with space/c d.mkv.mp4", 0)]
    assert rows(out / "my.csv", "\t") == names
    assert scan(str(out / names[0][0])).video[:4] == (4, 15, 42, 32)  # of 7 frames at 30 a second


def test_ssv2_is_prepared_and_trains(run, tmp_path, out):
    folder = tmp_path / "ssv2"
    write_video(folder / "41.webm", noise(9), codec="libvpx-vp9")
    entries = [{"id": "41", "template": "Holding [something]"}]
    labels = {"Holding something": "1", "Nothing": "0"}
    write_ssv2_json(folder, labels=labels, train=entries, validation=entries)
    assert run("--ssv2", folder, "--output", out)[0] == 0
    assert rows(out / "train.csv") == rows(out / "val.csv") == [("videos/41.webm.mp4", 1)]
    recipe = recipe_of(out, "MODEL.NUM_CLASSES", 2, dataset="ssv2")
    assert class_names(recipe) == ("Nothing", "Holding something")
    item = ClipDataset.of_recipe(recipe, "train")[ClipRequest(0, 0, COARSE, 0)]
    assert (item["label"], item["failures"]) == (1, [])


def test_preparing_twice_gives_equal_files(run, data, tmp_path):
    """The order in which videos are prepared, and when, leaves no mark."""
    files = list[dict[str, bytes]]()
    for name in ("first", "second"):
        out = tmp_path / name
        lists = ("--csv", data / "train.csv", "--csv", data / "val.csv")
        assert run(*lists, "--output", out, "--short-side", 32)[0] == 0
        files.append(
            {str(f.relative_to(out)): f.read_bytes() for f in out.rglob("*") if f.is_file()}
        )
        (data / "train.csv").touch()
    first, second = files
    assert first.keys() == second.keys() >= {*PREPARED, "train.csv", "val.csv"}
    assert [name for name in first if first[name] != second[name]] == []


# Which file becomes which.


def test_paths_of_several_folders_do_not_mix(run, tmp_path, out):
    """A path upwards and an absolute path lead to the file that a relative path names as well."""
    for number, name in enumerate(("one", "two")):
        write_video(tmp_path / name / "x.mp4", noise(3 + number))
    names = ("x.mp4", "../two/x.mp4", tmp_path / "one/x.mp4")
    train = write_list(tmp_path / "one/train.csv", *names)
    val = write_list(tmp_path / "two/val.csv", "x.mp4")
    assert run("--csv", train, "--csv", val, "--output", out)[0] == 0
    targets = [name for name, _ in rows(out / "train.csv")]
    assert targets == ["videos/one/x.mp4", "videos/two/x.mp4", "videos/one/x.mp4"]
    assert rows(out / "val.csv")[0][0] == targets[1]
    assert [scan(str(out / target)).video.frames for target in targets] == [3, 4, 3]


# Continuing.


def test_a_second_run_writes_what_is_missing_and_no_more(prepare, data, out, tmp_path):
    prepare(data / "train.csv")
    before = times(out)
    deleted, cut, changed, gone, same = map(out.joinpath, PREPARED)
    deleted.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    write_video(data / NAMES[2], noise(9))
    (data / NAMES[3]).unlink()
    data = data.rename(tmp_path / "moved")
    status, output = prepare(data / "train.csv")
    assert (status, f"{KEPT} 2\n" in output) == (0, True)
    kept = {out / name for name, when in times(out).items() if when == before[name]}
    assert kept >= {gone, same}
    assert [scan(str(path)).video.frames for path in (deleted, cut, changed)] == [3, 4, 9]
    assert len(rows(out / "train.csv")) == 5


def test_an_interrupted_run_leaves_nothing_half_done(prepare, data, out, monkeypatch):
    def interrupted(work, jobs, _):
        (out / "videos/left_by_a_killed_process.tmp").touch()
        yield from [(job, work(job)) for job in jobs[:2]]
        raise KeyboardInterrupt

    (out / "videos").mkdir(parents=True)
    monkeypatch.setattr(preparing, "run_each", interrupted)
    status, output = prepare(data / "train.csv")
    assert (status, "To continue, repeat the command" in output) == (130, True)
    assert {path.suffix for path in (out / "videos").rglob("*.*")} == {".mp4"}
    assert not list(out.glob("*.csv"))


# Bad videos, and a full disk.


def test_a_bad_video_is_left_out_and_reported(prepare, data, out):
    csv, gone = data / "train.csv", data / "a.avi"
    gone.unlink()
    status, output = prepare(csv)
    assert status == 1
    assert [label for _, label in rows(out / "train.csv")] == [0, 1, 2, 0]
    reason = "cannot be opened: No such file or directory"
    assert (out / "unreadable.txt").read_text() == f"{gone}\t{reason}\n"
    assert f"{gone}: {reason}" in output
    write_video(gone, noise(4))
    assert prepare(csv)[0] == 0
    assert not (out / "unreadable.txt").exists()
    assert len(rows(out / "train.csv")) == 5


def test_what_does_not_fit_is_refused_before_the_disk_is_full(prepare, data, out, monkeypatch):
    names = [f"{number}.mp4" for number in range(20)]
    for name in names:
        shutil.copy(data / "a.mp4", data / name)
    csv = write_list(data / "train.csv", *names)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
    status, output = prepare(csv, "--workers", 2)
    assert (status, "the remaining videos will need" in output) == (2, True)
    assert len(times(out)) == 8


# What is refused.


def test_other_settings_and_lists_that_were_not_made_here_are_refused(prepare, data, out, tmp_path):
    prepare(data / "val.csv")
    before = times(out)
    csv = write_list(tmp_path / "val.csv", "data/a.mp4")
    (tmp_path / "foreign").mkdir()
    shutil.copy(csv, tmp_path / "foreign")
    for options, said in (
        ([data / "val.csv", "--short-side", 128], "--short-side 256 (this command: 128)"),
        ([csv, "--output", tmp_path / "foreign"], "was not written by multigrid-prepare"),
    ):
        status, output = prepare(*options)
        assert (status, said in output) == (2, True)
    assert (tmp_path / "foreign/val.csv").read_bytes() == csv.read_bytes()
    assert times(out) == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--csv", "data/train.csv", "--csv", "data/train.csv"], "same name"),
        (["--csv", "data/train.csv", "--output", "data"], "lies in the folder of the original"),
    ],
)
def test_mistakes_are_named(run, data, tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    status, output = run("--output", "out", *args)
    assert (status, message in output) == (2, True)
    assert not (tmp_path / "out/videos").exists()
