"""A damaged checkpoint never loads as something else, and no write leaves a part."""

import errno
import pickle
import resource
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slowfast_patches.models.weights import load_weights
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train.checkpoint import Checkpoint
from tests.slowfast_patches.train.made_checkpoint import made

WEIGHTS = torch.arange(300.0)
GIVEN = {"iteration": 7, "class_names": ("a", "b"), "best": {"nested": ["a", (1, None)]}}


def is_content(found: Checkpoint) -> bool:
    weights = found.model_state.get("weights", torch.empty(0))
    return replace(found, model_state={}) == made(**GIVEN) and torch.equal(weights, WEIGHTS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = checkpoints.save(
        tmp_path_factory.mktemp("whole"), made(model_state={"weights": WEIGHTS}, **GIVEN)
    )
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    return path.read_bytes()


def test_it_is_an_ordinary_file_of_torch_with_checksums(whole: bytes, tmp_path: Path):
    path = tmp_path / "c.pyth"
    path.write_bytes(whole)
    assert is_content(Checkpoint(**torch.load(path, weights_only=True, mmap=True)))
    with zipfile.ZipFile(path) as archive:
        assert all(entry.CRC for entry in archive.infolist())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 0}, "has version 0; this trainer reads 1"),
        ({"version": None}, "was not written by this trainer"),
        ({"iteration": "7"}, "is not a valid checkpoint: iteration"),
        ({"cfg": None, "model_state": torch.zeros(1)}, "checkpoint: cfg, model_state"),
        ({"other": 1}, "is not a valid checkpoint: more fields"),
    ],
)
def test_what_is_not_a_checkpoint_of_this_version_is_refused(tmp_path: Path, change, said):
    path = tmp_path / "c.pyth"
    torch.save(vars(made()) | change, path)
    with pytest.raises(ValueError, match=f"^{path} .*{said}"):
        checkpoints.load(path)


def loaded(path: Path) -> Checkpoint | None:
    """What is in a file; None where an error says which is none."""
    try:
        return checkpoints.load(path)
    except ValueError as error:
        if str(path) not in str(error):
            raise
        return None


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_byte_changed_anywhere_is_noticed_or_means_nothing(
    whole: bytes, tmp_path: Path, data: st.DataObject
):
    """Beside the entries, an archive has names, sizes and offsets, and bytes that nobody reads."""
    at, by = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(1, 255))
    changed = bytearray(whole)
    changed[at] ^= by
    path = tmp_path / "c.pyth"
    path.write_bytes(changed)
    found = loaded(path)
    assert found is None or is_content(found)


def test_cut_anywhere_it_is_noticed(whole: bytes, tmp_path: Path):
    path = tmp_path / "c.pyth"
    for size in {*range(0, len(whole), 271), *range(len(whole) - 30, len(whole))}:
        path.write_bytes(whole[:size])
        assert loaded(path) is None, size


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("executed"),))


def test_nothing_in_a_file_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model_state": Evil()}, tmp_path / "evil.pyth")
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Evil()))
    for name in ("evil.pyth", "evil.pkl"):
        with pytest.raises(ValueError, match="cannot be read as a PyTorch checkpoint"):
            checkpoints.load(tmp_path / name)
    assert not (tmp_path / "executed").exists()


def test_damaged_weights_start_no_training(whole: bytes, tmp_path: Path):
    path = tmp_path / "c.pyth"
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"c\.pyth is damaged.*TRAIN\.CHECKPOINT_FILE_PATH"):
        load_weights(torch.nn.Linear(2, 2), path)


# What the disk refuses.


def test_a_file_too_large_leaves_the_one_before_and_no_part(tmp_path: Path):
    path = checkpoints.save(tmp_path, made(iteration=7))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # at the first byte, at the edge of what is buffered, in the data, at the end
    for most in (0, 8192, 300_000, 400_900):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
            with pytest.raises(OSError) as caught:
                checkpoints.save(
                    tmp_path, made(iteration=7, model_state={"weights": torch.zeros(100_000)})
                )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert caught.value.errno == errno.EFBIG
    assert list(path.parent.iterdir()) == [path]
    assert checkpoints.load(path) == made(iteration=7)
