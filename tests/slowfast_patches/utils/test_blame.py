"""Who is told to look where: the package, or code of a user that it has called."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

import pytest
from torch import nn

from slowfast_patches.train.trainer import Hook
from slowfast_patches.utils import blame
from slowfast_patches.utils.blame import places_of, register_role, where_to_look
from slowfast_patches.utils.processes import run_each
from slowfast_patches.utils.tables import format_flops


def shake(job: object) -> object:
    raise KeyError(job)


def outer(job: object) -> object:
    return shake(job)


class Noisy(Hook):
    def after(self, job: object) -> None:
        raise KeyError(job)


class Net(nn.Module):
    def forward(self, job: object) -> None:
        raise KeyError(job)


class Clips:
    def __getitem__(self, job: object) -> None:
        raise KeyError(job)


def raised(function: Any, *arguments: Any) -> BaseException:
    with pytest.raises(Exception) as caught:
        function(*arguments)
    return caught.value


def called_by_us(function: Any) -> BaseException:
    """Return the error of a function that the package calls."""
    return raised(lambda: list(run_each(function, [1], 0)))


@pytest.fixture
def _roles(monkeypatch):
    monkeypatch.setattr(blame, "_ROLES", {})


def test_an_error_in_the_package_is_a_bug_with_its_place():
    said = where_to_look(raised(format_flops, "many"))
    assert said.startswith("TypeError in ")
    assert "utils/tables.py, line " in said
    assert "This is a bug in slowfast-multigrid" in said


@pytest.mark.usefixtures("_roles")
@pytest.mark.parametrize(
    ("function", "role"),
    [
        (shake, "code"),
        (Noisy().after, "hook Noisy"),
        (Net(), "torch module Net"),
        (Clips().__getitem__, "data set Clips"),
    ],
)
def test_code_of_a_user_that_we_call_is_named_with_its_line(function, role):
    error = called_by_us(function)
    said = where_to_look(error)
    line = traceback.extract_tb(error.__traceback__)[-1].lineno
    assert said.startswith(
        f"KeyError in your {role} of the module {__name__}: {__file__}, line {line}."
    )
    assert "Correct this code" in said


FILES = {
    "u": "/home/me/train.py",
    "h": "/home/me/hooks.py",
    "o": blame.__file__,
    "l": traceback.__file__,
}


@pytest.mark.usefixtures("_roles")
@pytest.mark.parametrize(
    ("frames", "told"),
    [
        ("u", "code: /home/me/train.py, line 1. Correct"),
        ("ul", "code: /home/me/train.py, line 1. Correct"),
        ("uo", f"KeyError in {blame.__file__}, line 2. This is a bug"),
        ("uol", f"KeyError in {blame.__file__}, line 2. This is a bug"),
        ("l", "KeyError. This is a bug"),
        ("uoh", "code: /home/me/hooks.py, line 3. Correct"),
        ("uohl", "code: /home/me/hooks.py, line 3. Correct"),
        # A hook that calls the package wrongly is looked at first.
        ("uoho", "code: /home/me/hooks.py, line 3. Correct"),
        ("oho", "code: /home/me/hooks.py, line 2. Correct"),
        ("ohhl", "code: /home/me/hooks.py, line 3. Correct"),
    ],
)
def test_the_innermost_code_that_the_package_has_called_is_named(monkeypatch, frames, told):
    places = [blame.Place(FILES[letter], n, "f") for n, letter in enumerate(frames, 1)]
    monkeypatch.setattr(blame, "places_of", lambda error: places)
    assert told in where_to_look(KeyError("x"))


@pytest.mark.usefixtures("_roles")
def test_a_method_of_a_registered_class_has_its_role():
    register_role("data set", "mine", Clips)
    assert "in your data set 'mine' of" in where_to_look(called_by_us(Clips().__getitem__))


def test_code_outside_of_functions_has_no_role():
    """In the traceback of another process, line 1 of this file is its docstring."""
    text = REMOTE.replace("LINE", "1").replace("in after", "in <module>")
    error = ValueError(f"Caught KeyError in worker 0.\nOriginal {text.strip()}\nKeyError: x")
    assert f"in your code of the module {__name__}: {__file__}, line 1." in where_to_look(error)


@dataclass
class Spec:
    name: str
    check: Any
    build: Any = None


@pytest.mark.usefixtures("_roles")
@pytest.mark.parametrize("entry", [outer, Spec("x", outer)])
def test_what_is_registered_is_named_by_its_role_also_if_what_it_calls_fails(entry):
    register_role("augmentation", "shake it", entry)
    assert "in your augmentation 'shake it' of the module" in where_to_look(called_by_us(outer))


def test_an_error_of_the_users_own_script_is_the_users():
    assert "Correct this code" in where_to_look(raised(shake, 1))


class _RemoteTraceback(Exception):  # noqa: N818 - as that of multiprocessing
    pass


REMOTE = f"""
Traceback (most recent call last):
  File "{blame.__file__}", line 7, in run
    function(job)
  File "{__file__}", line LINE, in after
    raise KeyError(job)
"""


@pytest.mark.usefixtures("_roles")
@pytest.mark.parametrize("by", ["pool", "loader"])
def test_tracebacks_of_other_processes_are_read(by):
    line = Noisy.after.__code__.co_firstlineno + 1
    text = REMOTE.replace("LINE", str(line))
    if by == "pool":
        error: Exception = KeyError("x")
        error.__cause__ = _RemoteTraceback(text)
    else:
        error = ValueError(f"Caught KeyError in worker 0.\nOriginal {text.strip()}\nKeyError: x")
    places = places_of(error)
    assert [(place.line, place.function) for place in places] == [(7, "run"), (line, "after")]
    assert [(place.is_ours, place.is_users) for place in places] == [(True, False), (False, True)]
    assert (
        f"in your hook Noisy of the module {__name__}: {__file__}, line {line}."
        in where_to_look(error)
    )


def test_libraries_and_code_without_a_file_are_nobodys_but_what_is_typed_is_the_users():
    place = blame.Place
    assert not place(nn.__file__, 1, "f").is_users
    assert not place("<frozen importlib>", 1, "f").is_users
    assert place("<stdin>", 1, "f").is_users
    assert place("/home/me/train.py", 1, "f").is_users
