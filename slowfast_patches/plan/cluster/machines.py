"""Published machines, as presets for `tools/plan.py --machine`: their numbers, and who says so."""

from __future__ import annotations

from typing import NamedTuple

from slowfast_patches.plan.cluster.network import Cluster

__all__ = ["MACHINES", "Preset"]


class Preset(NamedTuple):
    """A machine by name: one whole node of it, what it is, and the sources of its numbers."""

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
"""Another machine is another entry; `node_network` and `latency` may be left to their defaults."""
