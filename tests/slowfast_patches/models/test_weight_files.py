"""Files that are no weights, or weights of another kind: one line that names the key to change."""

import pickle
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch
from torch import hub, nn

from slowfast_patches.models.weights import check_file, load_weights, weight_files


class Evil:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("executed"),))


PICKLE = pickle.dumps({"blobs": {"pred_b": np.zeros(4, np.float32)}}, protocol=2)


def written(content: object, path: Path) -> Path:
    torch.save(content, path)
    return path


def torch_bytes(content: object, folder: Path) -> bytes:
    return written(content, folder / "file").read_bytes()


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda f: PICKLE, "pytorch", "not a PyTorch checkpoint. .*_TYPE caffe2"),
        (lambda f: torch_bytes({}, f), "caffe2", "was written by PyTorch; set .*_TYPE pytorch"),
        (lambda f: b"", "pytorch", "starts with b''"),
        (lambda f: b"\n<!DOCTYPE html>", "pytorch", r"starts with b'\\n<!DOCTYPE html"),
        (lambda f: torch_bytes({"a": Evil()}, f), "pytorch", "more than weights"),
        (lambda f: torch_bytes({"a": torch.ones(999)}, f)[:900], "pytorch", "is damaged: "),
        (lambda f: torch_bytes({"epoch": 3}, f), "pytorch", "no weights.* epoch"),
        (lambda f: torch_bytes([1], f), "pytorch", "contains a list instead of a state dict"),
        (lambda f: b"no pickle", "caffe2", "cannot be read as a Caffe2 checkpoint: "),
        (lambda f: b"cos\nsystem\n.", "caffe2", "refused because it contains os.system"),
    ],
)
def test_a_file_of_another_kind(
    make: Callable[[Path], bytes],
    kind: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file"
    path.write_bytes(make(tmp_path))
    with pytest.raises(ValueError, match=f"{said}.*, change TEST.CHECKPOINT_FILE_PATH") as caught:
        load_weights(nn.Linear(2, 3), path, kind=kind, section="TEST")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()


def test_an_old_file_of_pytorch_is_read_and_as_safely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.chdir(tmp_path)
    model, path = nn.Linear(2, 3), tmp_path / "old.pth"
    torch.save(model.state_dict(), path)
    load_weights(model, path, complete=True)
    assert not caplog.records
    torch.save(model.state_dict(), path, _use_new_zipfile_serialization=False)
    load_weights(model, path, complete=True)
    (warning,) = caplog.records
    assert f"{path} has the format of torch before 1.6, which has no checksum" in (
        warning.getMessage()
    )
    torch.save({"a": Evil()}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match="more than weights"):
        load_weights(model, path)
    with pytest.raises(ValueError, match="set CHECKPOINT_TYPE pytorch"):
        load_weights(model, path, kind="caffe2")
    assert not (tmp_path / "executed").exists()


def test_a_file_that_is_not_there_or_is_a_folder(tmp_path: Path):
    with pytest.raises(ValueError, match=r"no such file. .*, change TEST\.CHECKPOINT_FILE_PATH"):
        check_file(tmp_path / "gone", section="TEST")
    with pytest.raises(ValueError, match=r"no such file. .*, change TRAIN\.CHECKPOINT_FILE_PATH"):
        check_file(tmp_path)


def without_tls(request: Request) -> object:
    return urlopen(request.full_url.replace("https:", "http:"))


def test_an_address_stays_within_the_cache_and_is_https(tmp_path, monkeypatch):
    monkeypatch.setenv("FVCORE_CACHE", str(tmp_path))
    fetched = list[Path]()
    monkeypatch.setattr(weight_files, "_download", lambda _, file: fetched.append(file))
    for path in ("a/../../../b.pyth", "..", "%2e%2e%2fb", "", 300 * "x"):
        weight_files.local_file(f"https://host/{path}")
    assert {file.resolve().parent for file in fetched} == {tmp_path}
    assert len(set(fetched)) == 5
    with pytest.raises(ValueError, match="give an https address"):
        check_file("http://host/a.pyth")


def test_an_address_is_fetched_once_and_read_as_any_file(tmp_path, monkeypatch):
    """After that the server may be gone; what is in the file is refused as in others."""
    monkeypatch.setattr(hub, "urlopen", without_tls)
    monkeypatch.setenv("FVCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "served").mkdir()
    model = nn.Linear(2, 2)
    written({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, tmp_path / "served" / "good.pyth")
    written({"a": Evil()}, tmp_path / "served" / "evil.pyth")
    (tmp_path / "served" / "page.pyth").write_text("\n<!doctype html>")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / "served")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"https://127.0.0.1:{server.server_address[1]}"
        check_file(f"{address}/good.pyth")
        with pytest.raises(ValueError, match=r"evil.pyth is refused: .*, change TRAIN.CHECKPOINT"):
            load_weights(model, f"{address}/evil.pyth")
        with pytest.raises(ValueError, match=r"page.pyth cannot be downloaded: .* web page"):
            check_file(f"{address}/page.pyth")
        with pytest.raises(ValueError, match=r"none.pyth cannot be down.*404.*, change TRAIN"):
            check_file(f"{address}/none.pyth")
        server.shutdown()
    load_weights(model, f"{address}/good.pyth")
    assert model.weight.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    with pytest.raises(ValueError, match=r"other.pyth cannot be downloaded: .*refused"):
        check_file(f"{address}/other.pyth")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, value):
    path = written({"weight": torch.ones(2, 2), "bias": torch.tensor([1.0, value])}, tmp_path / "w")
    with pytest.raises(ValueError, match=r"w has values .* not finite in bias. .*, change TEST"):
        load_weights(nn.Linear(2, 2), path, complete=True, section="TEST")
