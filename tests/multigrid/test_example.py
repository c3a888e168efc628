"""The method card's example runs as printed, and the API page lists every public name."""

from __future__ import annotations

import re
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import pytest
import torch

import multigrid

ROOT = Path(__file__).parents[2]
CARD = ROOT / "projects" / "multigrid" / "README.md"
API = ROOT / "docs" / "api.md"


@pytest.fixture(scope="module")
def example():
    blocks = re.findall(
        r"<!-- example -->\s*```python\n(.*?)```", CARD.read_text(encoding="utf-8"), re.DOTALL
    )
    assert len(blocks) == 1
    return blocks[0]


def run(example: str, lines: int | None = None) -> tuple[list[str], dict]:
    """Run the example, up to some number of printed lines; return these and its variables."""
    printed = list[str]()

    def note(line: str) -> None:
        printed.append(line)
        if len(printed) == lines:
            raise KeyboardInterrupt

    names = {"__name__": "example", "print": note}
    with nullcontext() if lines is None else pytest.raises(KeyboardInterrupt):
        exec(compile(example, CARD, "exec"), names)
    return printed, names


@pytest.fixture(scope="module")
def interrupted_run(example, tmp_path_factory):
    """Run the example, interrupted after its third phase and started again."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("example"))
        torch.set_num_threads(1)
        first, _ = run(example, lines=3)
        rest, names = run(example)
        torch.set_num_threads(threads)
    return [first, rest], names


@pytest.mark.slow("starts programs")
def test_the_example_runs_as_printed_and_goes_on_where_it_was_interrupted(interrupted_run):
    [first, [*phases, total]], _ = interrupted_run
    assert [line.split()[0] for line in first] == ["24×4×16²", "16×8×16²", "8×8×32²"]
    assert [line.split()[0] for line in phases] == ["8×8×32²"] * 2
    assert float(phases[-1].split()[-1]) < 0.3, "chance is a loss of 0.69"
    assert re.fullmatch(r"13\d iterations instead of 320", total)


@pytest.mark.slow("starts programs")
def test_the_loop_in_micro_batches_runs_as_printed(interrupted_run):
    """One iteration, in two halves."""
    _, names = interrupted_run
    (loop,) = re.findall(
        r"```python\n(schedule = .*?)```", CARD.read_text(encoding="utf-8"), re.DOTALL
    )
    seen = list[int]()
    names["model"].register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    names["optimizer"].register_step_post_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        exec(loop, names)
    assert seen == [names["schedule"].at(0).shape.batch // 2] * 2


def test_the_api_page_lists_everything_public_where_it_is_defined():
    """A name listed under another module would be missing from the page."""
    page = API.read_text(encoding="utf-8")
    listed = {
        name: module
        for module, names in re.findall(r"::: (\S+)\n +options: \{.*members: \[(.*)\]", page)
        for name in names.split(", ")
    }
    assert set(multigrid.__all__) - listed.keys() == set()
    for name, module in listed.items():
        assert getattr(getattr(import_module(module), name), "__module__", module) == module
