"""result.json, and the test on several views, whose scores are made up."""

from __future__ import annotations

import csv
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.plan.run_identity import Identity
from slowfast_patches.tasks.scores import Evaluation
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train import multi_view_test as tests
from slowfast_patches.train import result as results
from slowfast_patches.train.record import result_tables
from slowfast_patches.train.result import write_result
from slowfast_patches.train.trainer import Progress
from slowfast_patches.utils.clock import Clock
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.errors import UserError
from tests.slowfast_patches.train.conftest import ALONE
from tests.slowfast_patches.train.made_checkpoint import made
from tests.slowfast_patches.train.test_trainer import plan

SECOND = World(1, 2, torch.device("cpu"))
IDENTITY = Identity({"KEY": 1}, {"fact": {"a": 2}})
OVERLAP: Any = SimpleNamespace(remark="1 of the 2 videos of val are also in train")


@pytest.fixture
def recipe(tmp_path) -> Any:
    return default_recipe().replaced({"OUTPUT_DIR": str(tmp_path)})


# result.json.


@pytest.fixture
def trainer(monkeypatch) -> Any:
    """A trainer that has finished 7 of 8 iterations."""
    monkeypatch.setattr(results, "flops_per_clip", lambda recipe: lambda f, c: float(f * c * c))
    clock = Clock()
    clock.load({"testing": 4.56789})
    entry = {"iteration": 7, "epoch": 3.5, "seconds": 9.0, "top1": 12.345678, "loss": 2.0}
    progress = Progress(
        iteration=7, training="a", seconds={"training": 1.23456, "testing": 0.0}, clocks=["a clock"]
    )
    progress.evaluations = [{**entry, "iteration": 4, "top1": 99.0}, entry]
    return SimpleNamespace(schedule=plan(), clock=clock, progress=progress)


def written(folder, name: str = "result.json") -> dict[str, Any]:
    text = (folder / name).read_text()
    assert text.endswith("}\n")
    return json.loads(text)


def test_the_result_of_a_training_by_hand(recipe, trainer, tmp_path):
    """7 iterations of 8 clips of 16 videos are 3.5 epochs. A clip of 4 × 16² costs 1024."""
    write_result(recipe, World(0, 2, torch.device("cpu")), IDENTITY, trainer, {}, ())
    result = written(tmp_path)
    expected = {"iterations": 7, "baseline_iterations": 8, "epochs": 3.5, "clips": 56}
    expected |= {"flops": 56 * 1024.0, "global_batch": 8, "world_size": 2, "finished": True}
    expected |= {"seconds": {"training": 1.235, "testing": 4.568}, "metric": "top1"}
    expected |= {"training": "a", "clocks": ["a clock"], "top1": 12.3457, "loss": 2.0}
    expected |= {"evaluations": trainer.progress.evaluations, "seed": recipe.rng_seed}
    assert {name: result[name] for name in expected} == expected
    assert result["identity"] == IDENTITY.to_json()
    absent = {"planned_iterations", "best", "changes", "overlaps", "iteration", "epoch"}
    assert not absent & result.keys()


def test_what_only_some_results_have(recipe, trainer, tmp_path):
    trainer.schedule = plan(videos=24)
    trainer.progress.ended = True
    trainer.progress.best = {"top1": 99.0}
    trainer.progress.changes = ["a change"]
    write_result(recipe, ALONE, IDENTITY, trainer, {"top1": 50.00004, "videos": 3}, [OVERLAP])
    result = written(tmp_path)
    expected = {
        "planned_iterations": 12,
        "epochs": 2.3333,
        "best": {"top1": 99.0},
        "changes": ["a change"],
    }
    expected |= {"overlaps": [OVERLAP.remark], "top1": 50.0, "videos": 3}
    assert {name: result[name] for name in expected} == expected
    assert "loss" not in result, "the metrics are those of the test"
    assert not (tmp_path / "test.json").exists()


def test_a_result_of_iterations_of_one_phase_leaves_out_the_others(recipe, trainer, tmp_path):
    trainer.progress.iteration = 6
    write_result(recipe, ALONE, IDENTITY, trainer, {}, ())
    assert {n: written(tmp_path)[n] for n in ("iterations", "clips", "epochs")} == {
        "iterations": 6,
        "clips": 48,
        "epochs": 3.0,
    }


def test_a_test_alone_has_a_result_without_a_training(recipe, tmp_path):
    write_result(recipe, ALONE, IDENTITY, None, {"top1": 50.0}, ())
    result = written(tmp_path, "test.json")
    assert (result["top1"], result["finished"], result["metric"]) == (50.0, True, "top1")
    assert not {"iterations", "seconds", "evaluations", "training"} & result.keys()
    assert not (tmp_path / "result.json").exists()


# The test on several views.


def evaluation(top1: float, names: list[str] | None = None) -> Evaluation:
    """Two videos are scored, and one cannot be read."""
    scores = torch.tensor([[0.75, 0.25], [0.0, 0.0], [0.5, 0.5]])
    scored = torch.tensor([True, False, True])
    metrics = {"top1": top1, "videos": 3, "unreadable": 1}
    return Evaluation(metrics, scores, torch.tensor([0, 1, 1]), scored, names=names)


@pytest.fixture
def evaluated(monkeypatch) -> list[Any]:
    """Return the arguments of each evaluation. Each one has a top-1 accuracy that is 10 higher."""
    calls = list[Any]()

    def evaluate(*given: Any) -> Evaluation:
        calls.append(given)
        return evaluation(10.0 * len(calls))

    monkeypatch.setattr(tests, "evaluate", evaluate)
    monkeypatch.setattr(tests, "evaluation_bytes", lambda recipe, data, clips: clips)
    monkeypatch.setattr(tests, "limit_workers", lambda recipe, size: recipe)
    monkeypatch.setattr(tests, "is_tested_on_val", lambda recipe: False)
    monkeypatch.setattr(tests, "names_of_data", lambda recipe: ("cat", "dog"))
    monkeypatch.setattr(result_tables, "_plot_confusion", lambda *_: None)
    return calls


DATA: Any = SimpleNamespace(videos=[SimpleNamespace(path="a.mp4"), "b", SimpleNamespace(path="c")])


@pytest.mark.parametrize(
    ("size", "shards", "world", "clips"), [(8, 1, ALONE, 8), (8, 2, SECOND, 8), (1, 1, SECOND, 1)]
)
def test_models_of_a_training_are_tested_in_their_order(
    recipe, evaluated, caplog, size, shards, world, clips, tmp_path
):
    caplog.set_level("INFO")
    keys = {"TEST.BATCH_SIZE": size, "NUM_SHARDS": shards, "TEST.NUM_ENSEMBLE_VIEWS": 4}
    recipe = recipe.replaced(keys | {"TEST.NUM_SPATIAL_CROPS": 3})
    models = nn.ModuleList([nn.Identity(), nn.ReLU()])
    trainer: Any = SimpleNamespace(stepper=SimpleNamespace(models=models), stop="stop")
    found = tests.multi_view_test(recipe, world, trainer, [OVERLAP], DATA)
    assert found == {"top1": 10.0, "top1_ema": 20.0, "videos": 3, "unreadable": 1}
    assert [call[0] for call in evaluated] == list(models)
    assert [call[1:] for call in evaluated] == [(recipe, DATA, clips, world, "stop")] * 2
    said = "test on 4 views × 3 crops: top-1 10.00, top-1 (EMA) 20.00, without 1 of 3 videos"
    assert said in caplog.text
    assert caplog.text.rstrip().endswith(f"({OVERLAP.remark})")
    rows = tmp_path / "result_classes.csv"
    assert rows.exists() == world.is_main


def test_a_test_on_the_validation_list_says_so(recipe, evaluated, monkeypatch, caplog):
    caplog.set_level("INFO")
    trainer: Any = SimpleNamespace(
        stepper=SimpleNamespace(models=nn.ModuleList([nn.Identity()])), stop=None
    )
    tests.multi_view_test(recipe, ALONE, trainer, [], DATA)
    assert "test is val" not in caplog.text
    monkeypatch.setattr(tests, "is_tested_on_val", lambda recipe: True)
    tests.multi_view_test(recipe, ALONE, trainer, [OVERLAP], DATA)
    assert caplog.text.rstrip().endswith(f"(test is val; {OVERLAP.remark})")


def test_without_a_training_a_model_is_loaded_and_the_data_set_is_read(
    recipe, evaluated, monkeypatch
):
    monkeypatch.setattr(tests, "build_dataset", lambda recipe, split: (split, DATA)[1])
    monkeypatch.setattr(tests, "_load_model", lambda recipe, world: ("loaded", world))
    assert tests.multi_view_test(recipe, SECOND, None, [])["top1"] == 10.0
    ((model, _, dataset, _, _, stop),) = evaluated
    assert (model, dataset, stop) == (("loaded", SECOND), DATA, None)


@pytest.mark.parametrize(
    ("trained", "prefix", "table"), [(True, "", "result"), (False, "test_", "test")]
)
@pytest.mark.parametrize("own_names", [None, ["x", "y", "z"]])
def test_predictions_have_the_names_of_the_videos_and_only_scores_that_there_are(
    recipe, evaluated, tmp_path, caplog, trained, prefix, table, own_names
):
    caplog.set_level("INFO")
    recipe = recipe.replaced({"TEST.SAVE_RESULTS_PATH": "scores.csv"})
    tests._write_files(recipe, DATA, evaluation(1.0, own_names), trained=trained)
    with (tmp_path / f"{prefix}scores.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == ["video", "label", "prediction", "probability", "cat", "dog"]
    assert [row[0] for row in rows] == (own_names or ["a.mp4", "b", "c"])
    assert [row[1:4] for row in rows] == [["cat", "cat", "0.75"], [], ["dog", "cat", "0.5"]]
    assert (tmp_path / f"{table}_classes.csv").exists()
    assert caplog.messages == [f"Predictions written to {tmp_path}/{prefix}scores.csv."]


def test_without_a_name_no_predictions_are_written(recipe, evaluated, tmp_path):
    tests._write_files(recipe, DATA, evaluation(1.0), trained=True)
    assert [path.name for path in tmp_path.iterdir()] == ["result_classes.csv"]


def test_which_checkpoint_a_test_uses(recipe, tmp_path):
    with pytest.raises(UserError, match=rf"no model to test, because {tmp_path} has no checkpoint"):
        tests.tested_file(recipe)
    initial = recipe.replaced({"TRAIN.CHECKPOINT_FILE_PATH": "initial.pyth"})
    assert tests.tested_file(initial) == "initial.pyth"
    last = str(checkpoints.save(tmp_path, made()))
    assert tests.tested_file(recipe) == tests.tested_file(initial) == last
    given = initial.replaced({"TEST.CHECKPOINT_FILE_PATH": "given.pyth"})
    assert tests.tested_file(given) == "given.pyth"


@pytest.mark.parametrize("world", [ALONE, SECOND])
def test_the_main_process_loads_the_weights_for_all(recipe, monkeypatch, world):
    loaded = list[Any]()
    monkeypatch.setattr(tests, "build_model", lambda recipe: nn.Linear(2, 3))
    monkeypatch.setattr(tests, "tested_file", lambda recipe: "tested.pyth")
    monkeypatch.setattr(
        tests, "load_weights", lambda model, path, complete: loaded.append((path, complete))
    )
    sent = {"weight": torch.full((3, 2), 7.0), "bias": torch.ones(3)}
    monkeypatch.setattr(tests, "broadcast_from_main", lambda make: sent)
    model = tests._load_model(recipe, world)
    assert loaded == [("tested.pyth", True)] * world.is_main
    assert model.weight.tolist() == [[7.0, 7.0]] * 3


# Tables.


def test_names_that_do_not_fit_are_left_out_with_a_warning(recipe, monkeypatch, caplog):
    monkeypatch.setattr(result_tables, "class_names", lambda recipe: ("cat", "dog"))
    assert result_tables.names_of_data(recipe) == ("cat", "dog")
    assert caplog.text == ""

    def fail(recipe: Any) -> None:
        raise UserError("two names for three classes")

    monkeypatch.setattr(result_tables, "class_names", fail)
    assert result_tables.names_of_data(recipe) is None
    assert "Class indices are shown instead of class names: two names for three" in caplog.text


def test_tables_make_their_folder(tmp_path):
    path = tmp_path / "a" / "b" / "scores.csv"
    result_tables.write_predictions(path, ["a"], [None], ["cat"])
    assert path.read_text() == "video,prediction,probability,cat\na\n"
    result_tables.write_predictions(path, ["a"], [None], None)
    assert path.read_text() == "video,prediction,probability\na\n", "no classes are known"


def test_tables_with_fewer_scores_than_names_are_refused(tmp_path):
    """No video or class may lose its row in silence."""
    with pytest.raises(ValueError, match="shorter"):
        result_tables.write_predictions(tmp_path / "a.csv", ["a", "b"], [None], ["cat"])
    scores, labels = torch.tensor([[0.6, 0.4]]), torch.tensor([[1, 0]])
    found = Evaluation({}, scores, labels, torch.tensor([True]), precisions=[100.0])
    with pytest.raises(ValueError, match="shorter"):
        result_tables.write_tables(tmp_path, "a", found)
    assert list(tmp_path.iterdir()) == []


def test_a_class_without_videos_has_no_accuracy(tmp_path, monkeypatch):
    drawn = list[Any]()
    monkeypatch.setattr(result_tables, "_plot_confusion", lambda *given: drawn.append(given))
    scores = torch.tensor([[0.6, 0.4, 0.0], [0.3, 0.7, 0.0], [0.4, 0.6, 0.0]])
    found = Evaluation({}, scores, torch.tensor([0, 0, 1]), torch.tensor([True] * 3))
    result_tables.write_tables(tmp_path, "a", found)
    assert (tmp_path / "a_classes.csv").read_text().splitlines() == [
        "class,videos,accuracy,0,1,2",
        *("0,2,50.00,1,1,0", "1,1,100.00,0,1,0", "2,0,,0,0,0"),
    ]
    ((path, counts, shown),) = drawn
    assert path == tmp_path / "a_confusion.png"
    assert counts.tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert shown == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("classes", "side", "numbers"),
    [(2, 6.0, True), (20, 8.0, True), (21, 8.3, False), (99, 14, False)],
)
def test_a_confusion_matrix_is_drawn_in_percent_of_its_rows(
    monkeypatch, tmp_path, classes, side, numbers
):
    drawn = list[Any]()

    class Display:
        def __init__(self, percents, display_labels) -> None:
            drawn.append((percents, display_labels))

        def plot(self, **options) -> None:
            drawn.append(options)

    said = dict[str, str]()
    axes = SimpleNamespace(set=said.update, grid=lambda visible: drawn.append(visible))
    metrics = SimpleNamespace(ConfusionMatrixDisplay=Display)
    monkeypatch.setitem(sys.modules, "sklearn.metrics", metrics)  # takes seconds to import
    monkeypatch.setattr(
        result_tables, "new_figure", lambda **size: drawn.append(size) or ("figure", [axes])
    )
    monkeypatch.setattr(result_tables, "save_figure", lambda *given: drawn.append(given))
    counts = torch.zeros(classes, classes, dtype=torch.int64)
    counts[0, 0], counts[0, 1], counts[1, 1] = 3, 1, 1
    names = ["a$b", *map(str, range(1, classes))]
    result_tables._plot_confusion(tmp_path / "a.png", counts, names)
    size, (percents, labels), options, grid, saved = drawn
    assert (size["rows"], size["width"], size["height"]) == pytest.approx((1, side + 1, side))
    assert percents[0].tolist() == [75.0, 25.0, *[0.0] * (classes - 2)]
    assert percents[1].tolist() == [0.0, 100.0, *[0.0] * (classes - 2)]
    assert not percents[2:].any()
    assert labels == [r"a\$b", *names[1:]]
    assert options["include_values"] == numbers
    assert (said["xlabel"], said["ylabel"]) == ("prediction", "label")
    assert grid is False
    assert saved == ("figure", tmp_path / "a.png")
