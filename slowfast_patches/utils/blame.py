"""Say where to look for the cause of an exception: which code of the user raised it.

Users write hooks, models, losses, data set classes, tasks and augmentations, which the package
calls. The frames of a traceback tell whose code was called. A DataLoader worker and a process pool
pass on their tracebacks as text.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import multigrid

_KINDS = {
    "slowfast_patches.train.trainer.Hook": "hook",
    "slowfast_patches.tasks.task.Task": "task",
    "torch.nn.modules.loss._Loss": "loss",
    "torch.nn.modules.module.Module": "torch module",
    "torch.optim.optimizer.Optimizer": "optimizer",
    "torch.utils.data.dataset.Dataset": "data set",
}
"""Noun for the classes of a user, by the full name of their base class."""
_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE, _PACKAGE.parent / "tools", Path(multigrid.__file__).parent)
_OURS = tuple(f"{folder}/" for folder in _FOLDERS)
"""Folders of this package. In a wheel, the tools are in the folder of the package."""
_PATHS = ("stdlib", "platstdlib", "purelib", "platlib")
_LIBRARIES = tuple(f"{folder}/" for folder in {sysconfig.get_path(name) for name in _PATHS})
"""Folders of Python and of the installed packages."""
_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+), in (\S+)', re.MULTILINE)
_ROLES = dict[tuple[str, str], str]()
"""Maps the module and the qualified name of a registered function or class to its role, such as
"augmentation 'shake'"."""


class Place(NamedTuple):
    """A frame of a traceback. `frame` is None in the traceback of another process."""

    file: str
    line: int
    function: str
    frame: FrameType | None = None

    @property
    def is_ours(self) -> bool:
        return self.file.startswith(_OURS)

    @property
    def is_users(self) -> bool:
        known = self.is_ours or self.file.startswith(_LIBRARIES)
        return not known and (self.file[:1] != "<" or self.file == "<stdin>")


def register_role(kind: str, name: str, entry: object) -> None:
    """Remember the kind and name of a registered function, class or dataclass with functions.

    Args:
        kind: Noun for the entry, such as "augmentation".
        name: Name of the entry.
        entry: Function, class, or dataclass some of whose fields are functions.
    """
    parts = [getattr(entry, f.name) for f in fields(entry)] if is_dataclass(entry) else [entry]
    for part in filter(callable, parts):
        function: Callable[..., Any] = getattr(part, "func", part)  # `part` may be a partial
        module = getattr(function, "__module__", "")
        qualified = getattr(function, "__qualname__", type(function).__qualname__)
        _ROLES[module, qualified] = f"{kind} {name!r}"


def places_of(error: BaseException) -> list[Place]:
    """Return the frames of a traceback, from the outermost to the innermost.

    If the error comes from another process, the frames of that process follow.
    """
    local = [
        Place(frame.f_code.co_filename, line, frame.f_code.co_qualname, frame)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    cause = error.__cause__
    texts = [str(cause)] if type(cause).__name__ == "_RemoteTraceback" else []
    texts += [str(error)] if "Original Traceback" in str(error) else []
    return local + [Place(f, int(n), name) for text in texts for f, n, name in _FRAME.findall(text)]


def where_to_look(error: BaseException) -> str:
    """Return a sentence that says in whose code an exception was raised."""
    places = places_of(error)
    calls = False  # Whether the package has called code of the user.
    found = list[Place]()
    for place in places:
        calls = calls or place.is_ours
        if place.is_users and calls:
            found.append(place)
    own = [place for place in places if place.is_ours or place.is_users]
    if own and own[-1].is_users and not found:
        found = own
    name = type(error).__name__
    if not found:
        where = f" in {own[-1].file}, line {own[-1].line}" if own else ""
        return (
            f"{name}{where}. This is a bug in slowfast-multigrid, or in a package that it calls. "
            "Please report it, and include these lines."
        )
    place = found[-1]
    role = next(filter(None, map(_role, reversed(found))), "code")
    module = _module(place)
    named = f" of the module {module}" if module else ""
    return (
        f"{name} in your {role}{named}: {place.file}, line {place.line}. Correct this code. If it "
        "is right, this is a bug in slowfast-multigrid: please report it, and include these lines."
    )


def _module(place: Place) -> str:
    """Return the name of the module with the code of a frame, or ""."""
    if place.frame is not None:
        return str(place.frame.f_globals.get("__name__", ""))
    loaded = list(sys.modules.items())
    return next((name for name, m in loaded if getattr(m, "__file__", "") == place.file), "")


def _role(place: Place) -> str:
    """Return the role of the function or the class with the code of a frame, or ""."""
    names = place.function.split(".") if place.frame else _names_in_source(place)
    module = _module(place)
    for stop in range(len(names), 0, -1):
        if role := _ROLES.get((module, ".".join(names[:stop]))):
            return role
    for cls in _classes(place, module, names):
        bases = [f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__]
        kinds = [kind for name, kind in _KINDS.items() if name in bases]
        if kinds or hasattr(cls, "__getitem__"):
            return f"{(*kinds, 'data set')[0]} {cls.__qualname__}"
    return ""


def _classes(place: Place, module: str, names: list[str]) -> Iterator[type]:
    """Yield the class of the method that a frame runs, if there is one."""
    if place.frame is not None:
        if "self" in place.frame.f_locals:
            yield type(place.frame.f_locals["self"])
        return
    found = getattr(sys.modules.get(module), names[0], None) if names else None
    if isinstance(found, type):
        yield found


def _names_in_source(place: Place) -> list[str]:
    """Return the name of the top-level function or class with a line, from the source file."""
    try:
        tree = ast.parse("".join(linecache.getlines(place.file)))
    except (SyntaxError, ValueError):
        return []
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in tree.body:
        if isinstance(node, kinds) and node.lineno <= place.line <= (node.end_lineno or 0):
            return [node.name]
    return []
