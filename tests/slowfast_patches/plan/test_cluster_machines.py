"""`plan --machine`: Summit's numbers by name, what is given beside them, and TSM on 1,536 GPUs."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from multigrid import Shape
from slowfast_patches.config import load_recipe
from slowfast_patches.config.schedule import rates_of_batch
from slowfast_patches.plan.cluster.gradients import exchange_of
from slowfast_patches.plan.cluster.machines import MACHINES
from slowfast_patches.plan.cluster.network import Cluster
from slowfast_patches.plan.cluster.plan import ClusterPlan, gpu_counts, on_cluster
from slowfast_patches.plan.cluster.report import cluster_json, format_cluster_plan
from slowfast_patches.plan.cluster.times import Machine

ROOT = Path(__file__).parents[3]
TSM = ROOT / "configs" / "Kinetics" / "TSM_8x8_R50_1536GPU_MULTIGRID.yaml"

PUBLISHED_NODE = 49 * 3600 + 55 * 60
PUBLISHED_1536 = 14 * 60 + 13
"""Seconds of the abstract of arXiv 1910.00932."""


@pytest.fixture(scope="module")
def tool(load_program: Callable[[str], ModuleType]) -> ModuleType:
    return load_program("tools/plan.py")


@pytest.fixture
def cluster(tool: ModuleType) -> Callable[..., Cluster]:
    """`cluster("--gpus", 12, ...)`: what the command line describes."""

    def find(*arguments: object) -> Cluster:
        options = ("--cfg", "x.yaml", "--step-seconds", 1, "--machine", "summit", *arguments)
        return tool.find_cluster(tool.parse_args([*map(str, options)]))

    return find


def test_a_machine_by_name_gives_its_numbers(cluster):
    found = cluster("--gpus", 12)
    assert (found.gpus, found.gpus_per_node, found.nodes) == (12, 6, 2)
    assert (found.network, found.node_network, found.latency) == (23e9, 50e9, 20e-6)


def test_what_is_given_beside_a_machine_wins(cluster):
    found = cluster("--gpus", 8, "--gpus-per-node", 4, "--network", 12.5, "--latency", 5)
    assert (found.gpus_per_node, found.network, found.node_network) == (4, 12.5e9, 50e9)
    assert found.latency == pytest.approx(5e-6)
    assert cluster("--gpus", 6, "--node-network", "inf").node_network == math.inf


def test_an_unknown_machine_is_refused_by_those_that_are_known(tool, capsys):
    with pytest.raises(SystemExit) as status:
        tool.main(["--cfg", "x.yaml", "--gpus", "6", "--machine", "sumit"])
    assert status.value.code == 2
    err = capsys.readouterr().err
    assert "invalid choice: 'sumit'" in err
    assert "summit" in err.replace("'sumit'", "")
    with pytest.raises(SystemExit):
        tool.main(["--help"])
    assert MACHINES["summit"].what in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--machine", "summit"], "--machine describes a cluster: give --gpus N"),
        (["--gpus", "6", "--network", "1"], "needs --gpus-per-node, too, or --machine summit"),
        (["--gpus", "2048", "--machine", "summit"], "use 2046 or 2052 GPUs"),
        (["--gpus", "6", "--machine", "summit", "--network", "0"], "--network is above 0"),
    ],
)
def test_mistakes_are_one_line(tool, short_cycle_recipe, capsys, arguments, message):
    options = ["--cfg", str(short_cycle_recipe), "--step-seconds", "1", *arguments]
    assert tool.main(options) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert message in err
    assert len(err.splitlines()) == 1


def test_nodes_of_six_from_one_gpu_to_all_whole_nodes():
    counts = [1, 2, 4, 6, 12, 24, 48, 96, 192, 384, 768, 1536, 2046]
    assert gpu_counts(6, 1536) == counts
    for gpus in counts:
        assert Cluster(gpus, 6, network=1e9).gpus == gpus


@pytest.fixture(scope="module")
def plan(tool: ModuleType) -> ClusterPlan:
    """Of the command that docs/cluster.md shows."""
    options = ("--cfg", TSM, "--step-seconds", 0.359, "--gpus", 1536, "--machine", "summit")
    args = tool.parse_args([*map(str, options)])
    return tool.plan_cluster(args, tool.find_cluster(args))


def test_the_report_names_the_machine_and_what_was_given_instead(plan):
    machine = format_cluster_plan(plan).splitlines()[1]
    assert machine.startswith("Machine: Summit of Oak Ridge, 6 V100")
    assert "Summit User Guide" in machine
    assert "as given" not in machine
    assert "Summit User Guide" in cluster_json(plan)["machine_sources"]
    slower = replace(plan.estimate.cluster, network=12.5e9, latency=5e-6)
    other = replace(plan, estimate=replace(plan.estimate, cluster=slower))
    line = format_cluster_plan(other).splitlines()[1]
    assert line.endswith("Not of the machine, but as given: --network, --latency.")
    unnamed = replace(plan, preset=None)
    assert "Machine:" not in format_cluster_plan(unnamed)
    assert cluster_json(unnamed)["machine"] is None


def test_tsm_on_1536_gpus_prints_what_the_document_shows(plan):
    _, phases, totals, rows, notes, *_ = format_cluster_plan(plan).split("\n\n")
    document = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    for line in "\n".join((phases, totals, rows)).splitlines():
        assert line.rstrip() in document, line
    lines = [line.split() for line in totals.splitlines()]
    assert ["iterations", "577", "1,953", "3.38×", "fewer"] in lines
    assert "97.3 MB of gradients" in notes
    assert "Lin et al. (2019) 12,288 of TSM without multigrid" in notes


def test_the_published_times_beside_the_models(plan):
    """One node is what went in; 1,536 GPUs come out 15 % short of 14 min 13 s, and docs say so."""
    rows = {row.cluster.gpus: row.estimate.baseline.total for row in plan.rows}
    assert rows[6].seconds == pytest.approx(PUBLISHED_NODE, rel=2e-4)
    error = rows[1536].seconds / PUBLISHED_1536 - 1
    assert error == pytest.approx(-0.152, abs=0.001)
    missing = (PUBLISHED_1536 - rows[1536].seconds) / rows[1536].iterations
    assert 1e3 * missing == pytest.approx(66, abs=0.5)
    perfect, worst = PUBLISHED_NODE / 32, 8 * PUBLISHED_1536
    assert perfect < rows[192].seconds < worst
    assert rows[192].seconds / 60 == pytest.approx(94.1, abs=0.05)


def test_an_iteration_of_tsm_by_hand():
    """docs/cluster.md: 63.7 ms of exchange, of which the last bucket's 11.3 ms are exposed.

    7.885056 MB in 510 messages between nodes and 10 inside: 10.4 ms; their bytes, 255/128 times at
    23 GB/s and 5/3 times at 50 GB/s: 0.683 and 0.263 ms.
    """
    machine = Machine(MACHINES["summit"].node.with_gpus(1536), exchange_of(load_recipe(TSM, [])))
    one = machine.iteration(Shape(12288, 8, 224), None, lambda shape: 0.359)
    assert 1e3 * one.exposed == pytest.approx(10.4 + 0.683 + 0.263, abs=0.002)
    assert 1e3 * one.all_reduce == pytest.approx(63.7, abs=0.06)


@pytest.mark.parametrize(("gpus", "rate"), [(6, 0.0075), (192, 0.24), (1536, 1.92)])
def test_rates_that_belong_to_clips_follow_the_cluster(gpus, rate):
    """0.01 for 64 clips; 8 on each GPU."""
    fitted = on_cluster(load_recipe(TSM, []), MACHINES["summit"].node.with_gpus(gpus))
    found = rates_of_batch(fitted).solver.base_lr
    assert found == pytest.approx(rate)
    assert fitted.train.batch_size == 48


def test_what_was_trained_depends_on_the_model_and_on_multigrid(plan):
    """The rows of up to 1,536 GPUs have 12,288 clips, as TSM was trained; multigrid 512."""

    def note(**changes: object) -> str:
        few = replace(plan, rows=plan.rows[:-1], **changes)
        return format_cluster_plan(few).partition("a batch has ")[2]

    smallest = "12,288 clips, 196,608 at multigrid's smallest shape: the paper trained 512"
    assert note().startswith(smallest)
    assert note(multigrid=False) == ""
    assert "TSM" not in note(architecture="slowfast")
    assert note(architecture="slowfast", multigrid=False) != ""
    assert "On 2,046 GPUs a batch has 16,368 clips" in format_cluster_plan(
        replace(plan, multigrid=False)
    )
