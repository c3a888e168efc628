"""Warnings name the line of the user's code, whatever calls lie between."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from multigrid import Shape, SteppedRate, Training, make_schedule, set_group_size
from multigrid.user_warning import warn_user

SCHEDULE = make_schedule(
    Shape(4, 4, 8), 100, SteppedRate((6.0, 8.0), (0.1, 0.01)), None, bn_group_size=None
)


def warn_here() -> None:
    warn_user("directly")


def set_size_without_layers() -> None:
    set_group_size(nn.Linear(1, 1), 2)


def begin_without_a_parameter() -> None:
    model = nn.Linear(1, 1)
    Training(SCHEDULE, model, torch.optim.SGD([model.bias], lr=0.0)).begin(0)


def step_in_evaluation_mode() -> None:
    """Here, torch calls the hook of the optimizer that warns."""
    model = nn.Linear(1, 1).eval()
    training = Training(SCHEDULE, model, torch.optim.SGD(model.parameters(), lr=0.0))
    training.begin(0)
    training.optimizer.step()


@pytest.mark.parametrize(
    "act",
    [warn_here, set_size_without_layers, begin_without_a_parameter, step_in_evaluation_mode],
    ids=lambda act: act.__name__,
)
def test_a_warning_names_the_user_s_line(act: Callable[[], None]):
    first = act.__code__.co_firstlineno
    last = max(line for *_, line in act.__code__.co_lines() if line is not None)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        act()
    (warning,) = told
    assert warning.filename == __file__
    assert first < warning.lineno <= last
