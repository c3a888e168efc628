"""Predictions have the scores of the test and class names. Bad input has clear messages."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import av
import cv2
import pytest
import torch

import slowfast_patches
from slowfast_patches.datasets.loader import build_dataset, evaluation_loader
from slowfast_patches.datasets.reading import scan as scanning
from slowfast_patches.models.build_model import build_model
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.weights import load_weights
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train.predict import Predictor, read_checkpoint
from slowfast_patches.train.predict import predictor as predictors
from tests.slowfast_patches.datasets.made_videos import break_frame, noise, write_video
from tests.slowfast_patches.train.made_checkpoint import made

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trained(multigrid_run) -> Path:
    return checkpoints.last_checkpoint(multigrid_run)


@pytest.fixture(scope="module")
def videos(tiny_data) -> list[str]:
    """The test split, in the order of its list."""
    lines = (tiny_data / "test.csv").read_text().splitlines()
    return [str(tiny_data / line.split()[0]) for line in lines]


@pytest.fixture(scope="module")
def names(tiny_data) -> list[str]:
    return (tiny_data / "classes.txt").read_text().splitlines()


@pytest.fixture
def predict(load_program, capsys) -> Callable[..., tuple[int, str, str]]:
    """`predict(argument, ...)`: exit status, output and errors of the tool."""
    tool = load_program("tools/predict.py")

    def call(*arguments: object) -> tuple[int, str, str]:
        status = tool.main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return call


def scores_of_the_test(cfg: Any, trained: Path) -> torch.Tensor:
    """Scores of the test split's clips, (videos, clips, classes), from its own items."""
    model = build_model(cfg).eval()
    load_weights(model, trained, complete=True)
    dataset, transform = build_dataset(cfg, "test"), InputTransform.of_recipe(cfg, CPU)
    scores = torch.zeros(len(dataset.videos), dataset.num_clips, cfg.model.num_classes)
    with torch.no_grad():
        for batch in evaluation_loader(cfg, dataset, dataset.num_clips, 0, 1):
            (video,) = batch["videos"].unique()
            scores[video] = model(transform(batch["clips"], batch["flips"]))
    return scores.double()


@pytest.mark.parametrize(
    "overrides",
    [
        ("TEST.NUM_SPATIAL_CROPS", 3, "TEST.BATCH_SIZE", 4, "DATA.ENSEMBLE_METHOD", "max"),
        ("TEST.NUM_ENSEMBLE_VIEWS", 1, "DATA.TEST_CROP_SIZE", 40, "TEST.DATASET", "ssv2"),
    ],
)
def test_the_scores_are_those_of_the_test(trained, videos, overrides):
    cfg = read_checkpoint(trained, None, overrides)[0]
    clips = scores_of_the_test(cfg, trained)[:2]
    expected = clips.amax(1) if "max" in overrides else clips.mean(1)
    predictor = Predictor(cfg, trained)
    found = torch.stack([predictor.scores(video) for video in videos[:2]])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert (found[0] - found[1]).abs().max() > 1e-3


def test_a_run_is_predicted_with_from_anywhere_and_what_cannot_be_read_is_reported(
    multigrid_run, trained, videos, names, predict, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    options = ("--checkpoint", multigrid_run, "--output", "new/scores.csv")
    nowhere = ("DATA.PATH_TO_DATA_DIR", "relative/folder")
    status, out, err = predict(*options, videos[0], "no/such.mp4", *nowhere)
    assert status == 1
    assert err.splitlines() == [
        f"Using the checkpoint {trained}",
        "no/such.mp4 cannot be opened: No such file or directory",
    ]
    header, row, unread = csv.reader(Path("new/scores.csv").read_text().splitlines())
    assert header == ["video", "prediction", "probability", *names]
    assert row[1] == max(zip(map(float, row[3:]), names, strict=True))[1]
    assert unread == ["no/such.mp4"]
    assert f"{100 * float(row[2]):5.1f} %  {row[1]}" in out


def test_a_video_of_which_a_part_decodes_and_those_of_few_frames_are_named(
    trained, predict, tmp_path
):
    part = break_frame(write_video(tmp_path / "part.mp4", noise(50)), 40)
    one = write_video(tmp_path / "one.mp4", noise(1))
    slow = write_video(tmp_path / "slow.mp4", noise(4), fps=1)
    status, _, err = predict("--checkpoint", trained, "--top", 1, part, one, slow)
    assert status == 0
    first, second, third = err.splitlines()
    assert first.startswith(f"warning: {part} cannot be decoded completely: 1 of 50 frames")
    assert second.startswith(f"warning: {one} has only one frame")
    assert third.startswith(f"warning: {slow} shows a frame for 1 s")


def test_clips_that_cannot_be_read_are_left_out_of_the_scores(trained, tmp_path):
    """Frames in the middle of a folder are damaged, so three of its four clips can be read."""
    for number, frame in enumerate(noise(64)):
        name = tmp_path / f"{number:02d}.jpg"
        assert cv2.imwrite(str(name), frame)
        if 26 <= number < 30:
            name.write_bytes(name.read_bytes()[:200])
    cfg = read_checkpoint(trained, None, ("TEST.NUM_ENSEMBLE_VIEWS", 4))[0]
    predictor = Predictor(cfg, trained)
    clips = predictor.clips(str(tmp_path))
    assert 0 < len(clips) < 4
    expected = predictor(clips).double().mean(0)
    torch.testing.assert_close(predictor.scores(str(tmp_path)), expected, atol=1e-6, rtol=0)


def test_weights_alone_need_their_recipe(trained, videos, predict, tmp_path):
    weights, recipe = tmp_path / "weights.pyth", tmp_path / "recipe.yaml"
    torch.save(checkpoints.load(trained).model_state, weights)
    recipe.write_text(checkpoints.load(trained).cfg)
    status, _, err = predict("--checkpoint", weights, videos[0])
    assert status == 2
    assert "give their recipe: --cfg FILE" in err
    found = predict("--checkpoint", weights, "--cfg", recipe, "--json", videos[0])
    expected = predict("--checkpoint", trained, "--json", videos[0])
    [row], [same] = (json.loads(out) for _, out, _ in (found, expected))
    assert len(row["classes"]) == 5
    assert [c["number"] for c in row["classes"]] == [c["number"] for c in same["classes"]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--checkpoint", "garbage.pyth"), "cannot be read"),
        (("--checkpoint", "other"), "NO_SUCH is not a config key (the config in"),
        (("--checkpoint", "TRAINED", "--classes", "few.txt"), "2 names, but the model has 8"),
    ],
)
def test_what_is_wrong_is_said(trained, videos, predict, tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    checkpoints.save(Path("other"), made(cfg="NO_SUCH: 1"))
    Path("garbage.pyth").write_text("no checkpoint")
    Path("few.txt").write_text("a\nb\n")
    given = [trained if option == "TRAINED" else option for option in options]
    status, out, err = predict(*given, videos[0])
    assert (status, out) == (2, "")
    assert said in err


def test_a_model_is_loaded_by_its_folder(multigrid_run, videos, names):
    model = slowfast_patches.load_model(multigrid_run)
    assert not model.training
    assert model.class_names == tuple(names)
    clips = model.clips(videos[0])
    assert (clips.shape, clips.dtype) == ((2, 3, 8, 32, 32), torch.uint8)
    with torch.no_grad():
        scores = model(clips)
    torch.testing.assert_close(scores.mean(0).double(), model.scores(videos[0]))


def test_a_video_is_scanned_once_and_again_if_it_has_changed(trained, tmp_path):
    path = write_video(tmp_path / "a.mp4", noise(20))
    predictor = Predictor(
        read_checkpoint(trained, None, ("TEST.NUM_ENSEMBLE_VIEWS", 1))[0], trained
    )
    with mock.patch.object(predictors, "scan", wraps=predictors.scan) as scan:
        predictor.scores(str(path))
        predictor.warnings(str(path))
        assert scan.call_count == 1
        write_video(path, noise(1))
        assert "has only one frame" in predictor.warnings(str(path))[0]


def test_damage_inside_pictures_is_a_warning_after_reading(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(scanning, "FULLY_DECODED", 0)
    made = {"gop": 20, "options": {"bf": "0", "x264-params": "scenecut=0"}}
    path = write_video(tmp_path / "a.mp4", noise(20, 160, 120), **made)
    with av.open(str(path)) as file:
        packet = [packet for packet in file.demux(video=0) if packet.size][10]
    content = bytearray(path.read_bytes())
    middle = packet.pos + packet.size // 2
    content[middle : middle + 40] = b"\x55" * 40
    path.write_bytes(content)
    predictor = Predictor(read_checkpoint(trained, None, ())[0], trained)
    assert predictor.warnings(str(path)) == []
    predictor.scores(str(path))
    (text,) = predictor.warnings(str(path))
    assert text.startswith("is damaged: ")
    write_video(path, noise(20))
    assert predictor.warnings(str(path)) == []


def test_each_list_is_opened_once_before_a_training(multigrid_run):
    log = (multigrid_run / "train.log").read_text().split(" iteration 1/")[0]
    counts = {split: log.count(f"INFO {split}: ") for split in ("train", "val", "test")}
    assert counts == {"train": 1, "val": 1, "test": 1}
