"""Damaged checkpoint files never load with wrong values, and writes are atomic."""

import resource
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train.checkpoint import Checkpoint
from tests.slowfast_patches.train.made_checkpoint import made

WEIGHTS = torch.arange(300.0)
GIVEN = {"iteration": 7, "class_names": ("a", "b"), "best": {"nested": ["a", (1, None)]}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    return checkpoints.save(folder, made(model_state={"weights": WEIGHTS}, **GIVEN)).read_bytes()


def test_what_is_not_a_checkpoint_of_this_version_is_refused(tmp_path):
    path = tmp_path / "c.pyth"
    torch.save(vars(made()) | {"version": 0}, path)
    with pytest.raises(ValueError, match=f"^{path} was not written by this version"):
        checkpoints.load(path)


def load_changed(path: Path, content: bytes) -> Checkpoint | None:
    """What a file with this content holds; None where an error says that it is damaged."""
    path.write_bytes(content)
    with suppress(ValueError):
        return checkpoints.load(path)
    return None


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_byte_changed_anywhere_is_noticed_or_means_nothing(whole, tmp_path, data):
    """Besides entries, an archive has names, sizes and offsets, and bytes that are never read."""
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    found = load_changed(tmp_path / "c.pyth", changed)
    if found is not None:
        assert replace(found, model_state={}) == made(**GIVEN)
        assert torch.equal(found.model_state["weights"], WEIGHTS)


def test_cut_anywhere_it_is_noticed(whole, tmp_path):
    path = tmp_path / "c.pyth"
    for size in {*range(0, len(whole), 271), *range(len(whole) - 30, len(whole))}:
        assert load_changed(path, whole[:size]) is None, size


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("executed"),))


def test_nothing_in_a_file_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model_state": Evil()}, tmp_path / "evil.pyth")
    with pytest.raises(ValueError, match="cannot be read as a PyTorch checkpoint"):
        checkpoints.load(tmp_path / "evil.pyth")
    assert not (tmp_path / "executed").exists()


def test_a_file_too_large_leaves_the_one_before_and_no_part(tmp_path):
    path = checkpoints.save(tmp_path, made(iteration=7))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = made(iteration=7, model_state={"weights": torch.zeros(100_000)})
    # at the first byte, at the edge of what is buffered, in the data, at the end
    for most in (0, 8192, 300_000, 400_900):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
            with pytest.raises(OSError, match="File too large"):
                checkpoints.save(tmp_path, large)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(path.parent.iterdir()) == [path]
    assert checkpoints.load(path) == made(iteration=7)


@pytest.mark.parametrize(("kept", "stay"), [(3, [6, 10, 12, 14]), (0, [2, 4, 6, 8, 10, 12, 14])])
def test_the_last_and_those_at_phase_ends_stay(tmp_path, kept, stay):
    for iteration in range(2, 15, 2):
        last = checkpoints.save(tmp_path, made(iteration=iteration), kept, {6, 12, 18})
        assert checkpoints.last_checkpoint(tmp_path) == last
    assert [int(path.stem[-8:]) for path in checkpoints.all_checkpoints(tmp_path)] == stay


def test_the_best_is_not_one_that_a_run_continues_from_and_goes_aside_with_them(tmp_path):
    checkpoints.save(tmp_path, made(iteration=2, optimizer_state=None))
    best = checkpoints.best_checkpoint(tmp_path)
    assert checkpoints.last_checkpoint(tmp_path) is None
    checkpoints.save(tmp_path, made(iteration=3))
    assert checkpoints.load(best).iteration == 2
    assert checkpoints.checkpoint_of(tmp_path) == best
    (tmp_path / "checkpoints_before_1").mkdir()
    assert checkpoints.move_earlier_checkpoints(tmp_path) == tmp_path / "checkpoints_before_2"
    with pytest.raises(ValueError, match="There is no checkpoint"):
        checkpoints.checkpoint_of(tmp_path)
