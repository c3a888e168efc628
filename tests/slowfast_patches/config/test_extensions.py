"""Modules of the user: what they register, and the messages about failed imports."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from multigrid import Shape
from slowfast_patches.config import imports, load_recipe, parse_recipe
from slowfast_patches.config.check import check_recipe
from slowfast_patches.config.imports import import_modules
from slowfast_patches.config.metrics import metric_names
from slowfast_patches.config.yaml_text import parse_yaml
from slowfast_patches.datasets.lists.dataset_lists import load_with_classes
from slowfast_patches.datasets.loader import build_dataset
from slowfast_patches.experiments.runs import run_command
from slowfast_patches.experiments.variants import make_variant
from slowfast_patches.models.build_model import build_on_meta
from slowfast_patches.plan.flops import check_shapes
from slowfast_patches.registry import (
    MODELS,
    DatasetSpec,
    TaskSpec,
    register_dataset,
    register_model,
    register_task,
)
from slowfast_patches.tasks import task_of
from slowfast_patches.tasks.task import MultiLabel, Task


@pytest.fixture(autouse=True)
def _restored(own_folder: Path) -> Iterator[None]:
    """Restore the registries, the search path and the modules after each test."""
    yield
    sys.modules.pop("mine", None)


def write(text: str) -> None:
    Path("mine.py").write_text(f"from slowfast_patches.registry import *\n{text}\n")


# Modules.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_package", "IMPORTS mine: .*No module named 'no_such_pac.*PYTHONPATH"),
        ("raise SystemExit(3)", r"SystemExit: 3 \(.*mine.py, line 2\)"),
        ("ModelSpec(pathways=3)", "pathways is 3, but a model has 1 or 2 pathways"),
        ("register_augmentation('x')(lambda clip: clip)", "must be a function of a clip and a ran"),
        ("register_augmentation('x')(3)", "must be a function of a clip and a random generator"),
        ("register_model('i3d')(int)", "IMPORTS mine: .*'i3d' cannot be the name of a new model"),
    ],
)
def test_a_module_that_cannot_be_imported_is_a_mistake_of_the_user(text: str, said: str):
    write(text)
    with pytest.raises(ValueError, match=said):
        load_recipe(None, ["IMPORTS", "mine"])


def test_modules_reach_the_runs_of_an_experiment_and_the_stored_recipe():
    write("import torch; register_model('net')(lambda recipe: torch.nn.Linear(3, 8))")
    pairs = ("IMPORTS", "mine", "MODEL.ARCH", "net", "DATA.NUM_TRAIN_VIDEOS", "64")
    variant = make_variant("a", Path("configs/Demo/SLOWFAST_DEMO.yaml"), pairs)
    command = run_command(variant, 0, Path("out"), Path("run_net.py"))
    assert command[command.index("IMPORTS") + 1] == "mine"
    assert parse_yaml(variant.recipe.text, "the test")["IMPORTS"] == ["mine"]
    assert parse_recipe(variant.recipe.text, "the test").model.spec == MODELS["net"]
    del sys.modules["mine"]
    with pytest.raises(ValueError, match=r"the test needs the module mine.* add --import mine"):
        parse_recipe(variant.recipe.text, "the test")


def test_a_module_that_does_not_exist_has_no_line_to_blame():
    said = "IMPORTS gone: ModuleNotFoundError: No module named 'gone'. Correct the module."
    with pytest.raises(ValueError) as caught:
        load_recipe(None, ["IMPORTS", "gone"])
    assert str(caught.value).startswith(said)


def test_the_names_of_the_package_are_registered_before_those_of_the_user(monkeypatch):
    calls = list[str]()
    monkeypatch.setattr(imports, "import_built_in", lambda: calls.append("the package"))
    monkeypatch.setattr(imports, "import_module", calls.append)
    import_modules(["mine", "others"])
    assert calls == ["the package", "mine", "others"]


def test_whoever_sets_the_modules_trusts_them_also_in_a_stored_recipe():
    write("register_model('net')(dict)")
    text = load_recipe(None, ["IMPORTS", "mine", "MODEL.ARCH", "net"]).text
    del sys.modules["mine"]
    MODELS.entries.pop("net")
    assert parse_recipe(text, "the test", ["IMPORTS", "mine"]).model.spec == MODELS["net"]
    assert parse_recipe("{}", "a recipe without modules").imports == ()


def test_the_current_folder_is_searched_last_and_only_for_modules_of_the_user(monkeypatch):
    before = [path for path in sys.path if path != str(Path.cwd())]
    monkeypatch.setattr(sys, "path", list(before))
    import_modules(())
    assert sys.path == before
    write("")
    import_modules(["mine"])
    import_modules(["mine"])
    assert sys.path == [*before, str(Path.cwd())]


def test_a_builder_that_returns_no_module_is_told():
    write("register_model('net')(lambda recipe: None)")
    recipe = load_recipe(None, ["IMPORTS", "mine", "MODEL.ARCH", "net"])
    with pytest.raises(ValueError, match=r"must return a torch\.nn\.Module, not a NoneType"):
        build_on_meta(recipe)


# What they register.


class Logits(nn.Module):
    """Model that returns a given number of logits."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(3, classes)

    def forward(self, pathways):
        return self.head(pathways[0].mean((2, 3, 4)))


class Clips:
    """Data set of one clip."""

    videos = (0,)
    __len__ = videos.__len__
    __getitem__ = videos.__getitem__

    def __init__(self, recipe: object, split: str) -> None:
        pass


def test_a_registered_data_set_of_several_labels_is_never_scored_with_softmax():
    register_dataset("tags", DatasetSpec(task="multi_label", build=Clips))
    tags = ("TRAIN.DATASET", "tags")
    recipe = load_with_classes(None, tags)
    check_recipe(recipe)
    assert recipe.model.head_act == "sigmoid"
    assert isinstance(task_of(recipe), MultiLabel)
    with pytest.raises(ValueError, match="HEAD_ACT softmax is not possible"):
        check_recipe(load_with_classes(None, [*tags, "MODEL.HEAD_ACT", "softmax"]))
    other = load_with_classes(None, [*tags, "DATA.MULTI_LABEL", False])
    with pytest.raises(ValueError, match="the videos of train have several labels"):
        build_dataset(other, "train")


def test_a_registered_task_is_selected_by_its_data_set():
    @register_task("ranked", TaskSpec("a rank", metrics=("spearman",)))
    class Ranked(Task):
        pass

    register_dataset("judges", DatasetSpec(task="ranked", build=Clips))
    recipe = load_with_classes(None, ("TRAIN.DATASET", "judges"))
    assert recipe.data.task == recipe.task == "ranked"
    assert metric_names(recipe) == ("spearman",)
    assert isinstance(task_of(recipe), Ranked)


def test_a_registered_model_is_checked_at_the_shapes_of_its_schedule():
    register_model("net")(lambda recipe: Logits(5))
    overrides = ("MODEL.NUM_CLASSES", 5, "MODEL.ARCH", "net")
    check_shapes(load_recipe(None, overrides), [Shape(1, 4, 32)])
    with pytest.raises(ValueError, match=r"net must return logits.* \(1, 5\) instead of \(1, 6\)"):
        check_shapes(load_recipe(None, [*overrides, "MODEL.NUM_CLASSES", 6]), [Shape(1, 4, 32)])
