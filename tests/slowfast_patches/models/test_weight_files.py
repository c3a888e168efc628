"""Tests of wrong weight files: the message is one line that names the key to change."""

import io
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from torch import nn

from slowfast_patches.models.weights import check_file, files, load_weights


class Evil:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("executed"),))


def torch_bytes(content: object, *, old: bool = False) -> bytes:
    """Return a file of PyTorch, or of PyTorch before 1.6."""
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=not old)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\n<!DOCTYPE html>", "is neither a file of PyTorch"),
        (torch_bytes({"a": Evil()}), "more than weights"),
        (torch_bytes({"a": Evil()}, old=True), "more than weights"),
        (torch_bytes({"a": torch.ones(999)})[:900], "is damaged: "),
        (torch_bytes({"epoch": 3}), "has no weights, neither"),
        (b"\x80\x02cos\nsystem\n.", "it contains os.system, but only arrays"),
        (torch_bytes({"weight": torch.ones(3, 2), "bias": torch.full((3,), torch.nan)}), "in bias"),
    ],
)
def test_a_file_without_weights(
    content: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said) as caught:
        load_weights(nn.Linear(2, 3), path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()


def test_an_old_file_of_pytorch_is_read(tmp_path: Path):
    path = tmp_path / "old.pth"
    path.write_bytes(torch_bytes(nn.Linear(2, 3).state_dict(), old=True))
    load_weights(nn.Linear(2, 3), path, complete=True)


def test_an_address_is_fetched_once_and_stays_within_the_cache(tmp_path, monkeypatch):
    """Later reads do not need the server."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("FVCORE_CACHE", str(cache))
    fetched = list[Path]()

    def fetch(address: str, file: str) -> None:
        if address.endswith("gone"):
            raise URLError("no such host")
        fetched.append(Path(file))
        torch.save(nn.Linear(2, 2).state_dict(), file)

    monkeypatch.setattr(files, "download_url_to_file", fetch)
    for path in ("a/../../../b.pyth", "..", 300 * "x") * 2:
        load_weights(nn.Linear(2, 2), f"https://host/{path}")
    assert {file.resolve().parent for file in fetched} == {cache}
    assert len(fetched) == len(set(fetched)) == 3
    for path in ("https://host/gone", tmp_path / "gone"):
        with pytest.raises(ValueError, match="gone"):
            check_file(path)
