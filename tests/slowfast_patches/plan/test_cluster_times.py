"""The cluster model: rings, buckets behind backward, shared BN and reading, worked out by hand."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn

from multigrid import Shape, SteppedRate, make_schedule
from slowfast_patches.config import load_recipe
from slowfast_patches.models.build import build_model
from slowfast_patches.models.inputs import blank_inputs
from slowfast_patches.plan.cluster.gradients import (
    Bucket,
    Exchange,
    exchange_of_model,
    overlapped_seconds,
)
from slowfast_patches.plan.cluster.network import Cluster, ring_seconds
from slowfast_patches.plan.cluster.times import Machine, Times, add_up, bn_sharers

GB = 1e9
NOTHING = Exchange(lambda frames, crop: (), ())
LATE = Exchange(lambda frames, crop: (Bucket(4 * 10**9, 1.0),), ())
"""4 GB that are ready when backward ends: nothing hides them."""


def test_a_ring_by_hand():
    """4 members send 6 quarters of 100 MB: 150 MB at 1 GB/s, and 6 ms for the messages."""
    assert ring_seconds(100e6, 4, bandwidth=GB, latency=1e-3) == pytest.approx(0.156)
    assert ring_seconds(100e6, 2, bandwidth=GB, latency=1e-3) == pytest.approx(0.102)
    assert ring_seconds(100e6, 1, bandwidth=GB, latency=1e-3) == 0


def test_two_nodes_of_two_by_hand():
    """Inside: 2 halves of 2 GB at 4 GB/s. Between the nodes: 2 halves at 1 GB/s. 4 messages."""
    cluster = Cluster(4, 2, network=GB, node_network=4 * GB, latency=0.01)
    assert cluster.all_reduce_seconds(2 * GB) == pytest.approx(0.5 + 2 + 0.04)
    assert (cluster.nodes, cluster.gpus_of_node) == (2, 2)


@pytest.mark.parametrize(
    ("gpus", "inside", "over"),
    [(2, 2, 1), (4, 4, 1), (8, 4, 2), (3, 1, 3)],
)
def test_neighbours_are_in_a_node_where_they_fit(gpus, inside, over):
    group = Cluster(24, 4, network=GB).neighbours(gpus)
    assert (group.gpus_of_node, group.nodes) == (inside, over)


def test_three_buckets_behind_backward_by_hand():
    """2 s: ready after 2 of 8 s, there at 4; 4 s: from 4 to 8; 6 s: from the end of backward on."""
    buckets = [Bucket(10, 0.25), Bucket(20, 0.5), Bucket(30, 1.0)]
    assert overlapped_seconds(buckets, 8.0, lambda size: size / 5) == (12, 6)
    # At 2 bytes a second each waits for the one before: 2 to 7, to 17, to 32.
    assert overlapped_seconds(buckets, 8.0, lambda size: size / 2) == (30, 24)
    assert overlapped_seconds(buckets[:2], 8.0, lambda size: size / 5) == (6, 0)


def test_buckets_are_those_that_ddp_forms():
    """12 layers of 4 MB: DDP closes its first bucket at 1 MB, the others at 25 MB."""
    model = nn.Sequential(*(nn.Linear(1000, 1000) for _ in range(12)))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        network = nn.parallel.DistributedDataParallel(model)
        for _ in range(3):  # the first shows it the order in which gradients come
            network(torch.ones(1, 1000)).sum().backward()
        formed = network._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    finally:
        dist.destroy_process_group()
    flops = {str(i): 1.0 for i in range(12)}
    buckets = exchange_of_model(model, lambda frames, crop: flops).buckets(8, 32)
    assert [bucket.size for bucket in buckets] == [int(size) for size in formed.split(",")]
    assert len(buckets) == 3
    # The last layer's gradients are there after one twelfth of backward, seven more after eight.
    assert [bucket.ready for bucket in buckets] == pytest.approx([1 / 12, 8 / 12, 1])


def test_gradients_come_in_the_reverse_of_the_parameters_order(tiny_recipe):
    """In a SlowFast, module by module: what the buckets' readiness stands on."""
    cfg = load_recipe(tiny_recipe)
    model = build_model(cfg).train()
    names = {parameter: name for name, parameter in model.named_parameters()}
    came = list[str]()
    for parameter in names:
        parameter.register_post_accumulate_grad_hook(lambda p: came.append(names[p]))
    model([x.normal_() for x in blank_inputs((2, 8, 32), 2, "cpu")]).sum().backward()

    def modules(parameters: list[str]) -> list[str]:
        return list(dict.fromkeys(name.rpartition(".")[0] for name in parameters))

    assert len(came) == len(names)
    assert modules(came) == modules(list(names.values())[::-1])


@pytest.mark.parametrize(("clips", "bn_size", "gpus"), [(4, 8, 3), (3, 8, 8), (12, 8, 8)])
def test_a_bn_group_that_cannot_be_formed_is_refused(clips, bn_size, gpus):
    with pytest.raises(ValueError, match=f"{gpus} GPUs with {clips} clips each .* {bn_size} clips"):
        bn_sharers(clips, bn_size, gpus)


def test_shared_bn_by_hand():
    """4 GPUs with 2 of 8 clips: each of the 2 sums of a layer sends 6 messages of 1 ms, forward's
    of 2 numbers of 8 bytes for 500 channels (8 kB), backward's of 4 bytes."""
    cluster = Cluster(8, 8, network=GB, node_network=1e6, latency=1e-3)
    machine = Machine(cluster, Exchange(NOTHING.buckets, (500,)))
    times = machine.iteration(Shape(16, 8, 32), 8, lambda shape: 1.0)
    assert times.shared_bn == pytest.approx(0.012 + 1.5 * (0.008 + 0.004))
    assert machine.iteration(Shape(64, 8, 32), 8, lambda shape: 1.0).shared_bn == 0
    assert machine.iteration(Shape(16, 8, 32), None, lambda shape: 1.0).shared_bn == 0


def test_what_limits_is_what_would_take_longest_alone():
    """Computing takes 3 s; 4 GB between two nodes 4 s at 1 GB/s; 32 clips of a node 2 or 8 s."""

    def limit(network: float, rate: float | None) -> str:
        read = None if rate is None else (lambda frames, crop: rate)
        machine = Machine(Cluster(4, 2, network=network, latency=0), LATE, read)
        schedule = make_schedule(
            Shape(64, 8, 32), 640, SteppedRate((1.0,), (0.1,)), epoch_factor=1,
            long_cycle=(), short_cycle=(), bn_size=None,
        )  # fmt: skip
        (phase,) = schedule.phases
        total = machine.phase(phase, lambda shape: 3.0)
        assert total.seconds >= total.busy >= total.compute == 30
        return total.limit

    assert limit(math.inf, None) == "compute"
    assert limit(GB, None) == "all-reduce"
    assert limit(GB, 16) == "all-reduce"
    assert limit(2 * GB, 16) == "compute"
    assert limit(GB, 4) == "reading"


def short_cycle_times(rate: float) -> Times:
    """One GPU and node; 7 epochs of 8 clips are one short cycle of 32, 16 and 8 clips, 3 s each."""
    schedule = make_schedule(
        Shape(8, 8, 32), 8, SteppedRate((7.0,), (0.1,)), epoch_factor=1, long_cycle=(), bn_size=None
    )
    (phase,) = schedule.phases
    machine = Machine(Cluster(1, 1, network=GB), LATE, lambda frames, crop: rate)
    return machine.phase(phase, lambda shape: 3.0)


def test_loaders_read_ahead_over_a_short_cycle():
    """56 clips in 9 s: 8 a second are enough though the first batch takes 4 s; at 4 a second 5 s
    are waited for. One GPU exchanges nothing."""
    fast, slow = short_cycle_times(8), short_cycle_times(4)
    assert (fast.seconds, fast.waiting, fast.efficiency) == (9, 0, 1)
    assert (fast.all_reduce, fast.exposed, fast.shared_bn) == (0, 0, 0)
    assert fast.clips_per_second == pytest.approx(56 / 9)
    assert (slow.reading, slow.waiting, slow.seconds, slow.limit) == (14, 5, 14, "reading")
    assert slow.efficiency == pytest.approx(9 / 14)
    assert add_up([(fast, 2), (slow, 1)]).seconds == 32
