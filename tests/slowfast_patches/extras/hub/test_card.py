"""The card of a folder for the Hub, from made-up checkpoints, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.extras.hub import folder as folders
from slowfast_patches.extras.hub.card import (
    card,
    checkpoint_state,
    facts_of,
    run_of,
    start_argument,
)
from slowfast_patches.extras.hub.folder import write_hub_folder
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train.checkpoint import Checkpoint
from slowfast_patches.utils.errors import UserError
from tests.slowfast_patches.train.made_checkpoint import made

START = "TRAIN.CHECKPOINT_FILE_PATH"


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load_recipe(None, ["MODEL.NUM_CLASSES", 8, "DATA.NUM_FRAMES", 16])


def state_of(recipe: Recipe, **values: Any) -> Checkpoint:
    return made(**{"cfg": recipe.text, "training": "it", "changes": [], **values})


def facts(recipe: Recipe, state: Checkpoint | None, run: Path | None = None) -> dict[str, str]:
    return facts_of(nn.Linear(999, 4), recipe, state, run, None)


def test_weights_from_elsewhere_have_facts_of_the_model_alone(recipe):
    found = facts(recipe, None)
    assert found == {
        "model": "MODEL.ARCH slowfast, 4,000 parameters",
        "input": "clips of 16 frames of 256² pixels",
        "classes": "8",
        "training data": "(fill in)",
        "accuracy": "(fill in)",
    }
    assert facts_of(nn.Linear(1, 1), recipe, None, None, ["go", "stay"])["classes"] == "go, stay"


def test_facts_of_a_training_by_hand(recipe):
    state = state_of(recipe, iteration=12345, epoch=6.25, num_videos=1240, optimizer_state={})
    found = facts(recipe, state)
    assert found["training videos"] == "1,240"
    assert found["trained for"] == "12,345 iterations, 6.2 epochs"
    assert found["start weights"] == "random"
    names = ("weights", "changes in the training", "changed since the training", "date")
    assert not any(name in found for name in names)
    changed = state_of(recipe, changes=["after iteration 3: a", "after iteration 6: b"])
    said = facts(recipe, changed)["changes in the training"]
    assert said == "after iteration 3: a; after iteration 6: b"
    assert "averaged" in facts(recipe, state_of(recipe, averaged=True))["weights"]


@pytest.mark.parametrize(
    ("keys", "fact", "said", "argument"),
    [
        ({}, None, "random", ""),
        ({START: "/private/my start.pyth"}, None, "my start.pyth", "'my start.pyth'"),
        ({START: "https://some.org/a/b.pyth"}, None, "https://some.org/a/b.pyth", None),
        ({START: "/private/b.pyth"}, {"content": "0a1b"}, "b.pyth (SHA-256 0a1b…)", None),
        ({START: "/private/b.pyth"}, {"file": "b.pyth"}, "b.pyth", None),
        ({"MODEL.ARCH": "hf", "HF.MODEL": "some-org/model"}, None, "model", ""),
        ({"MODEL.ARCH": "hf", "HF.MODEL": "vivit"}, None, "random", ""),
        ({"MODEL.ARCH": "slow", "HF.MODEL": "some-org/model"}, None, "random", ""),
    ],
)
def test_start_weights_have_a_name_but_no_private_path(recipe, keys, fact, said, argument):
    state = state_of(recipe, identity={"keys": keys, "facts": {"weights": fact}})
    assert facts(recipe, state)["start weights"] == said
    expected = said.split()[0] if argument is None else argument
    assert start_argument(state) == (f" {START} {expected}" if expected else "")


def test_without_a_training_no_start_weights_are_named():
    assert start_argument(None) == ""


def test_keys_that_change_the_scores_are_said_and_the_place_of_the_model_is_not(recipe):
    other = recipe.replaced({"DATA.SAMPLING_RATE": 7, "TEST.CHECKPOINT_FILE_PATH": "x"})
    found = facts(other, state_of(recipe))
    assert found["changed since the training"] == "DATA.SAMPLING_RATE 8 there, 7 here"
    assert "changed since the training" not in facts(recipe, state_of(recipe))


# The accuracy.


def accuracy(recipe: Recipe, state: Checkpoint, run: Path | None = None) -> tuple[str, str]:
    ((name, value),) = (
        pair for pair in facts(recipe, state, run).items() if pair[0].startswith("accuracy")
    )
    return name, value


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A training that has reached 55 % after 8 iterations, in its test."""
    result = {"training": "it", "iterations": 8, "top1": 55.0, "top5": 66.0}
    result |= {"date": "2026-01-02T03:04:05", "config": {"TEST": {"ENABLE": True}}}
    (tmp_path / "result.json").write_text(json.dumps(result))
    return tmp_path


def change_result(run: Path, **values: object) -> None:
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | values))


def test_the_accuracy_is_that_of_the_same_iteration(recipe, run):
    evaluations = [{"iteration": n, "top1": 10.0 * n, "top5": 90.0} for n in (4, 6)]
    last, middle, none = (
        state_of(recipe, iteration=n, evaluations=evaluations, optimizer_state={})
        for n in (8, 6, 5)
    )
    assert accuracy(recipe, last, run) == ("accuracy in the test", "top-1 55.00, top-5 66.00")
    at = "accuracy in the validation after iteration"
    assert accuracy(recipe, middle, run) == (f"{at} 6", "top-1 60.00, top-5 90.00")
    assert accuracy(recipe, none, run) == (f"{at} 5", "not measured (fill in)")
    assert facts(recipe, last, run)["date"] == "2026-01-02"
    change_result(run, config={"TEST": {"ENABLE": False}})
    assert accuracy(recipe, last, run)[0] == f"{at} 8"
    change_result(run, training="another")
    assert accuracy(recipe, last, run) == (f"{at} 8", "not measured (fill in)")
    assert "date" not in facts(recipe, last, run)


def test_the_best_weights_have_the_best_accuracy_and_averages_their_own(recipe, run):
    best = {"iteration": 3, "top1": 91.0, "top5": 99.0, "top1_ema": 97.0}
    plain = state_of(recipe, iteration=3, best=best, optimizer_state=None, averaged=False)
    at = "accuracy in the validation after iteration 3"
    assert accuracy(recipe, plain, run) == (at, "top-1 91.00, top-5 99.00")
    averaged = state_of(recipe, iteration=3, best=best, optimizer_state=None, averaged=True)
    assert accuracy(recipe, averaged, run) == (at, "top-1 97.00")


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_damaged_result_is_named(recipe, run, content):
    (run / "result.json").write_text(content)
    with pytest.raises(UserError, match=r"result\.json is not a result"):
        facts(recipe, state_of(recipe), run)


def test_a_run_is_where_the_last_checkpoint_is_of_the_same_training(tmp_path, recipe):
    first = checkpoints.save(tmp_path, state_of(recipe, iteration=3))
    state = checkpoint_state(first)
    assert run_of(first, state) == tmp_path
    assert run_of(first, None) is None
    checkpoints.save(tmp_path, state_of(recipe, iteration=6, training="another"))
    assert run_of(first, state) is None
    assert run_of(tmp_path / "moved" / "x" / "y.pyth", state) is None


def test_a_file_of_plain_weights_has_no_state(tmp_path):
    torch.save({"x": torch.zeros(1)}, tmp_path / "weights.pyth")
    assert checkpoint_state(tmp_path / "weights.pyth") is None


# The text.


def test_the_card_shows_how_to_load_the_folder_and_how_to_train_it(recipe):
    text = card(recipe, {"model": "x", "accuracy": "y"}, " KEY value", has_pipeline=False)
    assert "| | |\n|---|---|\n| model | x |\n| accuracy | y |\n" in text
    assert "library_name: slowfast-multigrid\n" in text
    assert 'load_model("PATH")' in text
    assert "pipeline(" not in text
    assert "DATA.PATH_TO_DATA_DIR DATA OUTPUT_DIR RUN KEY value\n```" in text


def test_with_a_pipeline_the_card_shows_the_sampling(recipe):
    text = card(recipe, {}, "", has_pipeline=True)
    assert "library_name: transformers\n" in text
    assert "num_frames=16, frame_sampling_rate=8)" in text
    assert "load_model" not in text


# The folder.


class TinyPredictor(nn.Module):
    """A model of one layer, with the attributes that a folder is written from."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.class_names = ("go", "stay")
        self.model = nn.Linear(2, 2)


@pytest.fixture
def predictor(recipe: Recipe) -> TinyPredictor:
    return TinyPredictor(recipe.replaced({"OUTPUT_DIR": "/private"}))


def test_the_folder_has_the_weights_the_recipe_and_the_metrics_of_the_run(
    predictor, tmp_path, recipe
):
    from safetensors.torch import load_file

    path = checkpoints.save(tmp_path / "run", state_of(recipe))
    (tmp_path / "run" / "metrics.jsonl").write_text("a line\n")
    folder = tmp_path / "hub"
    write_hub_folder(predictor, path, folder)
    names = {"README.md", "config.json", "metrics.jsonl", "model.safetensors", "recipe.yaml"}
    assert {file.name for file in folder.iterdir()} == names
    assert (folder / "metrics.jsonl").read_text() == "a line\n"
    assert "/private" not in (folder / "recipe.yaml").read_text()
    config = json.loads((folder / "config.json").read_text())
    assert config["class_names"] == ["go", "stay"]
    assert config["recipe"]["MODEL"]["NUM_CLASSES"] == 8
    state = load_file(folder / "model.safetensors")
    assert torch.equal(state["weight"], predictor.model.weight)
    assert "3 iterations" in (folder / "README.md").read_text()
    (folder / "README.md").write_text("filled in")
    write_hub_folder(predictor, path, folder)
    assert (folder / "README.md").read_text() == "filled in"


def test_without_a_run_there_are_no_metrics(predictor, tmp_path):
    torch.save({"x": torch.zeros(1)}, tmp_path / "weights.pyth")
    write_hub_folder(predictor, tmp_path / "weights.pyth", tmp_path / "hub")
    assert not (tmp_path / "hub" / "metrics.jsonl").exists()
    assert "| accuracy | (fill in) |" in (tmp_path / "hub" / "README.md").read_text()


@pytest.mark.parametrize("name", ["notes.txt", "config.json"])
def test_a_folder_with_other_files_is_refused_and_left_alone(predictor, tmp_path, name):
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / name).write_text("{}")
    with pytest.raises(UserError, match=r"has other files|of another model"):
        write_hub_folder(predictor, tmp_path / "none.pyth", tmp_path / "hub")
    assert [file.name for file in (tmp_path / "hub").iterdir()] == [name]


def test_an_empty_folder_and_one_of_this_package_may_be_written(tmp_path):
    folders._check_own(tmp_path / "none")
    folders._check_own(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match="has other files, which would be mixed"):
        folders._check_own(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="has other files, which would be mixed"):
        folders._check_own(tmp_path)
    (tmp_path / "config.json").write_text('{"recipe": {}}')
    folders._check_own(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be used"):
        folders._check_own(tmp_path)


@pytest.mark.parametrize("name", ["README.md", "metrics.jsonl", "preprocessor_config.json"])
def test_each_file_of_another_model_is_named(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(UserError, match=rf"has {name} of another model"):
        folders._check_folder(tmp_path, "0a1b")
    (tmp_path / "config.json").write_text('{"weights": "0a1b"}')
    folders._check_folder(tmp_path, "0a1b")
    (tmp_path / "config.json").write_text('{"weights": "ffff"}')
    with pytest.raises(UserError, match="of another model"):
        folders._check_folder(tmp_path, "0a1b")
