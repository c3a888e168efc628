"""Tests of detection runs: training, test, and equal losses on one process and two."""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
import torch.distributed as dist

from multigrid import clip_numbers, convert_batchnorm, form_groups
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.loader import build_dataset, training_loader
from slowfast_patches.launch.device import with_precision
from slowfast_patches.models.build_model import build_model
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.train.parallel import in_parallel
from slowfast_patches.train.step import Stepper
from tests.conftest import Folder, one_block
from tests.slowfast_patches.extras.detection.ava_lists import ACTIONS, write_moving_boxes

pytestmark = pytest.mark.slow("trains for seconds")

KEYS = (
    *("DETECTION.ENABLE", True, "TRAIN.DATASET", "ava", "TEST.DATASET", "ava"),
    *("MODEL.LOSS_FUNC", "bce", "MODEL.HEAD_ACT", "sigmoid", "MODEL.NUM_CLASSES", len(ACTIONS)),
    *("AVA.LABEL_MAP_FILE", "ava_action_list.pbtxt", "AVA.EXCLUSION_FILE", ""),
    *("AVA.TEST_PREDICT_BOX_LISTS", [], "AVA.FULL_TEST_ON_VAL", True, "DATA.TARGET_FPS", 10),
    *("RESNET.SPATIAL_STRIDES", [[1, 1], [2, 2], [2, 2], [1, 1]], "TEST.NUM_ENSEMBLE_VIEWS", 1),
)


@pytest.fixture(autouse=True, scope="module")
def _one_block() -> Iterator[None]:
    with one_block():
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("detection") / "ava"
    write_moving_boxes(folder)
    return folder


@pytest.fixture(scope="module")
def finished(train, data) -> Folder:
    """Return the folder of a finished run with both cycles."""
    options = ("TEST.SAVE_RESULTS_PATH", "boxes.csv", "MODEL.DROPOUT_RATE", 0.0)
    keys = (*KEYS, "DATA.PATH_TO_DATA_DIR", data, *options)
    return Folder(train(data.with_name("run"), *keys))


def test_a_run_with_both_cycles_is_judged_by_the_map_of_boxes(finished):
    result, records = finished.result, finished.metrics()
    assert (result["metric"], result["videos"]) == ("map", 8)  # two key frames of each video
    assert 0 < result["map"] <= 100
    assert all(0 < e["map"] <= 100 for e in result["evaluations"])
    assert records[0]["loss"] == pytest.approx(0.693, abs=0.03)  # log 2, of logits near 0
    assert sum(record.get("resampled", 0) for record in records) > 0
    table = (finished.path / "result_classes.csv").read_text().splitlines()
    assert table[0] == "class,videos,average_precision"
    assert len(table) == 1 + len(ACTIONS)


def test_predictions_of_boxes_are_the_tests(finished, data, load_program, capsys):
    tool = load_program("tools/predict.py")
    targets = ("--targets", data / "ava_val_v2.2.csv", "--json", "--top", 6)
    given = ("--checkpoint", finished.path, *targets, data / "val" / "val0001.mp4")
    assert tool.main(list(map(str, given))) == 0
    found = json.loads(capsys.readouterr().out)
    with (finished.path / "boxes.csv").open() as file:
        tested = {row["video"]: row for row in csv.DictReader(file)}
    assert len(found) == 6
    for row in found:
        expected = tested[f"val0001 {row['second']} {tuple(row['box'])}"]
        for of_class in row["classes"]:
            probability = float(expected[of_class["name"]])
            assert of_class["probability"] == pytest.approx(probability, rel=1e-3)


def train_rank(rank: int, recipe: Recipe, size: int, folder: Path) -> None:
    """Train a few steps of each shape as a run does, and save the losses and the weights."""
    if size > 1:
        dist.init_process_group("gloo")
    recipe = with_precision(recipe, False)
    dataset = build_dataset(recipe, "train")
    schedule = schedule_of(recipe, len(dataset))
    torch.manual_seed(0)
    model = convert_batchnorm(build_model(recipe))
    form_groups(schedule)
    device = torch.device("cpu")
    stepper = Stepper(recipe, model, device)
    if size > 1:
        stepper.network = in_parallel(stepper.network, device)
    found = list[tuple[float, int]]()
    batches = training_loader(recipe, dataset, schedule, 0, rank, size)
    for step, batch in zip(schedule.steps(0), batches, strict=True):
        outcome = stepper(step, batch, clip_numbers(step, rank, size))
        found.append((float(outcome.loss), len(outcome.labels)))
    torch.save((found, stepper.model.state_dict()), folder / f"{rank}.pt")


@pytest.fixture
def trained(run_ranks, tmp_path) -> Callable[..., Any]:
    """`trained(recipe, size)`: the (loss, boxes) of each step and the weights, by rank."""

    def on_ranks(recipe: Recipe, size: int) -> list[tuple[list[tuple[float, int]], Any]]:
        run_ranks(size, train_rank, recipe, size, tmp_path)
        return [torch.load(tmp_path / f"{rank}.pt") for rank in range(size)]

    return on_ranks


def test_losses_are_those_of_one_process_however_boxes_fall_to_others(
    trained, tiny_config, tmp_path, data
):
    """The run has dropout masks per clip, and micro-batches."""
    more = ("MULTIGRID.LONG_CYCLE_FACTORS", [[0.5, 0.71], [1, 1]], "MULTIGRID.EPOCH_FACTOR", 1.0)
    more += ("SOLVER.BASE_LR", 1e-4, "MULTIGRID.BN_BASE_SIZE", 2, "DATA.PATH_TO_DATA_DIR", data)
    whole = tiny_config(tmp_path / "run", *KEYS, *more)
    [(alone, weights)] = trained(whole, 1)
    expected = [loss for loss, _ in alone]
    [(in_parts, _)] = trained(whole.replaced({"SOLVER.ACCUMULATION_STEPS": 2}), 1)
    assert [loss for loss, _ in in_parts] == pytest.approx(expected, rel=1e-3)
    (first, first_weights), (second, _) = trained(whole, 2)
    boxes = [(one, other) for (_, one), (_, other) in zip(first, second, strict=True)]
    assert any(one != other for one, other in boxes), "ranks have as many boxes"
    assert [sum(counts) for counts in boxes] == [count for _, count in alone]
    means = [fmean(loss for loss, _ in step) for step in zip(first, second, strict=True)]
    assert means == pytest.approx(expected, rel=1e-3)
    name = "head.projection.weight"
    torch.testing.assert_close(first_weights[name], weights[name], atol=1e-4, rtol=1e-2)
