"""A cluster in numbers, and how long its GPUs take to add up what each of them holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

__all__ = ["LATENCY", "Cluster", "ring_seconds"]

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
        for name in ("gpus", "gpus_per_node"):
            if getattr(self, name) < 1:
                option = "--" + name.replace("_", "-")
                raise ValueError(f"{option} is 1 or more, not {getattr(self, name)}")
        for name in ("network", "node_network"):
            if not getattr(self, name) > 0:
                option = "--" + name.replace("_", "-")
                speed = getattr(self, name) / 1e9
                raise ValueError(f"{option} is above 0 GB/s (inf: no limit), not {speed:g}")
        if not (self.latency >= 0 and math.isfinite(self.latency)):
            microseconds = 1e6 * self.latency
            raise ValueError(f"--latency is 0 microseconds or more, not {microseconds:g}")
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

    def with_gpus(self, gpus: int) -> Cluster:
        """As many GPUs on nodes of this kind."""
        return replace(self, gpus=gpus)

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
