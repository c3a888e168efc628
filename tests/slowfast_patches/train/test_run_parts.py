"""The parts of a run: what it checks first, in which order it goes on, what it writes and notes."""

from __future__ import annotations

import json
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multigrid import Shape
from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train import run as runs
from slowfast_patches.train.trainer import Progress
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.errors import RunError, UserError
from slowfast_patches.utils.files import TEMPORARY
from slowfast_patches.utils.interruption import TrainingInterruptedError
from tests.slowfast_patches.train.made_checkpoint import made
from tests.slowfast_patches.train.test_stepper import config
from tests.slowfast_patches.train.test_trainer import plan

CPU = torch.device("cpu")
FIRST, SECOND = World(0, 2, CPU), World(1, 2, CPU)


@pytest.fixture
def calls(monkeypatch) -> list[Any]:
    """Return the calls of the functions that `note` replaces."""
    return []


@pytest.fixture
def note(monkeypatch, calls) -> Any:
    """Return `note("name", result)`: a function of `run` then only notes its calls."""

    def replace(name: str, result: object = None) -> None:
        def noted(*given: object, **options: object) -> object:
            calls.append((name, *given, *options.values()))
            return result

        monkeypatch.setattr(runs, name, noted)

    return replace


def names(calls: list[Any]) -> list[str]:
    return [call[0] for call in calls]


# Checks.


@pytest.mark.parametrize("first_rank", [0, 3])
@pytest.mark.parametrize(("trains", "tests"), [(True, True), (True, False), (False, True)])
def test_what_is_checked_before_the_processes_start(
    note, calls, tmp_path, first_rank, trains, tests
):
    for name in ("check_recipe", "check_gpus", "_check_training", "_count_videos"):
        note(name)
    note("_check_files_of_main")
    recipe = default_recipe().replaced(
        {"OUTPUT_DIR": str(tmp_path), "TRAIN.ENABLE": trains, "TEST.ENABLE": tests}
    )
    placement: Any = SimpleNamespace(first_rank=first_rank)
    checkpoints.save(tmp_path, made())
    for resumes in (True, False):
        calls.clear()
        given = recipe.replaced({"TRAIN.AUTO_RESUME": resumes})
        runs._check(given, placement)
        assert calls == [
            ("check_recipe", given),
            ("check_gpus", given, placement),
            *[("_check_training", given, resumes)] * trains,
            *[("_count_videos", given, "test")] * tests,
            *[("_check_files_of_main", given, resumes)] * (first_rank == 0),
        ]
    checkpoints.last_checkpoint(tmp_path).unlink()
    calls.clear()
    runs._check(recipe, placement)
    assert all(call[2] is False for call in calls if call[0].startswith("_check"))


def test_a_run_that_does_nothing_is_a_mistake(note):
    note("check_recipe")
    note("check_gpus")
    recipe = default_recipe().replaced({"TRAIN.ENABLE": False, "TEST.ENABLE": False})
    with pytest.raises(UserError, match=r"are False\. Set one of them True"):
        runs._check(recipe, SimpleNamespace(first_rank=1))


@pytest.fixture
def check(note, monkeypatch) -> Any:
    """Return `check(resumes, KEY=value)`, which checks a training of 16 videos."""
    for name in ("class_names", "check_world_size", "check_shapes", "build_on_meta"):
        note(name)
    note("_count_videos", 16)
    note("frozen_names")
    note("weight_files")
    schedule: Any = SimpleNamespace(shapes=[Shape(8, 8, 32), Shape(64, 2, 64), Shape(16, 8, 16)])
    note("schedule_of", schedule)
    monkeypatch.setattr(runs, "CLIP_TRANSFORMS", [])
    return lambda resumes=False, **keys: runs._check_training(config(**keys), resumes)


def test_a_training_is_checked_with_its_lists_and_shapes(check, calls):
    check()
    assert names(calls) == [
        *("class_names", "_count_videos", "schedule_of", "_count_videos", "check_world_size"),
        "check_shapes",
    ]
    assert [call[2] for call in calls if call[0] == "_count_videos"] == ["train", "val"]
    assert calls[2][2] == 16
    assert [shape.batch for shape in calls[-1][2]] == [8, 64, 16]
    calls.clear()
    check(resumes=True)
    assert "class_names" not in names(calls), "the checkpoint has the names"


def test_changes_of_clips_are_checked_with_the_smallest_clip(check, calls, monkeypatch):
    """2 × 64 and 8 × 16 are 128 each, so the first of them counts."""
    changes = [
        SimpleNamespace(
            switch=switch, check=lambda recipe, *size, s=switch: calls.append((s, *size))
        )
        for switch in ("MULTIGRID.LONG_CYCLE", "TRAIN.COMPILE")
    ]
    monkeypatch.setattr(runs, "CLIP_TRANSFORMS", changes)
    check()
    assert [call for call in calls if "." in call[0]] == [("MULTIGRID.LONG_CYCLE", 2, 64)]


def test_frozen_and_inflated_parameters_need_weights(check, note, calls):
    with pytest.raises(UserError, match=r"^TRAIN\.FREEZE s1,s2 would freeze random weights\. Set"):
        check(TRAIN__FREEZE=("s1", "s2"))
    assert calls[-2][2] == ("s1", "s2")
    check(TRAIN__FREEZE=("s1",), TRAIN__CHECKPOINT_FILE_PATH="a.pyth")
    note("weight_files", [])
    check(TRAIN__FREEZE=("s1",))
    with pytest.raises(UserError, match="no weights to inflate"):
        check(TRAIN__CHECKPOINT_INFLATE=True)
    check(TRAIN__CHECKPOINT_INFLATE=True, TRAIN__CHECKPOINT_FILE_PATH="a.pyth")


def test_videos_are_looked_up_all_over_a_list(note, monkeypatch):
    """Of 1000 videos, every fiftieth is looked up. They are 20, and one must exist."""
    there, recipe = set[str](), default_recipe()
    monkeypatch.setattr(runs, "list_path", lambda recipe, split: f"{split}.csv")
    monkeypatch.setattr(runs, "is_frames", lambda path: path in there)
    videos: list[Any] = [SimpleNamespace(path=f"/nowhere/{number}.mp4") for number in range(1000)]
    note("read_list", videos)
    there.update(f"/nowhere/{number}.mp4" for number in (1, 49, 51, 999))
    said = r"^None of 20 videos .* in val\.csv exists, for example /nowhere/0\.mp4\. Set DATA"
    with pytest.raises(UserError, match=said):
        runs._count_videos(recipe, "val")
    there.add("/nowhere/950.mp4")
    assert runs._count_videos(recipe, "val") == 1000
    note("read_list", videos[1:4] * 5)
    assert runs._count_videos(recipe, "val") == 15
    note("read_list", videos[5:8] * 5)
    with pytest.raises(UserError, match=r"^None of 3 videos"):
        runs._count_videos(recipe, "val")
    note("read_list", [SimpleNamespace(label=0)] * 7)
    assert runs._count_videos(recipe, "val") == 7, "videos that are no files are not looked up"


def test_one_file_that_exists_is_enough(note, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "is_frames", lambda path: False)
    (tmp_path / "b.mp4").touch()
    note("read_list", [SimpleNamespace(path=str(tmp_path / f"{name}.mp4")) for name in "abc"])
    assert runs._count_videos(default_recipe(), "train") == 3


@pytest.mark.parametrize(
    ("keys", "resumes", "checked"),
    [
        ({}, False, []),
        ({"TRAIN.CHECKPOINT_FILE_PATH": "a.pyth"}, False, [("check_file", "a.pyth")]),
        ({"TRAIN.CHECKPOINT_FILE_PATH": "a.pyth"}, True, []),
    ],
)
def test_weights_are_checked_unless_a_run_resumes(note, calls, tmp_path, keys, resumes, checked):
    recipe = config().replaced({"OUTPUT_DIR": str(tmp_path / "out"), **keys})
    hooks = [SimpleNamespace(check=lambda given: calls.append(("hook", given)))]
    note("used_hooks", [*hooks, SimpleNamespace(check=None)])
    note("check_file")
    runs._check_files_of_main(recipe, resumes)
    assert calls == [("used_hooks", recipe), ("hook", recipe), *checked]
    assert (tmp_path / "out" / "run.lock").exists()


@pytest.mark.parametrize("trains", [True, False])
def test_files_of_the_task_are_checked(note, calls, tmp_path, trains):
    note("task_of", SimpleNamespace(check_files=lambda: calls.append(("files",))))
    for name in ("tested_file", "check_file", "local_file", "check_same_scores"):
        note(name)
    recipe = config().replaced({"OUTPUT_DIR": str(tmp_path), "TRAIN.ENABLE": trains})
    runs._check_files_of_main(recipe, False)
    assert names(calls)[:2] == ["task_of", "files"]


def test_a_test_checks_the_file_that_it_tests_and_locks_nothing(note, calls, tmp_path):
    note("tested_file", "tested.pyth")
    note("check_file")
    note("local_file", "local.pyth")
    note("check_same_scores")
    recipe = config().replaced({"OUTPUT_DIR": str(tmp_path / "out"), "TRAIN.ENABLE": False})
    runs._check_files_of_main(recipe, False)
    assert calls == [
        ("tested_file", recipe),
        ("check_file", "tested.pyth"),
        ("local_file", "tested.pyth"),
        ("check_same_scores", recipe, "local.pyth"),
    ]
    assert not (tmp_path / "out").exists()


def test_lists_of_all_processes_are_compared_and_the_main_one_warns(note, calls, caplog):
    lists = {"train": ["a", "b"], "val": ["c"]}
    note("read_list")
    note("_check_same_list")
    note("find_overlaps", ["an overlap"])
    note("list_warnings", ["a warning"])
    recipe = default_recipe()
    assert runs._check_lists(recipe, list(lists), SECOND) == []
    assert names(calls) == ["read_list", "read_list", "_check_same_list", "_check_same_list"]
    assert caplog.records == []
    assert runs._check_lists(recipe, list(lists), FIRST) == ["an overlap"]
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [("WARNING", text) for text in ("a warning", "a warning", "an overlap")]


def test_lists_that_differ_are_named_with_their_rank_and_size(note, monkeypatch):
    others = list[Any]()
    note("list_digest", "digest")
    note("list_path", "a/train.csv")
    monkeypatch.setattr(runs, "gather_objects", lambda own: [own, *others])
    recipe, videos = default_recipe(), ["a", "b"]
    others += [("digest", "b/train.csv (2 videos)")]
    runs._check_same_list(recipe, "train", videos)
    others += [("other", "c/train.csv (3 videos)")]
    said = (
        r"^The list c/train.csv \(3 videos\) of rank 2 differs from the list a/train.csv "
        r"\(2 videos\) of rank 0\. Use"
    )
    with pytest.raises(RunError, match=said) as failed:
        runs._check_same_list(recipe, "train", videos)
    assert failed.value.everywhere


# The order of a run.


class Stop:
    """Stands in for a stop request, and notes when it listens."""

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def __enter__(self) -> Stop:
        self.calls.append(("listens",))
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append(("listens no more",))


@pytest.fixture
def main(note, calls, monkeypatch) -> Any:
    """Return `main(world, "KEY", value, ...)`: the calls of a process of a run."""

    @contextmanager
    def locked(folder: str) -> Any:
        calls.append(("locked",))
        yield
        calls.append(("unlocked",))

    @contextmanager
    def timed(activity: str) -> Any:
        calls.append((activity,))
        yield

    hook = SimpleNamespace(after_test=lambda *given: calls.append(("after_test", *given)))
    trainer = SimpleNamespace(clock=SimpleNamespace(time=timed), hooks=[hook, hook])
    for name in ("set_up_device", "setup_logging", "write_result"):
        note(name)
    note("_check_lists", "overlaps")
    note("build_dataset", "dataset")
    note("run_identity", "identity")
    note("_train", trainer)
    note("multi_view_test", {"top1": 1.0})
    monkeypatch.setattr(runs, "locked", locked)
    monkeypatch.setattr(runs, "StopRequest", lambda *given: Stop(calls))
    monkeypatch.setattr(runs, "splits_of", lambda recipe: ["train", "test"])
    monkeypatch.setattr(runs, "finished", SimpleNamespace(set=lambda: calls.append(("finished",))))

    def call(world: World, **keys: object) -> tuple[list[Any], Any]:
        calls.clear()
        given = {name.replace("__", "."): value for name, value in keys.items()}
        runs._main(default_recipe().replaced(given), world, ["mine"])
        return calls, trainer

    return call


def test_a_run_that_trains_and_tests_goes_through_all_parts(main, caplog):
    caplog.set_level("INFO")
    calls, trainer = main(FIRST, TRAIN__BATCH_SIZE=6, NUM_SHARDS=3, SOLVER__BASE_LR=0.25)
    assert "World size 2, global batch size 18, SOLVER.BASE_LR 0.25, TRAIN.MIXED" in caplog.text
    assert names(calls) == [
        *("set_up_device", "locked", "setup_logging", "_check_lists", "listens", "build_dataset"),
        *("build_dataset", "run_identity", "_train", "testing", "multi_view_test", "after_test"),
        *("after_test", "write_result", "finished", "listens no more", "unlocked"),
    ]
    of = {call[0]: call[1:] for call in calls}
    assert of["setup_logging"][1:] == (FIRST, "train")
    assert of["_check_lists"][1:] == (["train", "val", "test"], FIRST)
    assert of["_train"][3:] == (["mine"], "identity", {"train": "dataset", "test": "dataset"})
    assert of["multi_view_test"][1:] == (FIRST, trainer, "overlaps", None)
    assert of["after_test"] == (trainer, {"top1": 1.0})
    assert of["write_result"][1:] == (FIRST, "identity", trainer, {"top1": 1.0}, "overlaps")


def test_an_error_of_a_training_tells_how_to_go_on_and_writes_no_result(
    main, calls, monkeypatch, tmp_path
):
    path = checkpoints.save(tmp_path, made())

    def fail(*_: object) -> None:
        raise RunError("too bright")

    monkeypatch.setattr(runs, "_train", fail)
    with pytest.raises(RunError, match="too bright") as failed:
        main(FIRST, OUTPUT_DIR=str(tmp_path))
    text = f"The last checkpoint is {path}. Repeat the command to resume."
    assert failed.value.__notes__ == [text]
    assert names(calls)[-1] == "listens no more"
    assert not {"write_result", "finished"} & set(names(calls))


def test_another_process_locks_and_writes_nothing(main):
    calls, _ = main(SECOND)
    left_out = {"locked", "unlocked", "run_identity", "write_result"}
    assert not left_out & set(names(calls))
    assert next(call for call in calls if call[0] == "_train")[5] is None
    assert names(calls)[-2:] == ["finished", "listens no more"]


def test_a_training_without_a_test(main):
    calls, trainer = main(FIRST, TEST__ENABLE=False)
    assert not {"multi_view_test", "after_test"} & set(names(calls))
    of = {call[0]: call[1:] for call in calls}
    assert of["_check_lists"][1] == ["train", "val"]
    assert of["write_result"][3:] == (trainer, {}, "overlaps")


def test_a_test_without_a_training(main):
    calls, _ = main(FIRST, TRAIN__ENABLE=False)
    gone = {"locked", "listens", "_train", "testing", "after_test"}
    assert not gone & set(names(calls))
    of = {call[0]: call[1:] for call in calls}
    assert of["setup_logging"][2] == "test"
    assert of["_check_lists"][1] == ["test"]
    assert of["multi_view_test"][1:] == (FIRST, None, "overlaps", "dataset")
    assert of["write_result"][3:] == (None, {"top1": 1.0}, "overlaps")


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("world", [FIRST, SECOND])
def test_a_training_is_built_from_a_checkpoint_and_its_folder_prepared(
    note, calls, monkeypatch, keep, world
):
    trainer = SimpleNamespace(progress="progress", train=lambda: calls.append(("train",)))
    note("find_resumable", "checkpoint")
    note("build_trainer", trainer)
    note("_prepare_folder")
    monkeypatch.setattr(
        runs, "settle_best", lambda folder, progress, keep: calls.append(("best", progress, keep))
    )
    recipe = default_recipe().replaced({"TRAIN.KEEP_BEST": keep})
    identity: Any = "identity" if world.is_main else None
    assert runs._train(recipe, world, "stop", ["mine"], identity, {}) is trainer
    resumed = "checkpoint" if world.is_main else None
    assert calls == [
        *[("find_resumable", recipe, "identity")] * world.is_main,
        ("build_trainer", recipe, world, "stop", resumed, ["mine"], identity, {}),
        *[("best", "progress", False)] * (world.is_main and not keep),
        *[("_prepare_folder", recipe, trainer)] * world.is_main,
        ("train",),
    ]


# The folder.


def test_what_an_earlier_run_left_goes_and_the_recipe_is_written(note, calls, tmp_path):
    recipe = default_recipe().replaced(
        {"OUTPUT_DIR": str(tmp_path), "TEST.SAVE_RESULTS_PATH": "scores.csv"}
    )
    note("_write_plan")
    torn = tmp_path / "checkpoints" / f"a{TEMPORARY}"
    gone = [*(tmp_path / name for name in checkpoints.RESULTS), tmp_path / "scores.csv", torn]
    stay = [tmp_path / "test.json", torn.with_name("a.pyth")]
    torn.parent.mkdir()
    for path in (*gone, *stay):
        path.touch()
    trainer = SimpleNamespace(progress=Progress(iteration=1))
    runs._prepare_folder(recipe, trainer)
    assert [path for path in gone if path.exists()] == []
    assert all(path.exists() for path in stay)
    assert (tmp_path / "config.yaml").read_text() == recipe.text
    assert calls == []
    for progress in (Progress(iteration=0), Progress(iteration=1, changes=["a change"])):
        trainer.progress = progress
        runs._prepare_folder(recipe, trainer)
    assert calls == [("_write_plan", recipe, trainer, tmp_path)] * 2


@pytest.mark.parametrize("informed", [True, False])
def test_the_plan_is_written_and_summed_up_in_the_log(note, calls, tmp_path, caplog, informed):
    caplog.set_level("INFO")
    recipe = config(LOG_MODEL_INFO=informed)
    note("flops_per_clip", lambda frames, crop: 1000.0 * frames + crop)
    note("plot_plan")
    note("plan_warnings", ["a warning"])
    trainer: Any = SimpleNamespace(
        schedule=plan(), stepper=SimpleNamespace(model=torch.nn.Linear(3, 5))
    )
    runs._write_plan(recipe, trainer, tmp_path)
    found = json.loads((tmp_path / "plan.json").read_text())
    assert (found["iterations"], found["clips"]) == (8, 64)
    assert (tmp_path / "plan.txt").read_text().endswith("\n")
    assert "Training set: 16 videos" in (tmp_path / "plan.txt").read_text()
    (drawn,) = (call for call in calls if call[0] == "plot_plan")
    assert (drawn[1], drawn[3]) == (trainer.schedule, tmp_path / "plan.png")
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    model = "slowonly has 20 parameters. In training, a clip of 4 frames of 16² takes 4.02 kFLOP."
    assert (model in caplog.text) == informed
    assert any("The training has 8 iterations" in text for _, text in said)
    assert ("WARNING", "a warning") in said


# Errors.


@pytest.mark.parametrize(
    ("error", "noted"),
    [
        (RunError("too bright"), True),
        (TrainingInterruptedError("stopped by SIGTERM"), True),
        (OSError(28, "No space left on device"), True),
        (UserError("a wrong key"), False),
        (KeyError("a bug"), False),
        (KeyboardInterrupt(), False),
    ],
)
@pytest.mark.parametrize("trains", [True, False])
def test_an_error_that_ends_a_training_tells_how_to_go_on(tmp_path, error, noted, trains):
    path = checkpoints.save(tmp_path, made())
    recipe = default_recipe().replaced({"OUTPUT_DIR": str(tmp_path), "TRAIN.ENABLE": trains})
    with pytest.raises(type(error)) as failed, runs._last_checkpoint_named(recipe):
        raise error
    assert failed.value is error
    text = f"The last checkpoint is {path}. Repeat the command to resume."
    assert getattr(error, "__notes__", []) == [text] * (noted and trains)
    if noted and trains:
        error.__notes__.clear()


@pytest.mark.parametrize(
    ("error", "waits"), [(ConnectionError(), [0.5]), (EOFError(), [0.5]), (RunError("a"), [])]
)
def test_a_broken_connection_waits_for_the_signal_that_explains_it(
    tmp_path, monkeypatch, error, waits
):
    slept = list[float]()
    monkeypatch.setattr(runs, "time", SimpleNamespace(sleep=slept.append))
    recipe = default_recipe().replaced({"OUTPUT_DIR": str(tmp_path)})
    with pytest.raises(type(error)), runs._last_checkpoint_named(recipe):
        raise error
    assert slept == waits
