"""Validation with and without averaged weights, precise BN by hand, and resumes in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from multigrid import GroupedBatchNorm3d
from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.plan.run_identity import Identity
from slowfast_patches.tasks.scores import Evaluation
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train import evaluate as evaluations
from slowfast_patches.train import resume
from slowfast_patches.train.evaluate import Validation, evaluate, update_precise_bn
from slowfast_patches.train.resume import continues, find_resumable, note_clock
from slowfast_patches.train.trainer import Progress
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.errors import UserError
from tests.slowfast_patches.train.conftest import ALONE
from tests.slowfast_patches.train.made_checkpoint import made
from tests.slowfast_patches.train.test_precise_bn import RECIPE, Net, batches
from tests.slowfast_patches.train.test_stepper import config
from tests.slowfast_patches.train.test_trainer import plan

SECOND = World(1, 2, torch.device("cpu"))

# An evaluation.


class Scores(nn.Module):
    """Scores a clip by the level of its first pixel, and notes the sizes of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = list[int]()

    def forward(self, pathways: list[Tensor]) -> Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        self.sizes.append(len(pathways[0]))
        level = pathways[0][:, 0, 0, 0, 0]
        return torch.stack([level, -level], 1)


def clips(levels: list[int], videos: list[int], failures: dict[str, str]) -> dict[str, Any]:
    pixels = torch.tensor(levels, dtype=torch.uint8).view(-1, 1, 1, 1, 1)
    return {
        "clips": pixels.expand(-1, 1, 2, 2, 3),
        "flips": torch.zeros(len(levels), dtype=torch.bool),
        "videos": torch.tensor(videos),
        "labels": torch.zeros(len(levels), dtype=torch.int64),
        "failures": failures.items(),
    }


@pytest.fixture
def loader(monkeypatch) -> Any:
    """Return `loader(batch, ...)`, which sets the mini-batches of an evaluation."""

    def load(*given: dict[str, Any]) -> None:
        monkeypatch.setattr(evaluations, "evaluation_loader", lambda *_: iter(given))
        monkeypatch.setattr(evaluations, "evaluation_rounds", lambda *_: len(given))

    return load


def small() -> Any:
    return default_recipe().replaced(
        {"MODEL.ARCH": "slowonly", "MODEL.NUM_CLASSES": 2, "DATA.MAX_BAD_FRACTION": 1.0}
    )


class Videos(SimpleNamespace):
    def __len__(self) -> int:
        return 2 * len(self.videos)


def test_clips_are_scored_in_parts_of_a_batch_and_failures_are_logged_once(
    loader, monkeypatch, caplog
):
    """Videos of two clips: bright ones are right. Three clips pass at a time."""
    data, model = Videos(videos=range(3)), Scores().train()
    loader(
        clips([255, 255, 0, 0], [0, 0, 1, 1], {"a.mp4": "is torn"}),
        clips([255, 0], [2, 2], {"a.mp4": "is torn"}),
    )
    rounds = list[int]()
    stop: Any = SimpleNamespace(between=lambda batches, n: rounds.append(n) or batches)
    found = evaluate(model, small(), data, 3, ALONE, stop)
    assert model.sizes == [3, 1, 2]
    assert rounds == [2]
    assert found.metrics["videos"] == 3
    level = (255 / 255 - 0.45) / 0.225
    dark = (0 - 0.45) / 0.225
    expected = torch.tensor([level, dark, (level + dark) / 2])
    torch.testing.assert_close(found.probabilities[:, 0].float(), expected)
    said = [text for text in caplog.messages if "a.mp4" in text]
    assert said == ["a.mp4 is torn; unreadable clips are not scored"]


@pytest.mark.parametrize("world", [ALONE, SECOND])
def test_the_bar_of_an_evaluation_counts_mini_batches(loader, monkeypatch, world):
    shown = list[Any]()

    @contextmanager
    def terminal_bar(name: str, total: int, *, is_main: bool) -> Iterator[Any]:
        shown.append((name, total, is_main))
        yield SimpleNamespace(update=lambda: shown.append("update"))

    monkeypatch.setattr(evaluations, "terminal_bar", terminal_bar)
    loader(clips([255, 255], [0, 0], {}), clips([255, 0], [1, 1], {}))
    evaluate(Scores(), small(), Videos(videos=range(2)), 1, world)
    assert shown == [("evaluation", 2, world.is_main), "update", "update"]


def test_failures_of_all_processes_are_logged_by_the_main_one(loader, monkeypatch, caplog):
    others = {"other.mp4": "is gone"}
    monkeypatch.setattr(evaluations, "gather_objects", lambda own: [own, others])
    for world, names in ((SECOND, []), (ALONE, ["own.mp4", "other.mp4"])):
        caplog.clear()
        loader(clips([255, 255], [0, 0], {"own.mp4": "is torn"}))
        evaluate(Scores(), small(), Videos(videos=range(1)), 8, world)
        assert [text.split()[0] for text in caplog.messages] == names


# A validation.


@pytest.fixture
def validated(monkeypatch) -> list[Any]:
    """Return the calls of a validation. Its first accuracy is 10.00004, the next one 20.00008."""
    calls = list[Any]()

    def evaluate(model: Any, recipe: Any, *given: Any) -> Evaluation:
        calls.append(("evaluated", model, *given))
        number = sum(call[0] == "evaluated" for call in calls)
        metrics = {"top1": 10.00004 * number, "videos": 3}
        empty = torch.zeros(0)
        loss = 1.23456 if number == 1 else None
        return Evaluation(metrics, empty, empty, empty, loss=loss)

    monkeypatch.setattr(evaluations, "evaluate", evaluate)
    monkeypatch.setattr(
        evaluations, "average_running_stats", lambda model: calls.append(("averaged", model))
    )
    monkeypatch.setattr(
        evaluations, "update_precise_bn", lambda *given: calls.append(("precise", *given))
    )
    monkeypatch.setattr(
        evaluations, "precise_bn_loader", lambda recipe, *given: calls.append(given) or [1, 2, 3]
    )
    return calls


@pytest.mark.parametrize(
    ("world", "parts", "clips"), [(ALONE, 1, 8), (SECOND, 1, 4), (SECOND, 2, 2), (ALONE, 16, 1)]
)
def test_both_models_are_validated_in_parts_of_a_step(validated, world, parts, clips):
    recipe = config(BN__USE_PRECISE_STATS=False, SOLVER__ACCUMULATION_STEPS=parts)
    models = nn.ModuleList([nn.Identity(), nn.ReLU()])
    call = Validation(recipe, world, "stop", "training set", plan(), "validation set")
    found = call(models, plan().at(0))
    assert found == {"top1": 10.0, "videos": 3, "loss": 1.2346, "top1_ema": 20.0001}
    given = ("validation set", clips, world, "stop")
    assert validated == [
        *(("averaged", models[0]), ("evaluated", models[0], *given)),
        *(("averaged", models[1]), ("evaluated", models[1], *given)),
    ]


def test_precise_statistics_precede_the_evaluation(validated):
    recipe, step = config(BN__USE_PRECISE_STATS=True), plan().at(3)
    stop = SimpleNamespace(between=lambda batches, rounds: (batches, rounds))
    model = nn.Identity()
    call = Validation(recipe, SECOND, stop, "training set", plan(), "validation set")
    call(nn.ModuleList([model]), step)
    assert validated[:3] == [
        ("averaged", model),
        ("training set", plan(), step, 1, 2),
        ("precise", model, ([1, 2, 3], 3), recipe, SECOND, 8),
    ]


def test_a_validation_reads_its_split_unless_it_is_given(monkeypatch):
    monkeypatch.setattr(evaluations, "build_dataset", lambda recipe, split: f"read {split}")
    for given, expected in ((None, "read val"), ("given", "given")):
        made = Validation(config(), ALONE, "stop", "training set", plan(), given)
        assert made.validation_set == expected


# Precise BN.


def test_precise_statistics_by_hand(monkeypatch):
    """Two mini-batches. Those of the other process are the same, so their sums are twice these."""
    monkeypatch.setattr(evaluations, "sum_over_ranks", lambda values: values.mul_(2))
    norm = GroupedBatchNorm3d(3)
    model = Net(norm).eval()
    loader = batches(2, 4)
    update_precise_bn(model, loader, RECIPE, SECOND, 4)
    assert model.training
    transform = evaluations.InputTransform.of_recipe(RECIPE, ALONE.device)
    inputs = [transform(b["clips"], b["flips"])[0].double() for b in loader]
    mean = torch.stack([x.mean((0, 2, 3, 4)) for x in inputs]).mean(0)
    square = torch.stack([x.square().mean((0, 2, 3, 4)) for x in inputs]).mean(0)
    torch.testing.assert_close(norm.running_mean.double(), mean, atol=1e-5, rtol=0)
    torch.testing.assert_close(norm.running_var.double(), square - mean**2, atol=1e-4, rtol=0)
    assert norm.group_size == 4
    assert not norm._forward_pre_hooks


def test_a_model_without_statistics_reads_no_clips():
    def fail() -> Any:
        raise AssertionError("read")
        yield

    frozen = GroupedBatchNorm3d(3)
    frozen.train = lambda mode=True: frozen  # stays in evaluation mode
    frozen.training = False
    for layer in (nn.ReLU(), GroupedBatchNorm3d(3, track_running_stats=False), frozen):
        update_precise_bn(Net(layer), fail(), RECIPE, ALONE, 4)


def test_an_error_of_precise_statistics_leaves_no_hooks():
    norm = GroupedBatchNorm3d(3)
    with pytest.raises(KeyError):
        update_precise_bn(Net(norm), [{}], RECIPE, ALONE, 4)
    assert not norm._forward_pre_hooks
    assert math.isclose(float(norm.running_var[0]), 1.0)


# What a run resumes from.


@pytest.fixture
def recipe(tmp_path, monkeypatch) -> Any:
    for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    return default_recipe().replaced({"OUTPUT_DIR": str(tmp_path)})


IDENTITY = Identity({}, {}, remarks={"versions": {"torch": "2"}})


def save(folder, iteration: int, **values: object):
    return checkpoints.save(folder, made(iteration=iteration, identity={"keys": {}}, **values))


def test_when_a_run_continues(recipe, tmp_path, monkeypatch):
    assert continues(recipe)
    over = recipe.replaced({"TRAIN.AUTO_RESUME": False})
    assert not continues(over)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    marker = tmp_path / "started_over.txt"
    marker.write_text("SLURM job 7")
    for count, expected in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("SLURM_RESTART_COUNT", count)
        assert continues(over) is expected
    marker.write_text("SLURM job 8")
    assert not continues(over)
    marker.unlink()
    assert not continues(over)


def test_a_job_of_torchrun_is_known_by_its_agent(monkeypatch, recipe):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    monkeypatch.setattr(resume.os, "getppid", lambda: 17)
    assert resume._job().startswith("torchrun a, agent 17 on ")


def test_starting_over_says_where_the_earlier_checkpoints_are(recipe, tmp_path, caplog):
    over = recipe.replaced({"TRAIN.AUTO_RESUME": False})
    assert find_resumable(over, IDENTITY) is None
    assert caplog.text == ""
    assert (tmp_path / "started_over.txt").read_text() == resume._job()
    save(tmp_path, 3)
    assert find_resumable(over, IDENTITY) is None
    kept = tmp_path / "checkpoints_before_1"
    assert f"starting over. Earlier checkpoints moved to {kept}." in caplog.text


def test_a_result_without_checkpoints_is_set_aside(recipe, tmp_path, caplog):
    assert find_resumable(recipe, IDENTITY) is None
    assert caplog.text == ""
    (tmp_path / "result.json").write_text("{}")
    assert find_resumable(recipe, IDENTITY) is None
    assert "The training starts. Files of an earlier one moved to" in caplog.text
    assert not (tmp_path / "result.json").exists()
    assert not (tmp_path / "started_over.txt").exists()


def test_if_all_are_damaged_the_newest_is_the_reason(recipe, tmp_path):
    paths = [save(tmp_path, iteration) for iteration in (2, 4)]
    for path in paths:
        path.write_bytes(b"torn")
    said = rf"^No checkpoint in {paths[0].parent} can be read\. To train .*newest: {paths[1]}"
    with pytest.raises(UserError, match=said):
        find_resumable(recipe, IDENTITY)
    assert all(path.exists() for path in paths), "nothing is renamed"


def test_differences_that_are_accepted_are_noted(recipe, tmp_path, monkeypatch, caplog):
    """Rates may differ until the run has its result."""
    path = save(tmp_path, 3, changes=["before"])
    asked = list[Any]()

    def check(checkpoint, identity, given, where, rates_may_differ) -> list[str]:
        asked.append((checkpoint.iteration, identity, given, where, rates_may_differ))
        return accepted

    monkeypatch.setattr(resume, "check_same_run", check)
    monkeypatch.setattr(resume, "remarks_between", lambda there, here: ["other versions"])
    accepted = ["A 1 there, 2 here", "B"]
    found = find_resumable(recipe, IDENTITY)
    assert found.path == path
    text = "after iteration 3: A 1 there, 2 here, B"
    assert found.checkpoint.changes == ["before", text]
    assert caplog.messages == [
        f"The training changes {text}.",
        f"{path} was trained with other versions.",
    ]
    (tmp_path / "result.json").touch()
    accepted = []
    assert find_resumable(recipe, IDENTITY).checkpoint.changes == ["before"]
    assert asked == [(3, IDENTITY, recipe, path, rates) for rates in (True, False)]


@pytest.mark.parametrize(
    ("differing", "accepted", "others"),
    [
        ({"SOLVER.BASE_LR": "a", "rates": "b"}, ["a"], []),
        ({"SOLVER.WARMUP_START_LR": "a", "DATA.MEAN": "b"}, None, ["DATA.MEAN"]),
        ({"rates": "a"}, None, ["rates"]),
        ({"RNG_SEED": "a", "SOLVER.COSINE_END_LR": "b"}, ["a", "b"], []),
        ({}, [], []),
    ],
)
def test_rates_that_follow_from_accepted_keys_are_accepted(
    recipe, monkeypatch, tmp_path, differing, accepted, others
):
    """The user accepts RNG_SEED, and rates may differ."""
    monkeypatch.setattr(resume, "differences_between", lambda *_: dict(differing))
    given = recipe.replaced({"TRAIN.ACCEPT_CHANGES": ("RNG_SEED",)})
    checked = made(identity=IDENTITY.to_json()), IDENTITY, given, tmp_path / "a.pyth"
    if accepted is None:
        said = rf"^{checked[3]} is of another run: .*ACCEPT_CHANGES {','.join(others)}\.$"
        with pytest.raises(UserError, match=said):
            resume.check_same_run(*checked, rates_may_differ=True)
    else:
        assert resume.check_same_run(*checked, rates_may_differ=True) == accepted
    if differing.keys() - {"RNG_SEED"}:
        with pytest.raises(UserError, match="is of another run"):
            resume.check_same_run(*checked)


def test_a_torn_checkpoint_is_renamed_and_named(recipe, tmp_path, caplog):
    older, torn = save(tmp_path, 2), save(tmp_path, 4)
    torn.write_bytes(b"torn")
    assert find_resumable(recipe, Identity({}, {})).path == older
    assert torn.with_name(f"{torn.name}.damaged").read_bytes() == b"torn"
    assert f"Renamed a damaged checkpoint, continuing from {older.name}: {torn}" in caplog.text


def test_clocks_are_noted_where_they_change():
    progress = Progress()
    for clock in ("a", "a", "b", "a", "a"):
        note_clock(progress, clock)
    assert progress.clocks == ["a", "b", "a"]
