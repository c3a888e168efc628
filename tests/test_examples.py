"""The examples run as they stand, and stay short. On two processes, test_loops.py has the loops."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
import torch
from torch import nn

from multigrid import GENTLE, Shape
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe_cycles import cycles_of
from slowfast_patches.plan.recipe_schedule import schedule_of
from tests.conftest import one_block

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"

KEYS = shlex.split("""
    DATA.PATH_PREFIX / MODEL.NUM_CLASSES 22 TRAIN.BATCH_SIZE 4 TRAIN.EVAL_PERIOD 1
    MULTIGRID.BN_BASE_SIZE 4 MULTIGRID.EPOCH_FACTOR 1.0 SOLVER.MAX_EPOCH 2 SOLVER.STEPS [0,1]
    MULTIGRID.LONG_CYCLE_FACTORS [[0.5,0.71],[1.0,1.0]]
    RESNET.NUM_BLOCK_TEMP_KERNEL [[1,1],[1,1],[1,1],[1,1]]
""")

# Example, arguments after the data, number of processes, and what it says when it has validated.
RUNS = [
    ("plain.py", [], 1, r"accuracy 0\.\d{3}\n"),
    ("plain.py", [], 2, r"accuracy 0\.\d{3}\n"),
    ("accelerate_demo.py", [], 1, r"accuracy 0\.\d{3}\n"),
    ("lightning_demo.py", [], 1, r"(?s)Epoch 3/3 .* 4/4 .*accuracy: [01]\.\d+"),
    ("transformers_demo.py", [], 1, r"'eval_accuracy': '?0\.\d+"),
    ("finetune_videomae.py", ["out"], 1, r"'eval_accuracy': '?0\.\d+"),
    ("pyslowfast_demo.py", KEYS, 2, r'"_type": "val_epoch", "epoch": "(\d)/\1"'),
]


@pytest.fixture(scope="module")
def data(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny data set with 22 classes, of which eight have videos, and every training video
    listed three times: the examples' epochs are few."""
    folder = tmp_path_factory.mktemp("examples")
    for split, times in (("train", 3), ("val", 1)):
        lines = (tiny_data / f"{split}.csv").read_text().splitlines()
        pairs = [line.split() for line in lines * times]
        listed = "".join(f"{tiny_data}/{name} {int(label) + 14}\n" for name, label in pairs)
        (folder / f"{split}.csv").write_text(listed)
    (folder / "classes.json").write_text(json.dumps({f"class {n}": n for n in range(22)}))
    return folder


@pytest.fixture(scope="module")
def trained_model(data: Path) -> None:
    """A folder of a VideoMAE of two classes, as one that was downloaded."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3}
    grid = {"num_frames": 8, "image_size": 32, "tubelet_size": 2, "patch_size": 16}
    config = transformers.VideoMAEConfig(**sizes, **grid, intermediate_size=96, num_labels=2)
    model = transformers.VideoMAEForVideoClassification(config)
    model.save_pretrained(data / "model")
    colours = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.2, 0.2, 0.2]}
    (data / "model" / "preprocessor_config.json").write_text(json.dumps(colours))


def run_as_rank(rank: int, name: str, arguments: list[str], folder: Path) -> None:
    """Run an example, shortened, in a folder where it leaves what it says."""
    os.chdir(folder)
    sys.argv = [name, *arguments]
    with Path(f"said_{rank}").open("w") as said, contextlib.redirect_stdout(said):
        shutil.copy(EXAMPLES / "pyslowfast_demo.yaml", f"{rank}_pyslowfast_demo.yaml")
        program = Path(f"{rank}_{name}")
        text = (EXAMPLES / name).read_text()
        program.write_text(text.replace("EPOCHS = 20", "EPOCHS = 4"))
        runpy.run_path(str(program), run_name="__main__")


@pytest.mark.slow("starts programs")
@pytest.mark.parametrize(("name", "words", "processes", "said"), RUNS)
@pytest.mark.usefixtures("trained_model")
def test_an_example_runs(
    name: str,
    words: list[str],
    processes: int,
    said: str,
    data: Path,
    tmp_path: Path,
    run_ranks: Callable[..., None],
):
    for module in ("accelerate", "lightning", "transformers"):  # once, before forks
        pytest.importorskip(module)
    folders = [data / "model", data] if name == "finetune_videomae.py" else [data]
    with one_block():
        run_ranks(processes, run_as_rank, name, [*map(str, folders), *words], tmp_path)
    text = (tmp_path / "said_0").read_text()
    assert re.search(said, text), text


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow("trains for seconds")
def test_readme_s_loop_trains(data: Path, monkeypatch: pytest.MonkeyPatch):
    (loop,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(data)
    layers = [nn.Conv3d(3, 8, 3, 2), nn.BatchNorm3d(8), nn.AdaptiveAvgPool3d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(8, 22))
    before = model[0].weight.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer.register_step_post_hook(interrupt)
    names = {"model": model, "optimizer": optimizer}
    with pytest.raises(KeyboardInterrupt):
        exec(loop.replace("num_workers=4", "num_workers=0"), names)
    assert names["schedule"].epochs == 37.5
    assert names["schedule"].cycles is GENTLE
    assert names["clips"].sampling.options == GENTLE.sampling
    assert not torch.equal(model[0].weight, before)


def test_readme_s_line_switches_on_the_cycles_of_its_loop(tmp_path: Path):
    (line,) = re.findall(r"^(_BASE_: .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    (tmp_path / "mine.yaml").write_text(line)
    recipe = load_recipe(tmp_path / "mine.yaml")
    assert cycles_of(recipe) == GENTLE
    assert schedule_of(recipe, 640).shapes[0] == Shape(24, 8, 32)


SHORT = {
    "LENGTH = 1.0": "LENGTH = 0.22",
    'MORE = ""': 'MORE = "BN.USE_PRECISE_STATS False MULTIGRID.EVAL_FREQ 0 '
    'DATA.TRAIN_CROP_SIZE 32 DATA.TEST_CROP_SIZE 32 DATA_LOADER.NUM_WORKERS 0"',
}
PROGRAMS = {
    "multigrid-plan": "plan.py",
    "multigrid-train": "run_net.py",
    "multigrid-predict": "predict.py",
}


@pytest.fixture
def notebook(
    start_python: Callable[..., subprocess.Popen[str]],
    tiny_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[dict[str, str]], dict[str, object]]:
    """Return `notebook(changes)`, which runs the cells as printed and returns their variables.

    The commands run in forks. `changes` maps texts of the cells to what replaces them.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")

    def popen(command: list[str], **options: object) -> subprocess.Popen[str]:
        program, *words = command
        if program == "multigrid-demo-data":
            shutil.copytree(tiny_data, words[1])
            return start_python("-c", "print('24 videos made')", **options)
        return start_python(ROOT / "tools" / PROGRAMS[program], *words, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)

    def run(changes: dict[str, str]) -> dict[str, object]:
        names = dict[str, object]()
        for cell in nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4).cells:
            if cell.cell_type == "code":
                source = functools.reduce(
                    lambda text, pair: text.replace(*pair), changes.items(), cell.source
                )
                exec(source, names)
        return names

    return run


@pytest.mark.slow("runs a notebook")
def test_the_notebook_runs_and_each_command_shows_something(notebook, capsys):
    names = notebook(SHORT)
    said = capsys.readouterr().out
    assert "videos made" in said
    assert re.search(r"iterations +\d+ +\d+ +[\d.]+×", said), said  # of the plan
    for line in (
        r"phase 1 of \d: iterations 0 to",
        "validation after iteration",
        "test on 1 views",
    ):
        assert len(re.findall(line, said)) >= 2, said  # of each training
    assert len(names["pd"].read_csv("runs/quickstart/new.csv")) == 8
    assert Path("runs/quickstart/plan.png").exists()
    counts = [names["rows"][name]["iterations"] for name in ("multigrid", "baseline")]
    assert counts[0] == pytest.approx(counts[1], rel=0.1)


@pytest.mark.slow("runs a notebook")
def test_a_command_of_the_notebook_that_fails_shows_its_error(notebook):
    with pytest.raises(RuntimeError, match=r"SOLVER\.NO_SUCH_KEY is not a config key"):
        notebook({**SHORT, 'MORE = ""': 'MORE = "SOLVER.NO_SUCH_KEY 1"'})
