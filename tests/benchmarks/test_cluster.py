"""Tests of predicted hours on a cluster: by hand, as in docs/cluster.md, and for wrong input."""

import json
from collections.abc import Callable
from pathlib import Path

import cluster as tool
import pytest
from cluster import Cluster, gpu_counts, on_cluster

from slowfast_patches.config import load_recipe

ROOT = Path(__file__).parents[2]
KINETICS = ROOT / "configs" / "Kinetics" / "SLOWFAST_8x8_R50_MULTIGRID.yaml"

GB = 1e9
FREE = ("--network", "inf", "--latency", "0")


@pytest.fixture
def plan(short_cycle_recipe: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict]:
    """Return the function `plan("--gpus", 2, ...)`, which returns the JSON of the tool.

    An iteration of the recipe takes 75 s. The row of that number of GPUs and its trainings are
    merged into the result.
    """

    def call(*arguments: object, cfg: Path = short_cycle_recipe, step: float = 75) -> dict:
        options = ("--cfg", cfg, "--step-seconds", step, "--json", *arguments)
        assert tool.main([*map(str, options)]) == 0
        found = json.loads(capsys.readouterr().out)
        (row,) = [r for r in found["rows"] if r["gpus"] == found["cluster"]["gpus"]]
        return found | row | row["trainings"]

    return call


def test_a_ring_by_hand():
    """Each of 4 members sends 6 quarters of 100 MB: 150 MB at 1 GB/s, and 6 messages of 1 ms."""
    cluster = Cluster(4, 1, network=GB, latency=1e-3)
    assert cluster.ring_seconds(100e6, 4, in_node=False) == pytest.approx(0.156)
    assert cluster.ring_seconds(100e6, 1, in_node=False) == 0


def test_two_nodes_of_two_by_hand():
    """A node sends 2 halves of 2 GB inside at 4 GB/s, and 2 halves to the other node at 1 GB/s."""
    cluster = Cluster(4, 2, network=GB, node_network=4 * GB, latency=0.01)
    assert cluster.all_reduce_seconds(2 * GB) == pytest.approx(0.5 + 2 + 0.04)


def test_two_buckets_behind_backward_by_hand():
    """Each bucket takes 1 s. A backward of 2 s hides the first one, and 0.5 s hide half of it."""
    bucket = 25 * 1024**2
    cluster = Cluster(2, 1, network=bucket, latency=0)
    assert cluster.exposed_seconds(2 * bucket, compute=3.0) == pytest.approx(1)
    assert cluster.exposed_seconds(2 * bucket, compute=0.75) == pytest.approx(1.5)


def test_shared_bn_by_hand():
    """4 GPUs share BN, so each of the 2 sums of a layer takes 6 messages of 1 ms.

    Forward sends 2 numbers of 8 bytes for each of 500 channels (8 kB), backward 2 of 4 bytes. The
    bandwidth is 1 MB/s in a node and 2 MB/s between nodes.
    """
    inside = Cluster(8, 8, network=2e6, node_network=1e6, latency=1e-3)
    assert inside.shared_bn_seconds((500,), 4) == pytest.approx(0.012 + 1.5 * 0.012)
    between = Cluster(12, 6, network=2e6, node_network=1e6, latency=1e-3)
    assert between.shared_bn_seconds((500,), 4) == pytest.approx(0.012 + 1.5 * 0.006)


@pytest.mark.slow
def test_hours_and_waiting_by_hand(plan):
    """Two GPUs take half the time of the baseline's 56 iterations of 75 s, without communication.

    At 0.1 clips a second, a node reads its 8 clips in 80 s.
    """
    found = plan("--gpus", 2, "--gpus-per-node", 1, *FREE, "--loader", 0.1)
    baseline, multigrid = found["baseline"], found["multigrid"]
    assert (found["nodes"], found["batch"], baseline["iterations"]) == (2, 16, 28)
    assert (baseline["compute"], baseline["waiting"]) == pytest.approx((28 * 75, 28 * 5))
    assert baseline["clips_per_second"] == pytest.approx(16 / 75)
    assert multigrid["iterations"] == 12
    assert multigrid["all_reduce"] == multigrid["shared_bn"] == 0
    assert found["speed_up"] == pytest.approx(28 * 80 / multigrid["seconds"])


@pytest.mark.slow
def test_too_few_iterations_and_too_small_a_batch_are_said_by_row(plan):
    stages = ("SOLVER.STEPS", "[0,4]", "SOLVER.LRS", "[1,0.1]", "MULTIGRID.LONG_CYCLE", True)
    few = (*stages, "DATA.NUM_TRAIN_VIDEOS", 1000, "TRAIN.BATCH_SIZE", 4)
    found = plan("--gpus", 2, "--gpus-per-node", 8, *FREE, *few)
    notes = {row["gpus"]: row["notes"] for row in found["rows"]}
    assert "BN over 4 clips" in notes[1]
    assert "BN over 4 clips" not in notes[2]
    assert any("iterations at its shape" in note for note in notes[8])
    assert "too short" in found["refused"]["2048"]


def documented(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """Check that docs/cluster.md shows a command and, verbatim, rows of the table that it prints.

    The row of the wanted number of GPUs has to be among them.
    """
    document = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    words = command.split()
    assert command in " ".join(document.replace("\\\n", " ").split())
    words[words.index("--cfg") + 1] = str(ROOT / words[words.index("--cfg") + 1])
    assert tool.main(words) == 0
    text = capsys.readouterr().out
    printed = [line.rstrip() for line in text.split("\n\n")[1].splitlines()]
    wanted = next(line for line in printed if line.startswith("→"))
    shown = next(part for part in document.split("\n\n") if wanted in part).splitlines()
    assert {line.removeprefix("    ").rstrip() for line in shown} <= set(printed)
    assert all(line in document for line in printed[:3])
    assert "promise no accuracy" in text


@pytest.mark.slow
def test_the_worked_example_is_what_the_document_shows(capsys):
    documented(
        capsys,
        "--cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml --step-seconds 0.427 --gpus 128 "
        "--gpus-per-node 8 --network 1.25 TRAIN.BATCH_SIZE 32 SOLVER.BASE_LR 0.05 "
        "SOLVER.WARMUP_START_LR 0.000125",
    )


@pytest.mark.slow
def test_the_plan_for_1536_gpus_is_what_the_document_shows(capsys):
    recipe = "--cfg configs/Kinetics/TSM_8x8_R50_1536GPU_MULTIGRID.yaml"
    summit = "--gpus 1536 --gpus-per-node 6 --network 23 --node-network 50"
    documented(capsys, f"{recipe} --step-seconds 0.359 {summit}")


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["NUM_SHARDS", 2],
        ["NUM_GPUS", 2, "SOLVER.REFERENCE_WORLD_SIZE", 8],
    ],
)
def test_a_recipe_is_the_same_however_its_gpus_are_written(overrides):
    """All recipes have 8 clips on each of 8 or 16 GPUs."""
    found = on_cluster(load_recipe(KINETICS, overrides), Cluster(32, 8, network=GB))
    assert (found.num_gpus, found.num_shards, found.train.batch_size) == (8, 4, 64)
    assert found.test.batch_size == 64


def test_the_numbers_of_gpus():
    assert gpu_counts(600, 3) == [1, 2, 3, *(2**i for i in range(2, 10)), 600, 1200, 1800]


TIMED = ("--gpus", "8", "--gpus-per-node", "8", "--network", "1", "--step-seconds", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "12"], "Use 8 or 16"),
        (["TRAIN.BATCH_SIZE", "12"], "BN"),
        (["NUM_GPUS", "3"], "TRAIN.BATCH_SIZE 8 is not divisible by"),
    ],
)
def test_mistakes_are_one_line_and_status_2(short_cycle_recipe, refused, arguments, message):
    assert message in refused(tool, ["--cfg", str(short_cycle_recipe), *TIMED, *arguments])
