"""Tests of wrong weight files: the message is one line that names the key to change."""

from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from torch import nn

from slowfast_patches.models.weights import check_file, files, load_weights


class Evil:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("executed"),))


def written(content: object, path: Path) -> Path:
    torch.save(content, path)
    return path


def torch_bytes(content: object, folder: Path) -> bytes:
    return written(content, folder / "file").read_bytes()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda f: b"\n<!DOCTYPE html>", "is neither a file of PyTorch"),
        (lambda f: torch_bytes({"a": Evil()}, f), "more than weights"),
        (lambda f: torch_bytes({"a": torch.ones(999)}, f)[:900], "is damaged: "),
        (lambda f: torch_bytes({"epoch": 3}, f), "has no weights, neither"),
        (lambda f: b"\x80\x02cos\nsystem\n.", "it contains os.system, but only arrays"),
    ],
)
def test_a_file_without_weights(
    make: Callable[[Path], bytes], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file"
    path.write_bytes(make(tmp_path))
    with pytest.raises(ValueError, match=said) as caught:
        load_weights(nn.Linear(2, 3), path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()


def test_an_old_file_of_pytorch_is_read_as_safely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    model, path = nn.Linear(2, 3), tmp_path / "old.pth"
    torch.save(model.state_dict(), path, _use_new_zipfile_serialization=False)
    load_weights(model, path, complete=True)
    torch.save({"a": Evil()}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match="more than weights"):
        load_weights(model, path)
    assert not (tmp_path / "executed").exists()


def test_an_address_is_fetched_once_and_stays_within_the_cache(tmp_path, monkeypatch):
    """Later reads do not need the server."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("FVCORE_CACHE", str(cache))
    fetched = list[Path]()

    def fetch(address: str, file: str) -> None:
        if address.endswith("gone"):
            raise URLError("no such host")
        fetched.append(Path(file))
        written(nn.Linear(2, 2).state_dict(), Path(file))

    monkeypatch.setattr(files, "download_url_to_file", fetch)
    for path in ("a/../../../b.pyth", "..", 300 * "x") * 2:
        load_weights(nn.Linear(2, 2), f"https://host/{path}")
    assert {file.resolve().parent for file in fetched} == {cache}
    assert len(fetched) == len(set(fetched)) == 3
    for path in ("https://host/gone", tmp_path / "gone"):
        with pytest.raises(ValueError, match="gone"):
            check_file(path)


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path):
    path = written(
        {"weight": torch.ones(2, 2), "bias": torch.tensor([1.0, torch.nan])}, tmp_path / "w"
    )
    with pytest.raises(ValueError, match=r"w has values .* not finite in bias"):
        load_weights(nn.Linear(2, 2), path, complete=True)
