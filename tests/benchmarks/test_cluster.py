"""Tests of estimated times on a cluster: by hand, and as in docs/cluster.md."""

import json
from pathlib import Path

import cluster as tool
import pytest
from cluster import Cluster

from slowfast_patches.config import load_recipe
from slowfast_patches.utils.errors import UserError

ROOT = Path(__file__).parents[2]
KINETICS = ROOT / "configs" / "Kinetics" / "SLOWFAST_8x8_R50_MULTIGRID.yaml"
SUMMIT = ROOT / "configs" / "Kinetics" / "TSM_8x8_R50_1536GPU_MULTIGRID.yaml"


def test_two_buckets_behind_backward_by_hand():
    """A node of 2 sends 2 halves of a bucket inside at 4 buckets/s, and 2 halves to the other node
    at 1 bucket/s: 0.25 s and 1 s, and 4 messages of 0.01 s.

    A backward of 2 s hides the first of two buckets, and 0.5 s hide a part of it.
    """
    bucket = 25 * 1024**2
    cluster = Cluster(2, 2, network=bucket, node_network=4 * bucket, latency=0.01)
    assert cluster.exposed_seconds(2 * bucket, compute=3.0) == pytest.approx(1.29)
    assert cluster.exposed_seconds(2 * bucket, compute=0.75) == pytest.approx(2.58 - 0.5)


def test_shared_bn_by_hand():
    """4 GPUs share BN, so each of the 2 sums of a layer takes 6 messages of 1 ms.

    Forward sends 2 numbers of 8 bytes for each of 500 channels (8 kB), backward 2 of 4 bytes. The
    bandwidth is 1 MB/s in a node and 2 MB/s between nodes.
    """
    inside = Cluster(1, 8, network=2e6, node_network=1e6, latency=1e-3)
    assert inside.shared_bn_seconds((500,), 4) == pytest.approx(0.012 + 1.5 * 0.012)
    between = Cluster(2, 6, network=2e6, node_network=1e6, latency=1e-3)
    assert between.shared_bn_seconds((500,), 4) == pytest.approx(0.012 + 1.5 * 0.006)


def test_hours_and_waiting_by_hand(short_cycle_recipe, capsys):
    """Two GPUs take half the time of the baseline's 56 iterations of 75 s, without communication.

    At 0.1 clips a second, a node reads its 8 clips in 80 s.
    """
    command = f"--cfg {short_cycle_recipe} --step-seconds 75 --json --gpus 2 --gpus-per-node 1"
    command += " --network inf --latency 0 --loader 0.1"
    assert tool.main(command.split()) == 0
    multigrid, baseline = json.loads(capsys.readouterr().out)
    assert (baseline["batch"], baseline["iterations"], multigrid["iterations"]) == (16, 28, 12)
    assert (baseline["compute"], baseline["waiting"]) == pytest.approx((28 * 75, 28 * 5))
    assert baseline["clips_per_second"] == pytest.approx(16 / 75)
    assert multigrid["all_reduce"] == multigrid["shared_bn"] == 0


@pytest.mark.slow("counts the operations of whole networks")
@pytest.mark.parametrize(
    "command",
    [
        f"--cfg {KINETICS} --step-seconds 0.427 --gpus 128 --gpus-per-node 8 --network 1.25 "
        "TRAIN.BATCH_SIZE 32 SOLVER.BASE_LR 0.05 SOLVER.WARMUP_START_LR 0.000125",
        f"--cfg {SUMMIT} --step-seconds 0.359 --gpus 1536 --gpus-per-node 6 --network 23 "
        "--node-network 50",
    ],
)
def test_the_examples_are_what_the_document_shows(capsys, command):
    document = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    assert command.replace(f"{ROOT}/", "") in " ".join(document.replace("\\\n", " ").split())
    assert tool.main(command.split()) == 0
    table = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert "\n".join(f"    {line.rstrip()}" for line in table) in document


def test_a_recipe_with_stages_is_refused():
    """The batch sizes of its rows are for one number of GPUs."""
    with pytest.raises(UserError, match=r"MULTIGRID\.STAGES .* a recipe with cycles"):
        tool.on_cluster(load_recipe("configs/Demo/STAGES_COOLDOWN.yaml"), 2, 8)
