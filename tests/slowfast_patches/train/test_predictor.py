"""A predictor of a small trained model: its scores, clips and warnings, and what it refuses."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from slowfast_patches.config.yaml_text import dump_yaml, parse_yaml
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from slowfast_patches.registry import MODELS, TASKS
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train.predict import Predictor, load_model, read_checkpoint
from slowfast_patches.train.predict import predictor as predictors
from slowfast_patches.utils.errors import UserError
from tests.slowfast_patches.datasets.made_videos import break_frame, grey, noise, write_video


@pytest.fixture(scope="module")
def trained(small_run) -> Path:
    path = checkpoints.last_checkpoint(small_run)
    assert path is not None
    return path


@pytest.fixture(scope="module")
def stored(trained) -> dict[str, Any]:
    """The fields of the checkpoint."""
    return vars(checkpoints.load(trained))


@pytest.fixture(scope="module")
def video(tiny_data) -> str:
    """The first video of the test split."""
    line = (tiny_data / "test.csv").read_text().splitlines()[0]
    return str(tiny_data / line.split()[0])


@pytest.fixture(scope="module")
def predictor(small_run) -> Predictor:
    return load_model(small_run)


@pytest.fixture
def built(trained) -> Callable[..., Predictor]:
    """Return `built("KEY", value, ...)`, which returns a predictor with some keys replaced."""
    return lambda *keys: Predictor(read_checkpoint(trained, None, keys)[0], trained)


@pytest.fixture
def saved(stored, tmp_path) -> Callable[..., Path]:
    """Return `saved(field=value, ...)`: the file of a checkpoint with some fields replaced."""

    def save(**fields: object) -> Path:
        path = tmp_path / "changed.pyth"
        torch.save(stored | fields, path)
        return path

    return save


def hub_folder(folder: Path, stored: dict[str, Any], **config: object) -> Path:
    """Write the folder of a published model, whose config.json has the given entries."""
    folder.mkdir()
    save_file(stored["model_state"], folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# Scores and clips.


def test_a_video_has_the_scores_of_the_test(predictor, small_run, tiny_data):
    names = (tiny_data / "classes.txt").read_text().splitlines()
    assert predictor.class_names == tuple(names)
    assert not any(module.training for module in predictor.modules())
    rows = list(csv.DictReader((small_run / "predictions.csv").open()))
    for row in rows[:2]:
        scores = predictor.scores(row["video"])
        assert (scores.shape, scores.dtype) == ((8,), torch.float64)
        assert not scores.requires_grad
        assert scores.tolist() == pytest.approx([float(row[name]) for name in names], abs=2e-6)
    assert rows[0]["video"] != rows[1]["video"]


def test_the_clips_of_a_video_are_views_by_crops_of_pixels_in_channels(predictor, built, video):
    clips = predictor.clips(video)
    assert (clips.shape, clips.dtype) == ((2, 3, 8, 32, 32), torch.uint8)
    assert predictor(clips).shape == (2, 8)
    torch.testing.assert_close(predictor(clips).sum(1), torch.ones(2))
    keys = ("TEST.NUM_ENSEMBLE_VIEWS", 1, "TEST.NUM_SPATIAL_CROPS", 3, "DATA.TEST_CROP_SIZE", 40)
    assert built(*keys).clips(video).shape == (3, 3, 8, 40, 40)


@pytest.mark.parametrize(("ensemble", "combined"), [("sum", torch.mean), ("max", torch.amax)])
@pytest.mark.parametrize(
    ("size", "gpus", "passes"), [(1, 0, [1, 1, 1]), (4, 2, [2, 1]), (8, 1, [3])]
)
def test_views_are_scored_in_batches_and_combined(
    monkeypatch, built, video, ensemble, combined, size, gpus, passes
):
    """The batch size is that of all GPUs. On this machine, there is none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    views = ("TEST.NUM_ENSEMBLE_VIEWS", 3, "TEST.BATCH_SIZE", size, "NUM_GPUS", gpus)
    predictor = built(*views, "DATA.ENSEMBLE_METHOD", ensemble)
    clips = predictor.clips(video)
    with torch.no_grad():
        expected = combined(predictor(clips).double(), 0)
    found = list[int]()
    predictor._model.register_forward_pre_hook(lambda _, given: found.append(len(given[0][0])))
    torch.testing.assert_close(predictor.scores(video), expected, atol=1e-6, rtol=0)
    assert found == passes


def test_a_batch_of_the_loader_has_the_scores_of_its_clips_mirrored_where_told(predictor, video):
    clips = predictor.clips(video)
    batch = {"clips": clips.permute(0, 2, 3, 4, 1), "flips": torch.tensor([False, True])}
    scores = predictor.score(batch)
    assert not scores.requires_grad
    expected = torch.stack([clips[0], clips[1].flip(-1)])
    with torch.no_grad():
        torch.testing.assert_close(scores, predictor(expected), atol=1e-6, rtol=0)


def test_strides_count_frames_if_those_of_the_data_set_do(built, tmp_path):
    """A frame is lighter by 9 than the one before, and the video shows 60 frames in a second. The
    clip spans 8 frames of 30 in a second, which are 16 frames of the video."""
    path = str(write_video(tmp_path / "a.mp4", grey(28), fps=60))
    one_view = ("TEST.NUM_ENSEMBLE_VIEWS", 1, "DATA.NUM_FRAMES", 4)
    for dataset, frames in (("kinetics", 15), ("charades", 7)):
        clips = built(*one_view, "TEST.DATASET", dataset).clips(path)
        levels = clips[0].float().mean((0, 2, 3))
        assert float(levels[-1] - levels[0]) == pytest.approx(9 * frames, abs=6)


def test_a_video_without_a_readable_clip_has_no_scores(predictor, tmp_path):
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(UnreadableVideoError, match="cannot be"):
        predictor.scores(str(tmp_path / "text.mp4"))
    folder = tmp_path / "frames"
    folder.mkdir()
    for number, frame in enumerate(noise(20)):
        name = folder / f"{number:02d}.jpg"
        assert cv2.imwrite(str(name), np.ascontiguousarray(frame))
        name.write_bytes(name.read_bytes()[:300])
    with pytest.raises(UnreadableVideoError, match=r"\d\d\.jpg"):
        predictor.clips(str(folder))


def test_if_no_clip_can_be_read_the_first_reason_is_told(predictor, video, monkeypatch):
    class NoClips:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __len__(self) -> int:
            return 2

        def __getitems__(self, numbers: range) -> dict[str, Any]:
            failures = [(video, f"has no frame {number}") for number in numbers]
            return {"clips": torch.zeros(0, 8, 32, 32, 3), "failures": failures}

    monkeypatch.setattr(predictors, "ClipDataset", NoClips)
    with pytest.raises(UnreadableVideoError, match=r"^has no frame 0$"):
        predictor.clips(video)


# Warnings.


def test_a_video_of_which_a_part_decodes_is_warned_about(predictor, tmp_path):
    path = break_frame(write_video(tmp_path / "part.mp4", noise(40)), 30)
    (text,) = predictor.warnings(str(path))
    assert text.startswith("cannot be decoded completely")
    assert text.endswith(". Only the readable part is used")
    assert predictor.warnings(str(write_video(tmp_path / "whole.mp4", noise(20)))) == []
    (text,) = predictor.warnings(str(write_video(tmp_path / "one.mp4", noise(1))))
    assert text.startswith("has only one frame")


def test_each_kind_of_warning_in_its_order(predictor, tmp_path, monkeypatch):
    path = str(write_video(tmp_path / "a.mp4", noise(20)))
    scanned = predictors.scan(path)
    found = dict[str, str]()
    monkeypatch.setattr(predictors, "damage_found", found.get)

    def warnings(**facts: str) -> list[str]:
        monkeypatch.setattr(predictors, "scan", lambda _: replace(scanned, **facts))
        predictor._last = None
        return predictor.warnings(path)

    assert warnings() == []
    assert warnings(timing="is slow") == ["is slow"]
    found[path] = "a bad block"
    damaged = "is damaged: a bad block. Its scores may come from wrong pictures"
    assert warnings() == [damaged]
    assert warnings(timing="is slow") == [damaged, "is slow"]
    part = "lacks frames. Only the readable part is used"
    assert warnings(damage="lacks frames", timing="is slow") == [part, "is slow"]


def test_a_video_is_scanned_once_until_it_changes(predictor, tmp_path, monkeypatch):
    first, second = (write_video(tmp_path / f"{n}.mp4", noise(20)) for n in "ab")
    scanned, forgotten, scan = list[str](), list[str](), predictors.scan
    monkeypatch.setattr(predictors, "scan", lambda path: scanned.append(path) or scan(path))
    monkeypatch.setattr(predictors, "forget_damage", forgotten.append)
    for path in (first, first, second, second, first):
        predictor.clips(str(path))
        predictor.warnings(str(path))
    assert scanned == forgotten == [str(path) for path in (first, second, first)]
    write_video(first, noise(1))
    assert predictor.warnings(str(first))[0].startswith("has only one frame")
    assert scanned[3:] == [str(first)]


# Recipes and names.


def test_a_checkpoint_tells_its_recipe_and_names_and_keys_may_be_replaced(
    trained, saved, tiny_data
):
    names = tuple((tiny_data / "classes.txt").read_text().splitlines())
    recipe, found = read_checkpoint(trained)
    assert (recipe.model.arch, recipe.test.num_ensemble_views, found) == ("c2d", 2, names)
    recipe, found = read_checkpoint(trained, None, ("TEST.NUM_ENSEMBLE_VIEWS", 5))
    assert (recipe.test.num_ensemble_views, found) == (5, names)
    recipe, found = read_checkpoint(trained, None, ("MODEL.NUM_CLASSES", 7))
    assert (recipe.model.num_classes, found) == (7, None)
    path = saved(cfg="NO_SUCH: 7")
    with pytest.raises(UserError, match=rf"NO_SUCH .*the config in {path}"):
        read_checkpoint(path)


def test_a_model_of_several_machines_predicts_on_one(saved, stored):
    """Each of three machines had 5 clips, which its two GPUs could not have shared."""
    keys = parse_yaml(stored["cfg"]) | {"NUM_SHARDS": 3, "NUM_GPUS": 2}
    keys["TRAIN"] |= {"BATCH_SIZE": 5}
    assert read_checkpoint(saved(cfg=dump_yaml(keys)))[0].num_shards == 3


def test_weights_alone_need_a_recipe_and_have_its_scores(predictor, stored, video, tmp_path):
    weights, recipe = tmp_path / "weights.pyth", tmp_path / "recipe.yaml"
    torch.save(stored["model_state"], weights)
    recipe.write_text(stored["cfg"])
    with pytest.raises(UserError, match="only weights, give their recipe: --cfg FILE") as failed:
        load_model(weights)
    assert str(failed.value.__cause__) in str(failed.value)
    found = load_model(weights, recipe, ("TEST.BATCH_SIZE", 2))
    assert found.recipe.test.batch_size == 2
    assert found.class_names == predictor.class_names, "those of the data"
    assert found.scores(video).equal(predictor.scores(video))


def test_an_exported_program_is_no_checkpoint(tmp_path):
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/archive_format", "pt2")
    with pytest.raises(UserError, match="a program that --export has written"):
        read_checkpoint(path)


def test_a_given_recipe_is_used_instead_of_the_stored_one(trained, stored, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(stored["cfg"].replace("LOG_PERIOD: 1", "LOG_PERIOD: 17"))
    assert read_checkpoint(trained, recipe)[0].log_period == 17
    recipe.write_text(stored["cfg"].replace("ENSEMBLE_METHOD: sum", "ENSEMBLE_METHOD: max"))
    with pytest.raises(UserError, match=r"ENSEMBLE_METHOD sum there, max here"):
        load_model(trained, recipe)


def test_keys_that_contradict_the_stored_recipe_are_refused(trained):
    with pytest.raises(UserError, match=r"not possible with DATA\.MULTI_LABEL False"):
        read_checkpoint(trained, None, ("MODEL.LOSS_FUNC", "bce_logit"))


def test_weights_that_lack_a_tensor_of_the_model_are_refused(saved, stored):
    state = dict(stored["model_state"])
    lost = next(name for name in state if name.endswith("weight"))
    del state[lost]
    with pytest.raises(UserError, match=rf"is not from this model: {lost}: not in the file"):
        load_model(saved(model_state=state))


def test_a_task_without_scores_of_clips_is_refused_before_the_model_is_built(saved, monkeypatch):
    def refuse(recipe, path) -> None:
        raise UserError(f"refused {path.name}")

    monkeypatch.setattr(predictors, "require_clip_scores", refuse)
    monkeypatch.setattr(predictors, "build_model", None)
    with pytest.raises(UserError, match=r"^refused changed\.pyth"):
        load_model(saved())


def test_a_task_whose_network_needs_more_than_clips_needs_its_targets(monkeypatch, trained):
    recipe = read_checkpoint(trained)[0]
    predictors.require_clip_scores(recipe, trained)
    spec = replace(TASKS["single_label"], scores_clips=False)
    monkeypatch.setitem(TASKS.entries, "single_label", spec)
    with pytest.raises(UserError, match=r"single_label, which does not score whole videos\. Use"):
        predictors.require_clip_scores(recipe, trained)


@pytest.mark.parametrize(
    ("gpus", "available", "on_gpu"),
    [(0, True, False), (1, True, True), (2, True, True), (1, False, False)],
)
def test_a_model_is_on_a_gpu_if_there_is_one_and_the_recipe_has_some(
    monkeypatch, trained, gpus, available, on_gpu
):
    class AskedError(Exception): ...

    def with_precision(recipe: Any, on_gpu: bool) -> None:
        raise AskedError(on_gpu)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(predictors, "with_precision", with_precision)
    recipe = read_checkpoint(trained)[0].replaced({"NUM_GPUS": gpus})
    with pytest.raises(AskedError) as asked:
        Predictor(recipe, trained)
    assert asked.value.args == (on_gpu,)


# Published folders.


def test_a_published_folder_predicts_as_the_run(predictor, stored, video, tmp_path):
    recipe = parse_yaml(stored["cfg"]) | {"REMOVED": {"KEY": 1}}
    folder = hub_folder(tmp_path / "hub", stored, recipe=recipe, class_names=list("abcdefgh"))
    published = load_model(folder)
    assert published.class_names == tuple("abcdefgh")
    assert published.scores(video).equal(predictor.scores(video))
    none = hub_folder(tmp_path / "none", stored, recipe=recipe, class_names=None)
    assert read_checkpoint(none / "model.safetensors")[1] is None


@pytest.mark.parametrize(
    "content", ["", "[1]", '{"class_names": []}', '{"recipe": 7, "class_names": null}']
)
def test_a_folder_without_a_recipe_of_this_package_is_refused(stored, tmp_path, content):
    folder = hub_folder(tmp_path / "hub", stored)
    (folder / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config.json has no recipe of this package"):
        read_checkpoint(folder / "model.safetensors")


def test_a_recipe_may_depend_on_where_the_folder_is(stored, tmp_path, monkeypatch):
    recipe = parse_yaml(stored["cfg"])
    folder = hub_folder(tmp_path / "hub", stored, recipe=recipe, class_names=None)

    def of_folder(found, where):
        assert (found.model.arch, where) == ("c2d", folder)
        return found.replaced({"LOG_PERIOD": 23})

    spec = replace(MODELS["c2d"], of_folder=of_folder)
    monkeypatch.setattr(MODELS, "entries", {**MODELS.entries, "c2d": spec})
    assert read_checkpoint(folder / "model.safetensors")[0].log_period == 23
