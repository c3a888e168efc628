"""Measure how much rounding changes a training on other processes, threads or processors.

    python benchmarks/rounding.py --output runs/rounding

A short multigrid training of the demo's SlowFast takes the same clips in the same order in each
variant: on one process with one thread, on one process with two threads, on 2, 3 and 4 processes
with gloo, and with the instructions of an older processor. Each variant is compared with the first
one. "again" repeats the first one, and should not differ. "another seed" shows how much the result
depends on the seed.

The table has the number of tensors that differ in any bit at the end, among the weights, the BN
statistics and the state of the optimizer. It also has relative differences |a - b| / |b|: of all
weights and statistics together, after the first phase and at the end, and of the training loss, in
the first and in the worst iteration. The last column is the accuracy of the test.

If the folder has a finished variant, it is not trained again. KEY VALUE pairs of the recipe may
follow the options, except for TRAIN.BATCH_SIZE, which the program sets.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from common import ROOT, Column, provenance, table, write_result
from torch import Tensor
from torch.utils._pytree import keystr, tree_leaves_with_path

from slowfast_patches.utils.command_line import add_option, add_overrides, command_parser, tool
from slowfast_patches.utils.errors import RunError

RECIPE = ROOT / "configs" / "Demo" / "SLOWFAST_DEMO_MULTIGRID.yaml"
CLIPS = 24
"""Clips per iteration. 1, 2, 3 and 4 processes can divide them into whole BN groups."""
KEYS: tuple[object, ...] = (
    *("DATA.NUM_FRAMES", 8, "DATA.TRAIN_CROP_SIZE", 48, "DATA.TEST_CROP_SIZE", 48),
    *("DATA.TRAIN_JITTER_SCALES", [48, 57], "SLOWFAST.ALPHA", 4, "MULTIGRID.BN_BASE_SIZE", 2),
    *("MULTIGRID.LONG_CYCLE_FACTORS", [[0.5, 0.7071], [1, 1]], "SOLVER.BASE_LR", 0.03),
    *("SOLVER.MAX_EPOCH", 15, "SOLVER.STEPS", [0, 12], "TRAIN.CHECKPOINTS_KEPT", 0),
    *("BN.NUM_BATCHES_PRECISE", 2, "DATA_LOADER.NUM_WORKERS", 0, "LOG_PERIOD", 1),
)
OLD = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
"""Environment variables by which PyTorch and oneDNN use no AVX."""


@dataclass(frozen=True)
class Variant:
    """One way to run the training.

    Attributes:
        name: Name in the table.
        processes: Number of processes.
        threads: Number of threads of each process.
        environment: More environment variables.
        keys: More keys of the recipe.
    """

    name: str
    processes: int = 1
    threads: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[object, ...] = ()


VARIANTS = (
    Variant("1 process, 1 thread"),
    Variant("again"),
    Variant("1 process, 2 threads", threads=2),
    Variant("2 processes", 2),
    Variant("3 processes", 3),
    Variant("4 processes", 4),
    Variant("without AVX", environment=OLD),
    Variant("another seed", keys=("RNG_SEED", 2)),
)
COLUMNS: dict[str, Column] = {
    "training": ("name", str),
    "tensors that differ": ("end|text", str),
    "first loss": ("loss|first", "{:.1e}".format),
    "worst loss": ("loss|largest", "{:.1e}".format),
    "weights after the first phase": ("first|weights", "{:.1e}".format),
    "weights at the end": ("end|weights", "{:.1e}".format),
    "top-1": ("top1", "{:.1f} %".format),
}


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = command_parser(__doc__ or "")
    add_option(parser, "--output", "DIR", "folder (%(default)s)", Path, Path("runs/rounding"))
    names = [variant.name for variant in VARIANTS[1:]]
    text = "compare only these with the first one (all)"
    parser.add_argument("--variants", nargs="+", choices=names, default=names, help=text)
    add_overrides(parser, "config keys to set")
    return parser.parse_args(argv)


def train(variant: Variant, folder: Path, data: Path, keys: Sequence[object]) -> None:
    """Train a variant in a new folder.

    Raises:
        RunError: A process failed.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    words: list[object] = [sys.executable, ROOT / "tools" / "run_net.py", "--cfg", RECIPE]
    if variant.processes > 1:
        words += ["--init-method", address, "--num-shards", variant.processes]
    size = ("TRAIN.BATCH_SIZE", CLIPS // variant.processes, "DATA.PATH_TO_DATA_DIR", data)
    rest = (*KEYS, *variant.keys, *keys, *size, "OUTPUT_DIR", folder)
    # Waiting threads sleep, because other programs may need the cores.
    threads = {"OMP_NUM_THREADS": str(variant.threads), "OMP_WAIT_POLICY": "passive"}
    environment = os.environ | threads | {"GLOO_SOCKET_IFNAME": "lo"} | dict(variant.environment)
    processes = []
    for rank in range(variant.processes):
        shard = ("--shard-id", rank) if variant.processes > 1 else ()
        command = [str(word) for word in (*words, *shard, *rest)]
        processes.append(subprocess.Popen(command, env=environment, stdout=sys.stderr))
    statuses = [process.wait() for process in processes]
    if any(statuses):
        raise RunError(f"the training of {variant.name} failed. See its messages above")


def tensors_of(path: Path) -> dict[str, Tensor]:
    """Return weights, BN statistics and state of the optimizer of a checkpoint, by name."""
    content = torch.load(path, weights_only=True)
    state = [(name, content[name]) for name in ("model_state", "optimizer_state")]
    return {
        f"{name}{keystr(place)}": leaf
        for name, part in state
        for place, leaf in tree_leaves_with_path(part)
        if isinstance(leaf, Tensor)
    }


def difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Any]:
    """Compare tensors by name.

    Returns:
        The number of tensors that differ, the number of all tensors, and the relative difference of
        all weights and BN statistics together.
    """
    assert found.keys() == expected.keys()
    differ = sum(not torch.equal(found[name], expected[name]) for name in found)
    names = [n for n in found if n.startswith("model_state") and found[n].is_floating_point()]
    ours, theirs = (
        torch.cat([tensors[name].double().flatten() for name in names])
        for tensors in (found, expected)
    )
    return {
        "differ": differ,
        "tensors": len(found),
        "text": f"{differ} of {len(found)}",
        "weights": float((ours - theirs).norm() / theirs.norm()),
    }


def compare(name: str, folder: Path, reference: Path) -> dict[str, Any]:
    """Compare the output folder of a variant with that of the first one."""
    paths = sorted(folder.glob("checkpoints/checkpoint_iter_*.pyth"))
    first, end = (
        difference(tensors_of(path), tensors_of(reference / path.relative_to(folder)))
        for path in (paths[0], paths[-1])
    )
    losses, others = (
        [line["loss"] for line in lines(path) if line["type"] == "train"]
        for path in (folder, reference)
    )
    apart = [abs(a - b) / b for a, b in zip(losses, others, strict=True)]
    return {
        "name": name,
        "iterations": len(losses),
        "first": first,
        "end": end,
        "loss": {"first": apart[0], "largest": max(apart)},
        "top1": json.loads((folder / "result.json").read_text())["top1"],
    }


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@tool
def main(argv: Sequence[str] | None = None) -> int:
    """Train each variant, print the table, write the result, and return the exit status."""
    args = parse_args(argv)
    data = args.output / "data"
    if not data.exists():
        # Import lazily, because this is an extra that the tests of this file do not need.
        from slowfast_patches.extras.demo.spec import DemoSpec
        from slowfast_patches.extras.demo.synthetic import make_demo_data

        make_demo_data(data, DemoSpec(train=160, val=48, test=96), 1)
    variants = [VARIANTS[0], *(each for each in VARIANTS if each.name in args.variants)]
    folders = [args.output / variant.name.replace(" ", "_") for variant in variants]
    rows = []
    for variant, folder in zip(variants, folders, strict=True):
        if not (folder / "result.json").exists():
            train(variant, folder, data, args.overrides)
        rows.append(compare(variant.name, folder, folders[0]))
        print(table(rows[-1:], COLUMNS), file=sys.stderr)
    print(f"{rows[0]['iterations']} iterations\n\n{table(rows, COLUMNS, markdown=True)}")
    result = {"rows": rows} | provenance()
    write_result(args.output / "rounding.json", "rounding.py", argv, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
