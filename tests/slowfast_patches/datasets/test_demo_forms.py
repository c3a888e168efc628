"""The demo data set in the forms of Something-Something and Charades: the same videos, listed."""

import json
from pathlib import Path

import cv2
import pytest

from slowfast_patches.datasets.demo.forms import write_charades_form, write_ssv2_form
from slowfast_patches.datasets.demo.synthetic import CLASSES
from slowfast_patches.datasets.lists.csv_list import read_csv
from slowfast_patches.datasets.lists.frame_list import FrameList, read_frame_list

WRITERS = {"ssv2": write_ssv2_form, "charades": write_charades_form}


@pytest.fixture(scope="module", params=sorted(WRITERS))
def form(
    request: pytest.FixtureRequest, demo_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """The name of a form, and a folder in which the demo data set is written in it."""
    out = tmp_path_factory.mktemp("forms") / request.param
    WRITERS[request.param](demo_data, out)
    return request.param, out


def listed(folder: Path, split: str) -> FrameList:
    return read_frame_list(folder / f"{split}.csv", num_classes=8, fps=30.0)


def test_ssv2s_json_files_have_the_classes_of_the_videos(demo_data, tmp_path):
    out, named, ids = tmp_path / "ssv2", "something-something-v2-{}.json", list[str]()
    write_ssv2_form(demo_data, out)
    labels = json.loads((out / named.format("labels")).read_text())
    for split, name in (("train", "train"), ("val", "validation")):
        entries = json.loads((out / named.format(name)).read_text())
        ids += [entry["id"] for entry in entries]
        assert [entry["id"] for entry in entries] == [video.name for video in listed(out, split)]
        found = [int(labels[e["template"].replace("[", "").replace("]", "")]) for e in entries]
        videos = read_csv(demo_data / f"{split}.csv", num_classes=8)
        assert found == [video.label for video in videos]
    assert len(set(ids)) == 24 + 8
    assert sorted(labels.values()) == [str(number) for number in range(8)]


def test_charades_items_are_two_videos_of_different_classes(demo_data, tmp_path):
    out = tmp_path / "charades"
    write_charades_form(demo_data, out)
    videos = listed(out, "train")
    pairs = {tuple(run.labels for run in video.runs) for video in videos}
    assert len(pairs) == len(videos) == 24  # no pair of classes twice, but for the order
    assert all(len(one) == len(other) == 1 and one != other for one, other in pairs)
    assert {run.end for video in videos for run in video.runs} == {20, 40}
    labels = [video.label for video in read_csv(demo_data / "train.csv", num_classes=8)]
    assert [video.runs[0].labels[0] for video in videos] == labels
    names = (out / "Charades_v1_classes.txt").read_text().splitlines()
    assert names == [f"c{number:03d} {name}" for number, name in enumerate(CLASSES)]


def test_what_is_there_stays(demo_data, form, monkeypatch):
    monkeypatch.setattr(cv2, "imwrite", lambda *_: pytest.fail("written again"))
    WRITERS[form[0]](demo_data, form[1])


def test_folders_that_are_something_else_are_refused(demo_data, form, tmp_path):
    write, out = WRITERS[form[0]], form[1]
    with pytest.raises(ValueError, match="is no demo data set"):
        write(tmp_path, tmp_path / "out")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    with pytest.raises(ValueError, match="photos holds something else"):
        write(demo_data, tmp_path / "photos")
    manifest = (demo_data / "demo_data.json").read_text()
    (tmp_path / "demo_data.json").write_text(manifest.replace('"seed": 0', '"seed": 7'))
    with pytest.raises(ValueError, match="was made from another demo data set"):
        write(tmp_path, out)
