"""Run the GPU tests and every GPU measurement of docs/performance.md, in parts.

    make gpu

Each part takes at most eight minutes. A part writes benchmarks/results/gpu_PART.json, and is
skipped if that file exists. Repeat the command to continue after an interruption, or after a part
that failed or ran out of time: its output is in benchmarks/results/gpu_PART.log. gpu.md has a table
of the parts, and below it the tables that they printed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from common import ROOT, provenance

from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.tables import format_table

SECONDS = 480
"""Time limit of a part."""
KEYS = "NUM_GPUS 1 TRAIN.BATCH_SIZE 8 DATA_LOADER.NUM_WORKERS 0"
STEPS = (
    "{python} benchmarks/step_time.py --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml "
    "--seconds 5 --output {result} "
)
DEMO = "configs/Demo/SLOWFAST_DEMO.yaml", "configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml"


class Part(NamedTuple):
    """Commands that answer one question.

    {python}, {result} and {switches} are replaced. {result} is the JSON file of the part, and
    {switches} are the KEY VALUE pairs of the variant `all` that the part `host` measured. If no
    command writes {result}, the part writes what was printed.
    """

    question: str
    commands: tuple[str, ...]


PARTS: Mapping[str, Part] = {
    "tests": Part("Is everything right on a GPU?", ("{python} -m pytest -m gpu",)),
    "host": Part(
        "How fast is our model relative to PySlowFast's? (wanted: 3 × at every shape)",
        (f"{STEPS} --variants all plain host host_tf32 {KEYS}",),
    ),
    "schedule": Part(
        "What is the wall-clock speed-up of multigrid? (wanted: SlowFast 4.5 ×)",
        (f"{STEPS} {KEYS} {{switches}}",),
    ),
    "precision": Part(
        "What do the switches of precision bring?",
        (f"{STEPS} --variants plain tf32 mixed_precision {KEYS}",),
    ),
    "layout": Part(
        "What do the switches of layout and kernels bring?",
        (f"{STEPS} --variants plain cudnn_benchmark channels_last fused {KEYS}",),
    ),
    "compile": Part(
        "What does compilation bring?",
        (f"{STEPS} --variants plain compile {KEYS}",),
    ),
    "sizes": Part(
        "What do sizes that GPUs prefer bring, and what does saving memory cost?",
        (f"{STEPS} --variants plain size_divisor act_checkpoint {KEYS}",),
    ),
    "batchnorm": Part(
        "What does grouped BN cost? (wanted: at most 1.10 × nn.BatchNorm3d)",
        ("{python} benchmarks/batchnorm.py --dtype bfloat16 --output {result}",),
    ),
    "demo": Part(
        "How fast is a training, loading included? (wanted: under 10 % of each phase waiting)",
        (
            "{python} tools/make_demo_data.py --output runs/demo/data",
            "{python} tools/prepare_data.py --csv runs/demo/data/train.csv --csv "
            "runs/demo/data/val.csv --csv runs/demo/data/test.csv --output runs/demo/prepared",
            f"{{python}} tools/compare.py --cfg {DEMO[0]} --cfg {DEMO[1]} --output runs/demo_gpu "
            "DATA.PATH_TO_DATA_DIR runs/demo/prepared NUM_GPUS 1 DATA_LOADER.NUM_WORKERS 8",
        ),
    ),
}


@tool(interrupted="Interrupted. Repeat the command to continue")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the missing parts, write and print the table, and return the exit status."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results", metavar="DIR")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        raise ValueError("torch finds no GPU here. Run make gpu on a machine with CUDA")
    return run_parts(PARTS, args.output.resolve())


def run_parts(parts: Mapping[str, Part], folder: Path, seconds: float = SECONDS) -> int:
    """Run the parts without a result, write gpu.md, and return 1 if a result is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    states = dict[str, str]()
    for name, part in parts.items():
        result = folder / f"gpu_{name}.json"
        print(f"{name}: {part.question}", flush=True)
        states[name] = "done before" if result.exists() else _run(name, part, result, seconds)
        print(f"    {states[name]}", flush=True)
        _write_table(parts, states, folder)
    print(f"\nThe table is in {folder / 'gpu.md'}")
    return int(any(not (folder / f"gpu_{name}.json").exists() for name in parts))


def _run(name: str, part: Part, result: Path, seconds: float) -> str:
    """Run the commands of a part and return how it ended."""
    log = result.with_suffix(".log")
    start = time.monotonic()
    made = result.with_suffix(".part")  # complete results only are taken for results
    names = {"python": sys.executable, "result": str(made)}
    switches = _switches(result.with_name("gpu_host.json"))
    with log.open("w") as file:
        for command in part.commands:
            left = max(1.0, seconds - (time.monotonic() - start))
            # It also ends the processes that a command has started.
            limited = ["timeout", "--kill-after=20", f"{left:.0f}"]
            words = shlex.split(command.replace("{switches}", switches))
            words = limited + [word.format(**names) for word in words]
            status = subprocess.call(words, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
            if status:
                ended = "ran out of time" if status in (124, 137) else f"failed with {status}"
                return f"{ended}: see {log.name}"
    took = time.monotonic() - start
    if not made.exists():
        printed = log.read_text(encoding="utf-8", errors="replace").splitlines()
        content = {"commands": part.commands, "printed": printed[-20:], **provenance()}
        made.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    made.rename(result)
    return f"done in {took:.0f} s"


def _switches(result: Path) -> str:
    """Return the config overrides of the variant "all" in a result of step_time.py, or ""."""
    if not result.exists():
        return ""
    variants = json.loads(result.read_text(encoding="utf-8")).get("variants", [])
    keys: dict[str, object] = next((v["keys"] for v in variants if v["name"] == "all"), {})
    return " ".join(f"{key} {value}" for key, value in keys.items())


def _write_table(parts: Mapping[str, Part], states: Mapping[str, str], folder: Path) -> None:
    """Write gpu.md, a table with a row for each part, followed by the output of each part."""
    rows = [[name, parts[name].question, state] for name, state in states.items()]
    text = [format_table(["part", "question", "state"], rows, markdown=True)]
    for name in states:
        log = folder / f"gpu_{name}.log"
        if log.exists():
            printed = log.read_text(encoding="utf-8", errors="replace").strip()
            text.append(f"## {name}\n\n{printed}")
    (folder / "gpu.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
