"""A cluster on paper, published ones by name, and how long its GPUs take to add up what each of
them holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from slowfast_patches.utils.command_line import option_of

__all__ = ["BACKWARD", "LATENCY", "MACHINES", "Cluster", "Preset", "ring_seconds"]

LATENCY = 20e-6
"""Seconds that one message takes besides its bytes, where nothing else is given: an assumption."""

BACKWARD = 2 / 3
"""Share of backward in a step: for each product of forward it has two, for the inputs and for the
weights."""

_BUCKET = 25 * 1024**2
"""Bytes of gradients that DDP sends together, by default."""

_FLOAT, _DOUBLE = 4, 8
"""Bytes of a statistic."""


@dataclass(frozen=True)
class Cluster:
    """GPUs on nodes that are all alike.

    `network` is the bytes a second that a node sends, and at the same time receives;
    `node_network` those of one GPU to another of its node; `latency` the seconds of one message
    besides its bytes. With fewer GPUs than a node has, a part of one node is used.

    Raises ValueError for GPUs that are no whole number of nodes, and for numbers out of range.
    """

    gpus: int
    gpus_per_node: int
    network: float
    node_network: float = math.inf
    latency: float = LATENCY

    def __post_init__(self) -> None:
        for name in ("gpus", "gpus_per_node", "network", "node_network", "latency"):
            value = getattr(self, name)
            if not value > 0 and (name, value) != ("latency", 0):
                raise ValueError(f"{option_of(name)} must be above 0, not {value:g}")
        per_node = self.gpus_per_node
        if self.gpus > per_node and self.gpus % per_node:
            fewer = self.gpus // per_node * per_node
            raise ValueError(
                f"--gpus {self.gpus} is no whole number of nodes of --gpus-per-node {per_node}; "
                f"use {fewer} or {fewer + per_node} GPUs"
            )

    @property
    def nodes(self) -> int:
        return max(1, self.gpus // self.gpus_per_node)

    @property
    def gpus_of_node(self) -> int:
        """GPUs that are used on each node."""
        return min(self.gpus, self.gpus_per_node)

    def all_reduce_seconds(self, size: float) -> float:
        """Seconds until every GPU has the sum of what all hold, `size` bytes each.

        In three steps, as collective libraries do it on nodes of several GPUs: the GPUs of a node
        add up a part each (half a ring), the parts go around rings over the nodes, and each part
        goes back to the node's other GPUs (the other half). The rings over the nodes are of one
        part each and share the node's network, as one ring of the whole size would use it.
        """
        inside = ring_seconds(size, self.gpus_of_node, self.node_network, self.latency)
        return inside + ring_seconds(size, self.nodes, self.network, self.latency)

    def exposed_seconds(self, size: float, compute: float) -> float:
        """Seconds of the exchange of `size` bytes of gradients that a step of `compute` seconds
        does not hide.

        They travel in equal buckets. All but the last are sent beside backward, as far as its time
        reaches; the last has the first layers' gradients, which are there when backward ends.
        """
        buckets = math.ceil(size / _BUCKET)
        seconds = self.all_reduce_seconds(size / buckets)
        return max(seconds, buckets * seconds - BACKWARD * compute)

    def shared_bn_seconds(self, channels: tuple[int, ...], sharers: int) -> float:
        """Seconds of the two small sums of each BN layer, by its channels, over groups of
        neighbouring GPUs: in a node where groups fill it, else between nodes.

        Forward sums two moments of each channel in double precision, backward two sums in single.
        """
        inside = self.gpus_of_node % sharers == 0
        network = self.node_network if inside else self.network
        sizes = [2 * number * bytes_ for number in channels for bytes_ in (_DOUBLE, _FLOAT)]
        return sum(ring_seconds(size, sharers, network, self.latency) for size in sizes)


def ring_seconds(size: float, members: int, bandwidth: float, latency: float) -> float:
    """Seconds of a ring all-reduce of `size` bytes over `members`.

    Each sends 2 (n-1) messages of 1/n of the bytes to the next: n-1 to add up, n-1 to hand the sums
    around. `bandwidth` is the bytes a second of each member, `latency` the seconds of a message
    besides its bytes (Patarasuk and Yuan, 2009).
    """
    messages = 2 * (members - 1)
    return messages * (size / members / bandwidth + latency)


class Preset(NamedTuple):
    """A published machine: one whole node of it, what it is, and who says so."""

    node: Cluster
    what: str
    sources: str


MACHINES = {
    "summit": Preset(
        Cluster(gpus=6, gpus_per_node=6, network=23e9, node_network=50e9),
        what="Summit of Oak Ridge, 6 V100 a node, NVLink 2, dual-rail EDR InfiniBand",
        sources="OLCF, Summit User Guide, docs.olcf.ornl.gov/systems/summit_user_guide.html: "
        "'NVIDIA NVLink', the peak between two GPUs of a socket in one direction; 'System "
        "Interconnect', the injection bandwidth of a node; --latency is an assumption",
    ),
}
"""By the name that --machine takes. Another machine is another entry; `node_network` and `latency`
may be left to their defaults."""
