"""Registries of models, data sets, tasks and augmentations, and what else extras add."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slowfast_patches import extras, patching, registry, seams
from slowfast_patches.registry import (
    AUGMENTATIONS,
    DATASETS,
    MODELS,
    TASKS,
    Registry,
    register_augmentation,
    register_dataset,
    register_model,
    register_task,
    task_name,
)
from slowfast_patches.specs import DatasetSpec, ModelSpec, TaskSpec
from slowfast_patches.utils.errors import UserError


@pytest.fixture
def names(monkeypatch) -> Registry[int]:
    """A registry, whose built-in entry is registered at the first look-up."""
    made = Registry[int]("number")
    monkeypatch.setattr(registry, "register_role", lambda *given: None)
    monkeypatch.setattr(
        registry, "import_built_in", lambda: made.entries.setdefault("built_in", 1) and None
    )
    return made


@pytest.fixture
def _restored(monkeypatch) -> None:
    """Forget what a test registers."""
    registry.import_built_in()
    for each in (MODELS, DATASETS, TASKS, AUGMENTATIONS):
        monkeypatch.setattr(each, "entries", dict(each.entries))
    monkeypatch.setattr(registry, "register_role", lambda *given: None)


# One registry.


def test_a_look_up_finds_the_entries_of_the_package_too(names):
    assert names["built_in"] == 1
    names.entries.clear()
    assert list(names) == ["built_in"]
    names.add("mine", 2)
    assert list(names) == ["built_in", "mine"]
    assert len(names) == 2
    assert names.find("mine", "KEY") == 2


def test_a_name_that_is_not_registered_is_refused_with_those_that_are(names):
    names.add("mine", 2)
    said = r"^KEY is 'other', but the registered numbers are (built_in, mine|mine, built_in)\. Do"
    with pytest.raises(UserError, match=said):
        names.find("other", "KEY", " Do this.")


@pytest.mark.parametrize("name", ["a", "_", "A9", "two_words", "a.b-c"])
def test_names_of_letters_digits_and_some_signs_are_valid(names, name):
    names.add(name, 3)
    assert names[name] == 3


@pytest.mark.parametrize("name", ["", "9a", "-a", "a b", "a/b", "taken"])
def test_a_name_that_is_taken_or_has_other_signs_is_refused(names, name):
    names.add("taken", 3)
    with pytest.raises(UserError, match=rf"^'{name}' cannot be the name of a new number"):
        names.add(name, 4)
    assert names.entries == {"taken": 3}


def test_errors_can_name_the_role_of_what_is_registered(monkeypatch):
    roles = list[Any]()
    monkeypatch.setattr(registry, "register_role", lambda *given: roles.append(given))
    Registry[int]("number").add("mine", 3)
    assert roles == [("number", "mine", 3)]


def test_the_modules_of_the_package_and_the_extras_are_imported_once(monkeypatch):
    imported = list[str]()
    monkeypatch.setattr(registry, "import_module", imported.append)
    monkeypatch.setattr(registry, "import_extras", lambda: imported.append("extras"))
    registry.import_built_in.cache_clear()
    registry.import_built_in()
    registry.import_built_in()
    assert imported == [*registry.BUILT_IN, "extras"]


# What is registered.


@pytest.mark.usefixtures("_restored")
def test_a_registered_class_builds_the_model_or_the_task_and_stays_as_it_is():
    spec = ModelSpec(pathways=2)
    assert register_model("plain_net")(dict) is dict
    assert register_model("wide_net", spec)(list) is list
    assert (MODELS["plain_net"].build, MODELS["plain_net"].pathways) == (dict, 1)
    assert (MODELS["wide_net"].build, MODELS["wide_net"].pathways) == (list, 2)
    assert spec.build is None, "the spec of the user stays as it is"
    assert register_task("a_task")(dict) is dict
    assert TASKS["a_task"].build is dict


@pytest.mark.usefixtures("_restored")
def test_a_task_is_selected_by_its_name_unless_it_names_another_key():
    register_task("a_task")(dict)
    register_task("another", TaskSpec(metrics=("map",)))(dict)
    register_task("switched", TaskSpec(switch=("TRAIN.ENABLE", "on")))(dict)
    assert TASKS["a_task"].switch == ("DATA.TASK", "a_task")
    assert TASKS["another"].switch == ("DATA.TASK", "another")
    assert TASKS["another"].metrics == ("map",)
    assert TASKS["switched"].switch == ("TRAIN.ENABLE", "on")


@pytest.mark.usefixtures("_restored")
def test_a_data_set_has_a_name_in_lower_case():
    spec = DatasetSpec(segments=True)
    register_dataset("My_Data", spec)
    assert DATASETS["my_data"] is spec


@pytest.mark.usefixtures("_restored")
def test_an_augmentation_is_a_function_of_a_clip_and_a_generator():
    def shake(clip: Any, generator: Any, strength: int = 1) -> Any:
        return clip

    assert register_augmentation("shake")(shake) is shake
    assert AUGMENTATIONS["shake"] is shake
    for number, wrong in enumerate((lambda clip: clip, lambda a, b, c: a, 3)):
        with pytest.raises(UserError, match=rf"^the augmentation 'wrong{number}' must be a func"):
            register_augmentation(f"wrong{number}")(wrong)
        assert f"wrong{number}" not in AUGMENTATIONS


@pytest.mark.parametrize(
    ("values", "selected"),
    [
        ({"DATA.MULTI_LABEL": False}, "single"),
        ({"DATA.MULTI_LABEL": True}, "several"),
        ({"DATA.MULTI_LABEL": True, "BOXES": True}, "boxes"),
        ({"DATA.MULTI_LABEL": False, "DATA.TASK": "mine"}, "mine"),
        ({"DATA.MULTI_LABEL": True, "BOXES": True, "DATA.TASK": "mine"}, "mine"),
    ],
)
def test_the_key_of_a_task_precedes_those_of_extras_and_of_labels(monkeypatch, values, selected):
    """Whatever the order in which the tasks are registered."""
    switches = {
        "single": ("DATA.MULTI_LABEL", False),
        "several": ("DATA.MULTI_LABEL", True),
        "boxes": ("BOXES", True),
        "mine": ("DATA.TASK", "mine"),
    }
    specs = {name: TaskSpec(switch=switch) for name, switch in switches.items()}
    given = {"DATA.TASK": "", "BOXES": False, **values}
    for order in (list(specs), list(reversed(specs))):
        monkeypatch.setattr(TASKS, "entries", {name: specs[name] for name in order})
        assert task_name(given) == selected


# Properties.


def test_a_model_has_one_or_two_pathways_of_rgb():
    assert ModelSpec().input_channels == [3]
    assert ModelSpec(pathways=2).input_channels == [3, 3]
    for number in (0, 3):
        with pytest.raises(UserError, match=f"^pathways is {number}, but a model has 1 or 2"):
            ModelSpec(pathways=number)


def test_a_data_set_has_lists_unless_it_is_built_without_reading_one():
    def function(*_: Any) -> Any:
        return None

    assert DatasetSpec().has_lists is True
    assert DatasetSpec(read=function).has_lists is True
    assert DatasetSpec(build=function, read=function).has_lists is True
    assert DatasetSpec(build=function).has_lists is False


def test_the_defaults_of_a_task_are_what_it_determines_and_the_first_valid_values():
    spec = TaskSpec(derived={"A": "a"}, required={"B": (("b", "c"), "a reason")})
    assert spec.defaults == {"A": "a", "B": "b"}


# Seams.


def test_all_extras_are_imported_once(monkeypatch):
    imported = list[str]()
    monkeypatch.setattr(seams, "import_module", imported.append)
    seams.import_extras.cache_clear()
    seams.import_extras()
    seams.import_extras()
    folders = [path for folder in extras.__path__ for path in sorted(Path(folder).iterdir())]
    found = [path.name for path in folders if (path / "__init__.py").exists()]
    assert imported == [f"slowfast_patches.extras.{name}" for name in found]


def test_a_hook_of_an_extra_is_used_where_its_keys_say_so(monkeypatch):
    monkeypatch.setattr(seams, "HOOKS", [])
    seams.register_hook(lambda recipe: recipe == "a", "first", "check")
    seams.register_hook(lambda recipe: True, "second")
    assert [(hook.build, hook.check) for hook in seams.used_hooks("a")] == [
        ("first", "check"),
        ("second", None),
    ]
    assert [hook.build for hook in seams.used_hooks("b")] == ["second"]


def test_what_extras_register_is_kept_in_its_order(monkeypatch):
    for name in ("WEIGHT_NAMES", "CLIP_TRANSFORMS", "BATCH_TRANSFORMS"):
        monkeypatch.setattr(seams, name, [])
    for number in (1, 2):
        seams.register_weight_names(f"rename{number}", f"problems{number}")
        seams.register_clip_transform(f"KEY{number}", "build", "check")
        seams.register_batch_transform(f"KEY{number}", "build", "divided")
    assert seams.WEIGHT_NAMES == [("rename1", "problems1"), ("rename2", "problems2")]
    clips, batches = seams.CLIP_TRANSFORMS, seams.BATCH_TRANSFORMS
    assert clips == [seams.ClipTransform(f"KEY{n}", "build", "check") for n in (1, 2)]
    assert batches == [seams.BatchTransform(f"KEY{n}", "build", "divided") for n in (1, 2)]


def test_advice_about_the_length_is_that_of_all_extras(monkeypatch):
    monkeypatch.setattr(seams, "LENGTH_ADVICE", [])
    monkeypatch.setattr(seams, "import_extras", lambda: seams.register_length_advice("run it"))
    assert seams.length_advice() == ("run it",)


def test_keys_of_a_section_whose_values_are_mappings_are_known(monkeypatch):
    @dataclass
    class Keys:
        config: Mapping[str, int]
        name: str

    monkeypatch.setattr(seams, "SECTIONS", {})
    monkeypatch.setattr(seams, "MAPPINGS", set())
    seams.register_section("MINE", Keys, scores=True)
    assert {"MINE": seams.Section(Keys, scores=True)} == seams.SECTIONS
    assert {"MINE.CONFIG"} == seams.MAPPINGS
    with pytest.raises(AssertionError):
        seams.register_section("MINE", Keys)


# The layer that pyslowfast imports.


@pytest.mark.parametrize("installed", [None, "a spec"])
def test_a_layer_is_provided_unless_detectron2_is_there(monkeypatch, installed):
    name = "detectron2.layers"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setattr(patching.importlib.util, "find_spec", lambda name: installed)
    patching.provide_roi_align(dict)
    assert not hasattr(sys.modules[name], "ROIAlign"), "it is imported already"
    monkeypatch.delitem(sys.modules, name)
    patching.provide_roi_align(dict)
    assert (name in sys.modules) == (installed is None)


def test_extras_may_provide_the_layer_first(monkeypatch):
    calls = list[Any]()
    monkeypatch.setattr(patching, "import_extras", lambda: calls.append("extras"))
    monkeypatch.setattr(patching, "provide_roi_align", calls.append)
    patching.apply()
    first, layer = calls
    assert first == "extras"
    with pytest.raises(UserError, match="Install detectron2"):
        layer(7, mode="a")
