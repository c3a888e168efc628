"""A cluster in numbers, published ones by name, and how long its GPUs take to add up what each of
them holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

__all__ = ["LATENCY", "MACHINES", "Cluster", "Preset", "ring_seconds"]

LATENCY = 20e-6
"""Seconds that one message takes besides its bytes, where nothing else is given: an assumption."""


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
        per_node = self.gpus_per_node
        speed = "above 0 GB/s (inf: no limit)"
        for option, value, is_fine, wanted in (
            ("--gpus", self.gpus, self.gpus >= 1, "1 or more"),
            ("--gpus-per-node", per_node, per_node >= 1, "1 or more"),
            ("--network", self.network / 1e9, self.network > 0, speed),
            ("--node-network", self.node_network / 1e9, self.node_network > 0, speed),
            ("--latency", 1e6 * self.latency, 0 <= self.latency < math.inf, "0 µs or more"),
        ):
            if not is_fine:
                raise ValueError(f"{option} is {wanted}, not {value:g}")
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

    def neighbours(self, gpus: int) -> Cluster:
        """A group of neighbouring ranks: in one node, on whole nodes, or, where it fits neither, at
        worst each on another node."""
        fits = self.gpus_of_node % gpus == 0 or gpus % self.gpus_of_node == 0
        return replace(self, gpus=gpus, gpus_per_node=self.gpus_of_node if fits else 1)

    def all_reduce_seconds(self, size: float) -> float:
        """Seconds until every GPU has the sum of what all hold, `size` bytes each.

        In three steps, as collective libraries do it on nodes of several GPUs: the GPUs of a node
        add up a part each (half a ring), the parts go around rings over the nodes, and each part
        goes back to the node's other GPUs (the other half). The rings over the nodes are of one
        part each and share the node's network, as one ring of the whole size would use it.
        """
        inside = ring_seconds(size, self.gpus_of_node, self.node_network, self.latency)
        return inside + ring_seconds(size, self.nodes, self.network, self.latency)


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
