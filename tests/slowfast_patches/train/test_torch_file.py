"""Files with a checksum: what is not as it was written never loads, and no write leaves a part."""

import errno
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slowfast_patches.models.weights import load_weights
from slowfast_patches.train import checkpoints
from slowfast_patches.utils import files, torch_file

CONTENT = {"iteration": 7, "weights": torch.arange(300.0), "nested": {"name": ["a", (1, None)]}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "whole.pyth"
    torch_file.save(CONTENT, path)
    assert [p.name for p in path.parent.iterdir()] == ["whole.pyth"]
    return path.read_bytes()


def test_it_is_an_ordinary_file_of_torch(whole: bytes, tmp_path: Path):
    path = tmp_path / "c.pyth"
    path.write_bytes(whole)
    torch_file.check(path)
    for options in ({}, {"mmap": True}):
        content = torch.load(path, weights_only=True, **options)
        assert torch.equal(content["weights"], CONTENT["weights"])
        assert content["nested"] == CONTENT["nested"]
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"sha256:")
    # sha256sum of all but the comment says the same
    head = path.with_name("head")
    head.write_bytes(whole[:-71])
    said = subprocess.run(["sha256sum", head], capture_output=True, text=True, check=True).stdout
    assert said.split()[0].encode() == whole[-64:]


def damaged(path: Path) -> bool:
    try:
        checkpoints.load(path)
    except ValueError as error:
        return str(path) in str(error)
    return False


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_byte_changed_anywhere_is_noticed(whole: bytes, tmp_path: Path, data: st.DataObject):
    # as often in the last 200 bytes, where the checksum is, as elsewhere
    places = st.integers(0, len(whole) - 1) | st.integers(len(whole) - 200, len(whole) - 1)
    at, by = data.draw(places), data.draw(st.integers(1, 255))
    changed = bytearray(whole)
    changed[at] ^= by
    path = tmp_path / "c.pyth"
    path.write_bytes(changed)
    assert damaged(path)


def test_every_bit_of_the_end_counts(whole: bytes, tmp_path: Path):
    path = tmp_path / "c.pyth"
    for at in range(len(whole) - 93, len(whole)):  # the end of the archive, then the checksum
        for bit in range(8):
            changed = bytearray(whole)
            changed[at] ^= 1 << bit
            path.write_bytes(changed)
            assert damaged(path), (at - len(whole), bit)


def test_cut_anywhere_it_is_noticed(whole: bytes, tmp_path: Path):
    path = tmp_path / "c.pyth"
    for size in {*range(0, len(whole), 61), *range(len(whole) - 100, len(whole))}:
        path.write_bytes(whole[:size])
        assert damaged(path), size
    path.write_bytes(whole + b"\0")
    assert damaged(path)


def test_files_of_others_have_none_and_load(tmp_path: Path):
    for number, old in enumerate((True, False)):
        path = tmp_path / f"{number}.pyth"
        torch.save({"a": 1}, path, _use_new_zipfile_serialization=not old)
        assert checkpoints.load(path) == {"a": 1}


def test_damaged_weights_start_no_training(whole: bytes, tmp_path: Path):
    path = tmp_path / "c.pyth"
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"c\.pyth is damaged.*TRAIN\.CHECKPOINT_FILE_PATH"):
        load_weights(torch.nn.Linear(2, 2), path)


# What the disk refuses.

LIMITED = """
import resource, sys, torch
from pathlib import Path
from slowfast_patches.utils import torch_file
path = Path(sys.argv[1])
for limit in sys.argv[2:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
    try:
        torch_file.save({"weights": torch.zeros(100_000)}, path)
    except OSError as error:
        print(error.errno, [p.name for p in path.parent.iterdir()])
"""


def test_a_file_too_large_leaves_the_one_before_and_no_part(tmp_path: Path):
    path = tmp_path / "c.pyth"
    torch_file.save({"before": 1}, path)
    limits = ["0", "100", "300000", "400900"]  # at the first byte, in a header, the data, the end
    command = [sys.executable, "-c", LIMITED, path, *limits]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{errno.EFBIG} ['c.pyth']"] * 4, done.stderr
    assert done.stderr == ""
    assert checkpoints.load(path) == {"before": 1}


def test_a_full_disk_is_said(tmp_path: Path):
    path = tmp_path / "c.pyth"
    (tmp_path / "c.pyth.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:
        torch_file.save(CONTENT, path)
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_what_fails_while_it_is_written_leaves_the_file_before(tmp_path: Path):
    path = tmp_path / "result.json"
    path.write_text("before")
    with pytest.raises(TypeError), files.written_whole(path) as file:
        file.writelines([b"aft", "no bytes"])
    assert path.read_text() == "before"
    with files.written_whole(path) as file:
        file.write(b"after")
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]
