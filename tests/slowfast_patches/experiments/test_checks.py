"""Nothing is trained, submitted or written before an experiment is known to compare what it
should."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slowfast_patches.config.recipe import KEYS, plain
from slowfast_patches.experiments import checks
from slowfast_patches.experiments.checks import check_alike, check_outputs, checked
from slowfast_patches.experiments.comparison import make_variants
from slowfast_patches.experiments.paper import PAPER_TABLES, paper_variants
from slowfast_patches.experiments.report import explain_differences, variant_differences
from slowfast_patches.experiments.runs import Experiment, with_seed
from slowfast_patches.experiments.variants import Variant
from slowfast_patches.plan.run_identity import WEIGHTS_KEYS
from slowfast_patches.seams import SECTIONS
from slowfast_patches.train import checkpoint as checkpoints
from tests.slowfast_patches.experiments.test_compare import BASE, DELTA
from tests.slowfast_patches.plan.test_identity import FREE, other_value
from tests.slowfast_patches.train.made_checkpoint import made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two recipes and lists of videos that do not exist."""
    for name, text in (("baseline", BASE), ("multigrid", DELTA)):
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "data").mkdir()
    for split, count in (("train", 136), ("val", 16), ("test", 24)):
        lines = (f"{split}{number}.mp4 {number % 8}\n" for number in range(count))
        (tmp_path / "data" / f"{split}.csv").write_text("".join(lines))
    return tmp_path


def experiment_in(folder: Path, *keys: object, **values: object) -> Experiment:
    overrides = list(map(str, ("DATA.PATH_TO_DATA_DIR", folder / "data", *keys)))
    variants = make_variants([folder / "baseline.yaml", folder / "multigrid.yaml"], overrides)
    return Experiment(variants, [0, 1], folder / "out", **values)


def start(experiment: Experiment, variant: Variant, seed: int) -> Path:
    """Leave a checkpoint of an interrupted run."""
    identity = with_seed(variant.identity, seed).to_json()
    values = {"cfg": variant.recipe.text, "identity": identity}
    return checkpoints.save(experiment.folder(variant, seed), made(**values))


def change_lines(path: Path) -> None:
    """Give the first video another label."""
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([f"{first.split()[0]} 7", *rest]) + "\n")


CHANGES: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "SOLVER.BASE_LR": lambda folder: ("SOLVER.BASE_LR", 0.2),
    "SOLVER.WEIGHT_DECAY": lambda folder: ("SOLVER.WEIGHT_DECAY", 0.5),
    "DATA.NUM_FRAMES": lambda folder: ("DATA.NUM_FRAMES", 8),
    "SOLVER.FUSED": lambda folder: ("SOLVER.FUSED", True),
    "train_list": lambda folder: change_lines(folder / "data" / "train.csv") or (),
    "val_list": lambda folder: change_lines(folder / "data" / "val.csv") or (),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("finished", [True, False])
def test_an_experiment_repeated_with_a_change_is_refused_before_anything_is_done(
    folder, write_run, change, finished
):
    """Three of four runs, drawn at random, have started or finished before the change."""
    experiment = experiment_in(folder)
    random.Random(change).shuffle(
        runs := [(variant, s) for variant in experiment.variants for s in experiment.seeds]
    )
    for variant, seed in runs[:3]:
        if finished:
            write_run(experiment, variant, seed, 100, top1=50.0, top5=90.0)
        else:
            start(experiment, variant, seed)
    assert checked(experiment, trains=False).variants == experiment.variants
    keys = CHANGES[change](folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=rf"{change}.* delete the folder of that run"):
        checked(experiment_in(folder, *keys), trains=False)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    accepted = frozenset((change, "schedule", "rates"))
    checked(experiment_in(folder, *keys, accepted=accepted), trains=False)


def test_changes_of_a_recipe_that_change_no_run_are_none(folder, write_run):
    experiment = experiment_in(folder)
    write_run(experiment, experiment.variants[0], 0, 100, top1=50.0, top5=90.0)
    start(experiment, experiment.variants[1], 0)
    for name, text in (
        ("baseline", "RNG_SEED: 3\nLOG_PERIOD: 3\n"),
        ("multigrid", "BN: {GROUP_SIZE: 16}"),
    ):
        path = folder / f"{name}.yaml"
        path.write_text(path.read_text() + text)
    checked(experiment_in(folder, "DATA_LOADER.NUM_WORKERS", 1), trains=False)


def test_the_test_list_belongs_to_a_result_but_not_to_a_training(folder, write_run):
    experiment = experiment_in(folder)
    start(experiment, experiment.variants[0], 0)
    change_lines(folder / "data" / "test.csv")
    checked(experiment_in(folder), trains=False)
    experiment = experiment_in(folder)
    write_run(experiment, experiment.variants[0], 0, 100, top1=50.0, top5=90.0)
    (folder / "data" / "test.csv").unlink()
    shutil.copy(folder / "data" / "val.csv", folder / "data" / "test.csv")
    with pytest.raises(ValueError, match=r"test_list: 24 videos there, 16 here .other labels"):
        checked(experiment_in(folder), trains=False)


def test_start_weights_are_those_that_the_variant_names_now(folder, write_run):
    weights = folder / "weights.pyth"
    torch.save({"x": torch.zeros(3)}, weights)
    keys = ("TRAIN.CHECKPOINT_FILE_PATH", weights)
    experiment = experiment_in(folder, *keys)
    write_run(experiment, experiment.variants[0], 0, 100, top1=50.0, top5=90.0)
    checked(experiment_in(folder, *keys), trains=False)
    torch.save({"x": torch.ones(3)}, weights)
    with pytest.raises(ValueError, match="weights: content"):
        checked(experiment_in(folder, *keys), trains=False)


def test_a_result_that_does_not_say_what_it_is_from_is_used_only_if_the_user_says_so(
    folder, write_run
):
    experiment = experiment_in(folder)
    write_run(experiment, experiment.variants[0], 0, 100, top1=50.0, top5=90.0)
    path = experiment.folder(experiment.variants[0], 0) / "result.json"
    result = json.loads(path.read_text())
    del result["identity"]
    path.write_text(json.dumps(result))
    with pytest.raises(ValueError, match=r"does not say .* --accept-change identity"):
        checked(experiment, trains=False)
    assert len(replace(experiment, accepted=frozenset(["identity"])).runs()) == 1
    del result["seconds"]
    path.write_text(json.dumps(result))
    with pytest.raises(ValueError, match=r"not a valid result.*'seconds'"):
        checked(experiment, trains=False)


def test_a_started_run_that_accepted_a_change_is_none_of_the_experiment(folder):
    experiment = experiment_in(folder)
    values = {"identity": with_seed(experiment.variants[0].identity, 0).to_json()}
    change = "after iteration 3: SOLVER.BASE_LR 0.1 there, 0.2 here"
    checkpoints.save(experiment.folder(experiment.variants[0], 0), made(changes=[change], **values))
    with pytest.raises(ValueError, match=r"after iteration 3: SOLVER\.BASE_LR"):
        checked(experiment, trains=False)
    checked(replace(experiment, accepted=frozenset(["changes"])), trains=False)


def test_each_difference_between_two_variants_is_in_the_report_or_changes_nothing(folder):
    """Change each key and each list of the second variant, one at a time."""
    experiment = experiment_in(folder)
    baseline = experiment.variants[0]

    def named(other: Variant) -> str:
        twin = replace(other, name="twin", baseline="baseline")
        return " ".join(explain_differences(replace(experiment, variants=[baseline, twin])))

    assert named(baseline) == "twin differs from its baseline in: nothing."
    values = {name: plain(baseline.recipe[name]) for name in KEYS}
    for name in (name for name in KEYS if name.partition(".")[0] not in SECTIONS):
        keys = values | {name: plain(other_value(baseline.recipe[name]))}
        other = replace(baseline, identity=replace(baseline.identity, keys=keys))
        one = replace(baseline, identity=replace(baseline.identity, keys=values))
        experiment = replace(experiment, variants=[one])
        texts = variant_differences(
            replace(experiment, variants=[one, replace(other, name="twin")])
        )["twin"]
        assert bool(texts) is (name not in {*FREE, *WEIGHTS_KEYS}), name
    counts = {
        s: f"{n} videos there, {n} here" for s, n in (("train", 136), ("val", 16), ("test", 24))
    }
    for split in counts:
        shutil.rmtree(folder / "copy", ignore_errors=True)
        shutil.copytree(folder / "data", folder / "copy")
        assert named(
            experiment_in(folder, "DATA.PATH_TO_DATA_DIR", folder / "copy").variants[0]
        ).endswith("in: nothing.")
        change_lines(folder / "copy" / f"{split}.csv")
        other = experiment_in(folder, "DATA.PATH_TO_DATA_DIR", folder / "copy").variants[0]
        assert f"in: {split}_list: {counts[split]} (other labels" in named(other)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("TEST: {ENABLE: False}", "TEST.ENABLE"),
        ("TEST: {NUM_ENSEMBLE_VIEWS: 2}", "TEST.NUM_ENSEMBLE_VIEWS"),
        ("TEST: {NUM_SPATIAL_CROPS: 1}", "TEST.NUM_SPATIAL_CROPS"),
        ("DATA: {PATH_TO_DATA_DIR: OTHER}", "test_list"),
        ("DATA: {PATH_TO_DATA_DIR: OTHER}", "train_list"),
    ],
)
def test_variants_that_are_not_scored_alike_are_refused_unless_the_user_says_so(
    folder, text, named
):
    shutil.copytree(folder / "data", folder / "other")
    change_lines(folder / "other" / f"{named.split('_')[0]}.csv") if "list" in named else None
    (folder / "multigrid.yaml").write_text(DELTA + text.replace("OTHER", str(folder / "other")))
    base = folder / "baseline.yaml"
    base.write_text(BASE.replace("DATA: {", f"DATA: {{PATH_TO_DATA_DIR: {folder / 'data'}, "))
    variants = make_variants([base, folder / "multigrid.yaml"], [])
    experiment = Experiment(
        [replace(variant, baseline="baseline") for variant in variants], [0], folder / "out"
    )
    with pytest.raises(ValueError, match=rf"{named}.*add --accept-change {named}"):
        checked(experiment, trains=False)
    check_alike(replace(experiment, accepted=frozenset([named])))


def test_prepared_videos_with_the_same_labels_may_be_compared_with_the_originals(folder):
    shutil.copytree(folder / "data", folder / "prepared")
    for path in (folder / "prepared").glob("*.csv"):
        path.write_text(path.read_text().replace(".mp4", ".webm.mp4"))
    experiment = experiment_in(folder)
    other = experiment_in(folder, "DATA.PATH_TO_DATA_DIR", folder / "prepared").variants[1]
    check_alike(replace(experiment, variants=[experiment.variants[0], other]))


@pytest.mark.parametrize(("one", "other"), [("a b", "a_b"), ("A", "a")])
def test_two_recipes_do_not_share_a_folder(folder, one, other):
    for name in (one, other):
        (folder / f"{name}.yaml").write_text("_BASE_: baseline.yaml\n")
    variants = make_variants([folder / f"{name}.yaml" for name in (one, other)], [])
    with pytest.raises(ValueError, match="would have the same folder"):
        checked(Experiment(variants, [0], folder / "out"), trains=False)


def test_an_experiment_does_not_write_where_it_reads(folder):
    """Start weights in the folder of one of its runs, and step times that are its report."""
    experiment = experiment_in(folder)
    weights = start(experiment, experiment.variants[1], 1)
    with pytest.raises(ValueError, match=f"^{weights} is read by this command"):
        checked(experiment_in(folder, "TRAIN.CHECKPOINT_FILE_PATH", weights), trains=False)
    inside = experiment_in(folder)
    with pytest.raises(ValueError, match=r"report\.json is read by this command"):
        checked(inside, [folder / "out" / "report.json"], trains=False)
    times = [folder / "out" / "step_times.json"]  # not a file of the report
    checked(inside, times, trains=False)
    with pytest.raises(ValueError, match="which would also write it"):
        checked(inside, times, trains=False, writes=["step_times.json"])
    moved = folder / "out" / "baseline" / "here.yaml"
    moved.parent.mkdir(parents=True, exist_ok=True)
    (folder / "top.yaml").write_text("_BASE_: out/baseline/here.yaml\n")
    shutil.copy(folder / "baseline.yaml", moved)
    variants = make_variants([folder / "baseline.yaml", folder / "top.yaml"], [])
    with pytest.raises(ValueError, match=r"here\.yaml is read by this command"):
        checked(Experiment(variants, [0], folder / "out"), trains=False)


def test_only_weights_on_this_machine_are_looked_at(folder, monkeypatch):
    """An address is not downloaded to find out whether it would be overwritten."""
    asked = list[str]()
    monkeypatch.setattr(checks, "local_file", lambda path: asked.append(path) or Path(path))
    experiment = experiment_in(folder)
    check_outputs(experiment, [], [])
    assert asked == []
    keys = ("TRAIN.CHECKPOINT_FILE_PATH", "https://some.org/a", "TEST.CHECKPOINT_FILE_PATH", "b")
    recipe = experiment.variants[0].recipe.replaced(dict(zip(keys[::2], keys[1::2], strict=True)))
    variants = [replace(experiment.variants[0], recipe=recipe)]
    check_outputs(replace(experiment, variants=variants), [], [])
    assert asked == ["b"]


def test_the_variants_of_the_paper_are_scored_like_their_baselines():
    rows = [row for table in PAPER_TABLES.values() for row in table.rows]
    check_alike(Experiment(list(paper_variants(rows).values()), [0], Path("out")))
