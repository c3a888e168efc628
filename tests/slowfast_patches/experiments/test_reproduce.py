"""Tests of tables and figures of the paper: their rows, their cost, and the results of runs."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from slowfast_patches.experiments import reproduction
from slowfast_patches.experiments.paper import PAPER, PAPER_TABLES, Row, paper_variants
from slowfast_patches.experiments.runs import Experiment
from slowfast_patches.experiments.variants import Variant

ROOT = Path(__file__).parents[3]


def row(name: str, label: str) -> Row:
    [found] = [row for row in PAPER_TABLES[name].rows if row.label == label]
    return found


def variant(name: str, label: str, **given: object) -> Variant:
    """Return the variant of a row, with the options of a user."""
    wanted = row(name, label)
    return paper_variants([wanted], **given)[wanted.folder]


@pytest.fixture(autouse=True)
def _cheap_flops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every clip the same FLOPs. Other tests check the FLOPs."""
    monkeypatch.setattr(reproduction, "flops_per_clip", lambda recipe: lambda *shape: 1e9)


@pytest.fixture
def tool(load_program: Callable) -> ModuleType:
    return load_program("tools/reproduce.py")


@pytest.fixture
def cli(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> Callable:
    """Return `cli("table5", ...)`: the exit status and the output of the tool."""

    def call(*argv: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = tool.main([str(a) for a in argv])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


class TestPaper:
    def test_every_published_number_says_where_it_is_from(self) -> None:
        for found in (row for table in PAPER_TABLES.values() for row in table.rows):
            is_published = bool(found.metrics) or found.speed_up is not None
            assert bool(found.source) == is_published, found
            assert found.source.startswith(("Table ", "§", "abstract")) == is_published, found

    def test_what_tables_share_is_trained_once(self) -> None:
        default = row("table1a", "4 long-cycle shapes (default)").folder
        assert row("table2b", "32 frames, multigrid").folder == default
        assert row("figure1", "multigrid, 1.5× epochs").folder == default
        rows = [row for table in PAPER_TABLES.values() for row in table.rows]
        trainings = {(row.folder, row.recipe, row.start, row.overrides) for row in rows}
        assert len(trainings) == len({row.folder for row in rows})


EIGHT_ON_FOUR = ("NUM_GPUS", "4", "TRAIN.BATCH_SIZE", "8", "SOLVER.REFERENCE_BATCH_SIZE", "16")


class TestArms:
    @pytest.mark.parametrize(
        ("name", "shortened", "multigrid"),
        [
            ("table3", "I3D, baseline at 1/3.3", "I3D, multigrid"),
            ("table3", "I3D-NL, baseline at 1/3.3", "I3D-NL, multigrid"),
            ("table5", "baseline at 1/5.2", "multigrid, 1.0× epochs"),
            ("table5", "baseline at 1/3.4", "multigrid, 1.5× epochs"),
            ("table5", "baseline at 1/2.6", "multigrid, 2.0× epochs"),
            ("table6", "baseline at 1/5.3", "multigrid, 1.0× epochs"),
            ("table6", "baseline at 1/3.5", "multigrid, 1.5× epochs"),
            ("table6", "baseline at 1/2.6", "multigrid, 2.0× epochs"),
        ],
    )
    def test_a_shortened_baseline_has_multigrids_iterations(
        self, name: str, shortened: str, multigrid: str
    ) -> None:
        short, long = variant(name, shortened), variant(name, multigrid)
        assert abs(short.iterations - long.iterations) <= 1
        solver = short.recipe.solver
        whole = variant(name, row(name, shortened).label.split(" at")[0]).recipe.solver
        ratio = whole.steps[1] / whole.max_epoch
        assert solver.steps[1] / solver.max_epoch == pytest.approx(ratio, rel=1e-4)

    def test_a_point_of_a_figure_is_as_long_as_it_says(self) -> None:
        def iterations(label: str) -> int:
            return variant("figure3", label).iterations

        assert iterations("baseline, 2× epochs") == pytest.approx(2 * 896_000, rel=1e-3)
        # FACTS: 2.570 times fewer iterations at 2.0 × the epochs, so 1.713 times at 3.0 ×.
        assert iterations("multigrid, 3× epochs") == pytest.approx(896_000 / 1.7133, rel=2e-3)
        # Without the short cycle a cycle's batches are 8, 4, 2 and 1 times the baseline's: 3.75 on
        # average for 72k of 112k iterations, then 1 for the other 40k (3.75 x 72 + 40 = 310).
        assert iterations("long cycle only, 0.5× epochs") == pytest.approx(
            0.5 * 896_000 / (3.75 * 92 / 112 + 20 / 112), rel=2e-3
        )

    def test_without_fine_tuning_in_as_many_iterations(self) -> None:
        """Four stages of four shapes; the last has its own rate, 1e-4 for B clips."""
        default, found = (
            variant("table1a", label)
            for label in (
                "4 long-cycle shapes (default)",
                "the default without the fine-tuning phase",
            )
        )
        assert found.iterations == pytest.approx(default.iterations, rel=1e-4)
        assert len(found.schedule.phases) == 16
        assert not any(phase.fine_tuning for phase in found.schedule.phases)
        last = [found.schedule.at(p.start).lr for p in found.schedule.phases[-4:]]
        assert last == pytest.approx([8e-4, 4e-4, 2e-4, 1e-4])

    def test_the_users_keys_and_places_enter_every_recipe(self, tmp_path: Path) -> None:
        places = {"data": {"ssv2": str(tmp_path)}, "weights": {"kinetics": "k400.pkl"}}
        recipe = variant("table5", "baseline", overrides=EIGHT_ON_FOUR, **places).recipe
        assert recipe.train.checkpoint_file_path == "k400.pkl"
        assert recipe.data.path_to_data_dir == str(tmp_path)
        assert recipe.train.batch_size == 8
        assert recipe.solver.base_lr == pytest.approx(0.015)


class TestDryRun:
    @pytest.mark.slow("plans all recipes of the paper")
    def test_all_tables_and_figures(self, cli: Callable, tmp_path: Path) -> None:
        output = tmp_path / "none"
        status, out, err = cli("all", "--dry-run", "--output", output)
        assert (status, err) == (0, "")
        assert all(PAPER_TABLES[name].title in out for name in PAPER)
        assert not output.exists()

    def test_recipes_that_no_step_times_hold_for_have_none(self, cli: Callable) -> None:
        file = ROOT / "benchmarks" / "results" / "step_time_demo.json"
        status, out, _ = cli("table4", "--dry-run", "--step-times", file)
        assert status == 0
        assert "no step times for I3D_8x8_R50_1GPU.yaml: " in out
        assert "step_time_demo.json" in out

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["table5", "--local"], "Give --kinetics-weights FILE"),
            (
                ["table1a", "--local"],
                "kinetics: DATA.PATH_TO_DATA_DIR, the folder of the lists, is not set",
            ),
            (["table1a", "--local", "--kinetics", "no"], "needs no/train.csv, which does not"),
        ],
    )
    def test_what_is_missing_is_said_before_anything_runs(
        self, cli: Callable, tmp_path: Path, argv: list[str], message: str
    ) -> None:
        status, _, err = cli(*argv[:1], "--output", tmp_path / "out", *argv[1:])
        assert status == 2
        assert message in err


class TestOutcome:
    @pytest.fixture
    def write(self, tmp_path: Path, write_run: Callable) -> Callable:
        """Return `write(table, label, seed, seconds, top1=...)`, which writes a finished run."""

        def write(name: str, label: str, seed: int, seconds: float, **values: object) -> None:
            made = variant(name, label, **values.pop("given", {}))
            write_run(Experiment([made], [seed], tmp_path), made, seed, seconds, **values)

        return write

    def test_published_beside_measured(
        self, cli: Callable, tmp_path: Path, write: Callable
    ) -> None:
        """The baseline has two seeds, and multigrid one."""
        for label, seed, seconds, top1 in (
            ("baseline", 0, 3600.0, 70.0),
            ("baseline", 1, 7200.0, 72.0),
            ("multigrid", 1, 1800.0, 73.0),
        ):
            write("table4", label, seed, seconds, top1=top1, top5=90.0)
        status, out, _ = cli("table4", "--seeds", 0, 1, "--output", tmp_path)
        assert status == 0
        baseline, ours, views = (
            next(line for line in out.splitlines() if line.startswith(label)).split()
            for label in ("baseline", "multigrid  ", "multigrid, tested on 30 crops")
        )
        # top-1 published and measured (71 ± √2), top-5, speed-up published and measured, runs
        assert " ".join(baseline[7:]) == "72.5 71.0 ± 1.4 90.4 90.0 ± 0.0 – 1.00× 2 of 2"
        assert ours[7:] == ["72.5", "73.0", "90.4", "90.0", "3.3×", "4.00×", "1", "of", "2"]
        assert views[11:] == ["73.1", *"––––––"]  # nothing is trained for it
        baseline, ours, views = json.loads((tmp_path / "table4.json").read_text())["rows"]
        assert views["measured"] is None
        assert len(baseline["measured"]["runs"]) == 2
        assert ours["measured"]["speed_up"] == {"mean": pytest.approx(4.0), "std": None}
        assert ours["published"]["top1"]["mean"] == 72.5
        text = (tmp_path / "table4.md").read_text()
        assert "CPU: abacus, 2 cores" in text
        assert "multigrid-reproduce table4 --seeds 0 1" in text

    @pytest.mark.slow("plans all recipes of the paper")
    def test_where_the_data_was_need_not_be_given_to_read_results(
        self, cli: Callable, tmp_path: Path, write: Callable
    ) -> None:
        """Shortened baselines too: their lengths do not depend on the list that is found."""
        data = tmp_path / "kinetics"
        data.mkdir()
        (data / "train.csv").write_text("a.mp4 0\n" * 5_000)
        given = {"data": {"kinetics": str(data)}, "weights": {"imagenet": "r50.pkl"}}
        write("table3", "I3D, baseline at 1/3.3", 0, 60.0, top1=71.0, top5=89.0, given=given)
        status, out, err = cli("table3", "--output", tmp_path)
        assert (status, err) == (0, "")
        assert "71.0" in next(
            line for line in out.splitlines() if line.startswith("I3D, baseline at")
        )


@pytest.mark.parametrize(
    ("change", "way", "message"),
    [
        ("list", "--local", "train_list: 500 videos there, 900 here"),
        ("list", "--slurm", "train_list: 500 videos there, 900 here"),
        ("weights", "--slurm", r"weights: file a\.pth, content .* there, file b\.pth"),
        ("rate", "--local", r"SOLVER\.BASE_LR .* there, 0\.3 here"),
    ],
)
def test_results_of_another_list_weights_or_rate_are_not_used_and_nothing_is_started(
    cli: Callable,
    tmp_path: Path,
    write_run: Callable,
    tool: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    message: str,
    way: str,
) -> None:
    """A trial on a few videos has finished. The whole list has more."""
    for name, count in (("few", 500), ("whole", 900)):
        (tmp_path / name).mkdir()
        for split in ("train", "val", "test"):
            lines = "".join(f"{n}.mp4 0\n" for n in range(count if split == "train" else 8))
            (tmp_path / name / f"{split}.csv").write_text(lines)
    for name in ("a.pth", "b.pth"):
        torch.save({"x": torch.tensor([float(len(list(tmp_path.iterdir())))])}, tmp_path / name)
    made = variant(
        "table4",
        "baseline",
        data={"kinetics": str(tmp_path / "few")},
        weights={"imagenet": str(tmp_path / "a.pth")},
    )
    write_run(Experiment([made], [0], tmp_path / "out"), made, 0, 60.0, top1=30.0, top5=50.0)
    monkeypatch.setattr(tool, "train", None)
    monkeypatch.setattr(tool.slurm_jobs, "submit_experiment", None)
    data = tmp_path / ("whole" if change == "list" else "few")
    weights = tmp_path / ("b.pth" if change == "weights" else "a.pth")
    options = ["--kinetics", data, "--imagenet-weights", weights, "--output", tmp_path / "out"]
    options += ["SOLVER.BASE_LR", 0.3] if change == "rate" else []
    status, _, err = cli("table4", way, *["gpu"] * (way == "--slurm"), *options)
    assert status == 2
    assert re.search(message, err)
    assert not (tmp_path / "out" / "table4.md").exists()


def test_a_local_training_writes_reports(
    cli: Callable,
    tmp_path: Path,
    tool: ModuleType,
    write_run: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = {"baseline, 1× epochs": 100.0, "multigrid, 1.5× epochs": 25.0}

    def train_two(experiment: Experiment, run_net: Path) -> Iterator[None]:
        assert run_net.is_file()
        for label, time in seconds.items():
            [made] = [
                variant
                for variant in experiment.variants
                if variant.name == row("figure1", label).folder
            ]
            write_run(experiment, made, 0, time, top1=60.0, top5=80.0)
        yield

    monkeypatch.setattr(tool, "train", train_two)
    for split, videos in (("train", 4_000), ("val", 1), ("test", 1)):
        (tmp_path / f"{split}.csv").write_text("a.mp4 0\n" * videos)
    status, _, err = cli("figure1", "--local", "--output", tmp_path, "--kinetics", tmp_path)
    assert (status, err) == (0, "")
    assert (tmp_path / "figure1.png").read_bytes().startswith(b"\x89PNG")
    rows = json.loads((tmp_path / "figure1.json").read_text())["rows"]
    points = {row["label"]: row["measured"] for row in rows}
    assert points["multigrid, 1.5× epochs"]["speed_up"]["mean"] == pytest.approx(4)
    assert points["multigrid, 1.5× epochs"]["length"] == 1
    assert points["multigrid, 0.5× epochs"]["top1"] is None
