"""Facts of a run by hand: which splits, iterations, code and weights, and how differences read."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

from multigrid import Cycles, Shape, SteppedRate, make_schedule
from slowfast_patches.config.recipe import default_recipe, values_by_key
from slowfast_patches.datasets.lists.dataset_lists import read_list
from slowfast_patches.models.layers.dropout import ClipDropout
from slowfast_patches.plan import facts
from slowfast_patches.plan.facts import (
    code_digest,
    division_of,
    file_digest,
    reading_key,
    schedule_facts,
    splits_of,
    weights_fact,
)
from slowfast_patches.plan.run_identity import (
    DATA,
    RESULT,
    SCORES,
    Identity,
    clock_text,
    differences_between,
    effective_keys,
    remarks_between,
    without_weights,
)


def recipe(**values):
    return default_recipe().replaced({k.replace("__", "."): v for k, v in values.items()})


def digest_of(*contents: bytes) -> str:
    return hashlib.sha256(b"".join(contents)).hexdigest()[:16]


@pytest.mark.parametrize(
    ("train", "test", "splits"),
    [
        (True, True, ["train", "val", "test"]),
        (True, False, ["train", "val"]),
        (False, True, ["test"]),
    ],
)
def test_a_run_reads_the_splits_of_what_it_does(train, test, splits):
    assert splits_of(recipe(TRAIN__ENABLE=train, TEST__ENABLE=test)) == splits


def test_videos_are_read_again_only_if_a_key_about_them_changes():
    same = reading_key(recipe(), "train", True)
    assert reading_key(recipe(SOLVER__BASE_LR=0.7, RNG_SEED=4), "train", True) == same
    assert reading_key(recipe(), "val", True) != same
    assert reading_key(recipe(), "train", False) != same
    for change in (
        {"DATA__PATH_PREFIX": "x"},
        {"TRAIN__DATASET": "ssv2"},
        {"TEST__DATASET": "ssv2"},
        {"MODEL__NUM_CLASSES": 3},
        {"IMPORTS": ("x",)},
    ):
        assert reading_key(recipe(**change), "train", True) != same, change


def test_a_schedule_is_known_by_its_phases_and_by_five_rates_of_each():
    """9 clips in 8 iterations of one clip and one of half a rate."""
    schedule = make_schedule(
        Shape(1, 4, 16), 10, SteppedRate((1.0,), (0.5,)), cycles=None, bn_group_size=None
    )
    found = schedule_facts(schedule)
    (phase,) = found["schedule"]["phases"]
    assert phase == "iterations 0 to 10: 1×4×16², BN groups of None"
    numbers = [int(rate.rpartition(" ")[2]) for rate in found["rates"]["rates"]]
    assert numbers == [0, 2, 4, 6, 9]
    assert found["rates"]["rates"][0] == "0.5 in iteration 0"


def test_each_phase_has_its_rates():
    policy = SteppedRate((4.0, 6.0), (0.1, 0.01))
    schedule = make_schedule(Shape(4, 4, 16), 40, policy, Cycles(((0.5, 0.5), (1.0, 1.0))))
    rates = schedule_facts(schedule)["rates"]["rates"]
    numbers = {int(rate.rpartition(" ")[2]) for rate in rates}
    for phase in schedule.phases:
        assert {phase.start, phase.stop - 1} <= numbers
        assert len([n for n in numbers if phase.start <= n < phase.stop]) <= 5


def test_code_is_known_by_the_files_of_a_module_or_a_package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "of_one_file.py").write_bytes(b"a = 1\n")
    package = tmp_path / "of_a_package"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py", "other.py"):
        (package / name).write_bytes(name.encode())
    (package / "data.txt").touch()
    assert code_digest("of_one_file") == digest_of(digest_of(b"a = 1\n").encode())
    names = (b"__init__.py", b"inner/__init__.py", b"other.py")
    assert code_digest("of_a_package") == digest_of(*(digest_of(n).encode() for n in names))
    assert code_digest("no_such_package_here") == "unknown"
    assert code_digest("sys") == "unknown"


def test_a_file_is_read_again_after_a_change(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"a")
    assert file_digest(path) == digest_of(b"a")
    path.write_bytes(b"bb")
    assert file_digest(path) == digest_of(b"bb")


def test_weights_are_those_that_are_trained_or_else_those_that_are_tested(tmp_path):
    for name in ("train.pyth", "test.pyth"):
        (tmp_path / name).write_bytes(name.encode())
    train, test = str(tmp_path / "train.pyth"), str(tmp_path / "test.pyth")
    files = {"TRAIN__CHECKPOINT_FILE_PATH": train, "TEST__CHECKPOINT_FILE_PATH": test}

    def name_of(**values):
        fact = weights_fact(recipe(**values))
        return fact and fact.get("file")

    assert name_of(**files) == "train.pyth"
    assert name_of(TRAIN__ENABLE=False, **files) == "test.pyth"
    assert name_of(TRAIN__ENABLE=False, TRAIN__CHECKPOINT_FILE_PATH=train) == "train.pyth"
    assert name_of(TRAIN__CHECKPOINT_FILE_PATH=str(tmp_path / "gone")) is None
    assert weights_fact(recipe(TRAIN__CHECKPOINT_FILE_PATH="https://example.org/a")) is None
    assert weights_fact(recipe(TEST__CHECKPOINT_FILE_PATH=test)) == {}
    whole = weights_fact(recipe(**files))
    assert whole == {"file": "train.pyth", "content": digest_of(b"train.pyth")}


@pytest.mark.parametrize(
    ("model", "draws"),
    [
        (nn.Dropout(0.5), True),
        (nn.Dropout(0.0), False),
        (nn.Dropout3d(0.1), True),
        (nn.Linear(1, 1), False),
        (ClipDropout(0.5, 1, 2), False),
    ],
)
def test_a_model_draws_for_a_micro_batch_if_it_has_dropout_of_its_own(model, draws):
    assert facts._draws_together(nn.Sequential(nn.ReLU(), model)) is draws


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_a_layer_of_another_kind_says_its_rate(rate):
    layer = nn.Identity()
    layer.drop_prob = rate
    assert facts._draws_together(nn.Sequential(layer)) is (rate > 0)


@pytest.mark.parametrize(
    ("config", "draws"),
    [
        ({"hidden_dropout_prob": 0.1}, True),
        ({"hidden_dropout_prob": 0.0, "drop_last": True, "rate": 0.5}, False),
        ({"drop_path_rate": 2.0}, True),
    ],
)
def test_the_config_of_a_model_says_its_rates(config, draws):
    model = nn.Sequential(nn.ReLU())
    model.config = SimpleNamespace(to_dict=lambda: config)
    assert facts._draws_together(model) is draws


def test_the_division_is_told_with_processes_and_micro_batches():
    found = division_of(recipe(NUM_GPUS=0, PROCESSES_PER_MACHINE=2, NUM_SHARDS=3))
    assert found == {"processes": 6, "micro-batches": 1}


class Index(list):
    """Record of three videos, one of which cannot be read."""

    unreadable: ClassVar[list[int]] = [1]
    content = "frames"
    times = "modified"


@pytest.mark.parametrize("clips", [True, False])
@pytest.mark.parametrize("is_given", [True, False])
def test_videos_are_looked_at_if_their_clips_are_asked_for(tmp_path, monkeypatch, clips, is_given):
    (tmp_path / "train.csv").write_text("a.mp4 0\n" * 3)
    own = recipe(DATA__PATH_TO_DATA_DIR=str(tmp_path))
    dataset = SimpleNamespace(videos=read_list(own, "train"), index=Index([0, 1, 2]))
    built = []
    monkeypatch.setattr(facts, "build_dataset", lambda *given: built.append(given) or dataset)
    found = facts.facts_of_split(own, "train", dataset if is_given else None, clips)
    assert built == ([(own, "train")] if clips and not is_given else [])
    assert found["facts"]["train_list"]["videos"] == 3
    assert found["facts"]["train_list"]["labels"] == digest_of(b"0\n" * 3)
    assert len(found["facts"]["train_list"]["names"]) == 16
    clip_fact = {"readable": 2, "content": "frames"}
    assert found["facts"].get("train_clips") == (clip_fact if clips else None)
    assert found["remarks"] == ({"train_times": "modified"} if clips else {})


def test_a_data_set_of_a_user_has_no_record_of_videos_and_a_list_may_be_elsewhere(tmp_path):
    own = recipe(DATA__PATH_TO_DATA_DIR=str(tmp_path))
    found = facts.facts_of_split(own, "train", SimpleNamespace(videos=[1, 2]), True)
    assert list(found["facts"]) == ["train_list"]
    nothing = {"facts": {}, "remarks": {}}
    assert facts.facts_of_split(own, "train", None, True) == nothing


# --- identities


def identity(keys=None, **given):
    return Identity(keys or {}, **{"facts": {}} | given)


def compared(there, here, name="train_list"):
    before, now = (identity(facts={name: fact}) for fact in (there, here))
    return differences_between(before, now, RESULT).get(name)


def test_differences_of_facts_are_told_in_words():
    counted = {"videos": 5, "labels": "a", "names": "b"}
    assert compared(counted, counted) is None
    assert (
        compared(counted, {"videos": 4, "labels": "c", "names": "d"})
        == "train_list: 5 videos there, 4 here (other labels, other names or another order)"
    )
    assert compared(counted, {**counted, "videos": 6}) == "train_list: 5 videos there, 6 here"
    clips = {"readable": 5, "content": "a"}
    assert (
        compared(clips, {**clips, "content": "b"}, "val_clips")
        == "val_clips: 5 readable videos there, 5 here (other sizes or frames)"
    )
    assert compared({"videos": 1}, {"videos": 1, "classes.txt": "x"}).endswith(
        "another classes.txt)"
    )
    assert (
        compared(
            {"processes": 2, "micro-batches": 1}, {"processes": 4, "micro-batches": 1}, "division"
        )
        == "division: processes 2 there, processes 4 here"
    )
    assert (
        compared({}, {"content": "x"}, "weights") == "weights: nothing else there, content x here"
    )


def test_long_facts_are_shortened_to_sixty_characters():
    there, here = {"rates": ["a" * 60]}, {"rates": ["b" * 61]}
    assert (
        compared(there, here, "rates") == f"rates: rates {'a' * 60} there, rates {'b' * 57}... here"
    )
    assert "rates x; y there" in compared({"rates": ["x", "y"]}, here, "rates")


def test_weights_of_another_name_are_the_same_and_paths_count_only_if_the_content_is_unknown():
    path = "TRAIN.CHECKPOINT_FILE_PATH"
    known = [
        identity({path: name}, facts={"weights": {"file": name, "content": "c"}})
        for name in ("a", "b")
    ]
    assert differences_between(*known, RESULT) == {}
    unknown = [identity({path: name}) for name in ("a", "b")]
    assert set(differences_between(*unknown, RESULT)) == {path}
    assert differences_between(unknown[0], identity(), RESULT) == {}
    bare = without_weights(known[0])
    assert (bare.keys, bare.facts) == ({}, {})


def test_a_purpose_has_its_keys_and_facts():
    there = identity({"SOLVER.BASE_LR": 1.0}, facts={"train_list": {"videos": 1}})
    here = identity({"SOLVER.BASE_LR": 2.0}, facts={"train_list": {"videos": 2}})
    assert set(differences_between(there, here, RESULT)) == {"SOLVER.BASE_LR", "train_list"}
    assert set(differences_between(there, here, DATA)) == {"train_list"}
    assert differences_between(there, here, SCORES) == {}
    for name in ("schedule", "rates", "division"):
        assert name not in DATA.facts
        assert name in RESULT.facts


def test_other_versions_and_times_are_remarks():
    there = identity(remarks={"versions": {"torch": "1", "av": "2", "old": "3"}, "val_times": "a"})
    here = identity(remarks={"versions": {"torch": "4", "av": "2"}, "val_times": "b", "n_times": 1})
    assert remarks_between(there, here) == [
        "other versions: torch 1 (now 4)",
        "videos of val that had other modification times, but the same frames",
    ]
    assert remarks_between(there, there) == []
    assert remarks_between(identity(), here) == []


def test_the_clock_is_the_gpu_or_the_cpu():
    timing = {"gpus": ["H9"], "processor": "Abacus", "cores": 4, "threads": 2, "processes": 3}
    assert clock_text(identity({"NUM_GPUS": 1}, timing=timing)).startswith("3 × H9")
    on_cpu = identity({"NUM_GPUS": 0}, timing=timing)
    assert clock_text(on_cpu).startswith("3 × CPU Abacus, 4 cores, 2 threads")
    without = identity({"NUM_GPUS": 1}, timing={**timing, "gpus": []})
    assert "Abacus" in clock_text(without)
    fused = identity({"SOLVER.FUSED": True, "RNG_SEED": 77}, timing=timing)
    assert "SOLVER.FUSED True" in clock_text(fused)
    assert "RNG_SEED" not in clock_text(fused)
    defaults = values_by_key(default_recipe())
    # The first changes the times alone, and the second the rounding as well.
    keys = {"TEST.BATCH_SIZE": 3, "TRAIN.TF32": not defaults["TRAIN.TF32"]}
    said = clock_text(identity({**defaults, **keys}, timing=timing)).split(", ")
    assert said[1:] == [f"{name} {value}" for name, value in keys.items()]


def test_keys_without_effect_are_left_out():
    both = effective_keys(recipe(TRAIN__BATCH_SIZE=4, NUM_SHARDS=2))
    assert both["TRAIN.BATCH_SIZE"] == 8, "the global batch"
    assert "TEST.CHECKPOINT_FILE_PATH" not in both
    assert "TEST.NUM_SPATIAL_CROPS" in both
    untested = effective_keys(recipe(TEST__ENABLE=False))
    assert [name for name in untested if name.startswith("TEST.")] == ["TEST.ENABLE"]
    assert "TEST.CHECKPOINT_FILE_PATH" in effective_keys(recipe(TRAIN__ENABLE=False))
    assert "OUTPUT_DIR" not in both


def test_keys_that_a_model_does_not_use_are_left_out(monkeypatch):
    own = recipe()
    spec = replace(own.model.spec, without_effect={"MODEL.DROPOUT_RATE": "it has no dropout"})
    assert "MODEL.DROPOUT_RATE" in effective_keys(own)
    monkeypatch.setattr(type(own.model), "spec", spec)
    assert "MODEL.DROPOUT_RATE" not in effective_keys(own)


def test_a_part_of_a_stored_identity_may_be_missing():
    found = Identity.of_json({"keys": {"A": 1}, "later": 2})
    assert found == Identity({"A": 1}, {}, {}, {})


def test_the_memory_of_weights_is_not_touched():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    division_of(recipe())
    assert torch.equal(torch.random.get_rng_state(), before)
