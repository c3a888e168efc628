"""Tests of wrong weight files: the message is one line that names the key to change."""

import io
import itertools
import zipfile
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from slowfast_patches.models.weights import check_file, load_weights, local_file, weight_files
from slowfast_patches.models.weights.weight_files import check_no_program, digest_of, read_weights
from slowfast_patches.utils.errors import UserError


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


class Answer(io.BytesIO):
    """Answer of a server. `length` is what it announces."""

    def __init__(self, content: bytes, length: int | None = None) -> None:
        super().__init__(content)
        self.headers = {"Content-Length": str(len(content) if length is None else length)}


@pytest.mark.parametrize(
    ("content", "missing", "said"),
    [
        (torch_bytes({"a": torch.zeros(9)}), 5, "the connection broke after"),
        (b"<html>Please log in.</html>", 0, "neither a file of PyTorch"),
        (b"", 0, "neither a file of PyTorch"),
    ],
)
def test_a_broken_download_is_not_kept(content, missing, said, tmp_path, monkeypatch):
    monkeypatch.setenv("FVCORE_CACHE", str(tmp_path))
    answers = [Answer(content, len(content) + missing)]
    monkeypatch.setattr(weight_files, "urlopen", lambda *_, **__: answers.pop())
    with pytest.raises(UserError, match=f"^https://host/w.pyth cannot be downloaded: .*{said}"):
        check_file("https://host/w.pyth")
    assert not list(tmp_path.iterdir())
    whole = torch_bytes(nn.Linear(2, 2).state_dict())
    answers.append(Answer(whole))
    check_file("https://host/w.pyth")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [whole]


def test_a_server_that_sends_too_slowly_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setenv("FVCORE_CACHE", str(tmp_path))
    times = itertools.count(0, 50)
    monkeypatch.setattr(weight_files.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(weight_files, "urlopen", lambda *_, **__: Answer(bytes(20_000)))
    monkeypatch.setattr(weight_files, "_BLOCK", 100)
    with pytest.raises(UserError, match="the server sent only 200 bytes in 100 s"):
        check_file("https://host/w.pyth")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("address", ["http://host/w.pyth", "ftp://host/w", "s3://bucket/w.pyth"])
def test_other_addresses_are_refused(address):
    with pytest.raises(UserError, match=f"^{address} cannot be read. Give an https address"):
        check_file(address)


def test_weights_of_the_package_are_found_by_name_unless_a_file_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(weight_files, "_SHIPPED", tmp_path / "package")
    monkeypatch.setattr(weight_files, "SHIPPED", ("words-small",))
    shipped = tmp_path / "package" / "words-small" / weight_files.WEIGHTS_FILE
    shipped.parent.mkdir(parents=True)
    shipped.touch()
    assert local_file("words-small") == local_file(shipped.parent) == shipped
    assert local_file("words-large") == Path("words-large")
    Path("words-small").touch()
    assert local_file("words-small") == Path("words-small")


def test_a_program_of_torchs_export_is_refused_and_nothing_else(tmp_path):
    path = tmp_path / "a.pt2"
    check_no_program(path)  # there is no such file
    path.write_bytes(b"no archive")
    check_no_program(path)
    for name in ("model/archive_format", "model/data.pkl"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, "pt2")
        if name.endswith("format"):
            with pytest.raises(UserError, match="is a program that --export has written"):
                check_no_program(path)
    check_no_program(path)


def test_the_digest_depends_on_names_shapes_types_and_values_but_not_on_the_order():
    ones = torch.ones(2, 3)
    others = [
        {"b": ones, "a": torch.zeros(2)},
        {"a": ones, "b": torch.zeros(3)},
        {"a": ones.view(3, 2), "b": torch.zeros(2)},
        {"a": ones, "b": torch.zeros(2, dtype=torch.int32)},
        {"a": 2 * ones, "b": torch.zeros(2)},
    ]
    digest = digest_of({"a": ones, "b": torch.zeros(2)})
    transposed = torch.ones(3, 2).t()
    assert digest_of({"b": torch.zeros(2), "a": transposed}) == digest
    assert len({digest, *map(digest_of, others)}) == 6


@pytest.mark.parametrize(
    ("config", "is_read"),
    [
        ('{{"recipe": {{}}, "weights": "{digest}"}}', True),
        ('{{"recipe": {{}}, "weights": "another"}}', False),
        ('{{"weights": "another"}}', True),  # of another program
        ('{{"recipe": {{}}}}', True),  # the user has deleted the entry
        ("[]", True),
        ("no JSON", True),
        ("", True),
    ],
)
def test_weights_of_a_folder_must_be_those_of_its_config(tmp_path, config, is_read):
    tensors = {"weight": torch.ones(3, 2), "bias": torch.zeros(3)}
    path = tmp_path / weight_files.WEIGHTS_FILE
    save_file(tensors, path)
    (tmp_path / "config.json").write_text(config.format(digest=digest_of(tensors)))
    if is_read:
        assert read_weights(path).keys() == tensors.keys()
        return
    with pytest.raises(UserError, match=r"other weights than config\.json .* Copy it again"):
        read_weights(path)


def test_an_address_is_fetched_once_and_stays_within_the_cache(tmp_path, monkeypatch):
    """Later reads do not need the server."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("FVCORE_CACHE", str(cache))
    fetched = list[str]()

    def fetch(address: str, timeout: float) -> Answer:
        if address.endswith("gone"):
            raise URLError("no such host")
        fetched.append(address)
        return Answer(torch_bytes(nn.Linear(2, 2).state_dict()))

    monkeypatch.setattr(weight_files, "urlopen", fetch)
    for path in ("a/../../../b.pyth", "..", 300 * "x") * 2:
        load_weights(nn.Linear(2, 2), f"https://host/{path}")
    assert len(list(cache.iterdir())) == len(fetched) == len(set(fetched)) == 3
    for path in ("https://host/gone", tmp_path / "gone"):
        with pytest.raises(ValueError, match="gone"):
            check_file(path)
