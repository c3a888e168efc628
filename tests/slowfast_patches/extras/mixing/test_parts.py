"""Parts of mixup and CutMix by hand: what is drawn, which clips are pairs, and which pixels."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from slowfast_patches.config import load_recipe
from slowfast_patches.extras.mixing import mixup
from slowfast_patches.extras.mixing.keys import RULES, _with_pairs
from slowfast_patches.extras.mixing.mixup import Mixing, depends_on_division
from slowfast_patches.registry import TaskSpec, register_task
from slowfast_patches.tasks.task import Task


@pytest.fixture
def draw():
    """`draw(uniform, beta, "MIXUP.PROB", 0.5, ...)`: what is drawn for a clip of 10² pixels.

    The generator gives these numbers, and notes how it was seeded and which Beta was drawn.
    """
    asked = SimpleNamespace(seeds=[], betas=[])

    def call(uniform, beta, *keys):
        numbers = iter(uniform)

        def random(count):
            return np.array([next(numbers) for _ in range(count)])

        def draw_beta(a, b):
            asked.betas.append((a, b))
            return beta

        def generator(seed):
            asked.seeds.append(seed)
            return SimpleNamespace(random=random, beta=draw_beta)

        made = Mixing(load_recipe(None, ["MIXUP.ENABLE", True, "RNG_SEED", 5, *keys]))
        with mock.patch("numpy.random.default_rng", generator):
            return tuple(map(float, made.draw(17, 10)))

    call.asked = asked
    return call


@pytest.mark.parametrize(
    ("uniform", "beta", "keys", "expected"),
    [
        ((0.4, 0.9), 0.3, ("MIXUP.PROB", 0.4), (0, 0, 0, 0, 0)),
        ((0.39, 0.5), 0.3, ("MIXUP.PROB", 0.4), (0.3, 0, 10, 0, 10)),
        # A quarter of the area is 5 × 5 pixels around (4, 7).
        ((0.0, 0.49, 0.4, 0.7), 0.25, (), (1, 2, 6, 4, 10)),
        # Around (1, 9), the sides of the clip cut.
        ((0.0, 0.0, 0.1, 0.9), 0.64, (), (1, 0, 5, 5, 10)),
        ((0.0, 0.9, 0.5, 0.5), 1.0, ("MIXUP.ALPHA", 0), (1, 0, 10, 0, 10)),
        ((0.0, 0.0), 0.6, ("MIXUP.CUTMIX_ALPHA", 0), (0.6, 0, 10, 0, 10)),
    ],
)
def test_a_region_by_hand(draw, uniform, beta, keys, expected):
    """Rounded to even: 4 - 2.5 and 4 + 2.5 are 2 and 6, and 7 - 2.5 and 7 + 2.5 are 4 and 10."""
    assert draw(uniform, beta, *keys) == expected
    assert draw.asked.seeds == [(5, 17, 2)]


def test_each_of_the_two_has_its_own_distribution(draw):
    keys = ("MIXUP.ALPHA", 0.3, "MIXUP.CUTMIX_ALPHA", 2.0, "MIXUP.SWITCH_PROB", 0.5)
    draw((0.0, 0.5), 0.5, *keys)
    draw((0.0, 0.4, 0.5, 0.5), 0.5, *keys)
    assert draw.asked.betas == [(0.3, 0.3), (2.0, 2.0)]


def test_neighbours_in_the_stream_are_pairs_wherever_they_lie():
    assert mixup._neighbours([10, 12, 11, 13]).tolist() == [2, 3, 0, 1]
    assert mixup._neighbours([7, 5, 6]).tolist() == [0, 2, 1]
    assert mixup._neighbours([3]).tolist() == [0]


def test_the_weight_of_the_neighbour_is_its_share_inside_of_the_region():
    rows = torch.tensor([[0.5, 1, 3, 0, 2], [1.0, 0, 0, 0, 0]])
    weights = mixup._added(rows, 4)
    assert weights.shape == (2, 1, 1, 4, 4)
    half = [[0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0, 0]]
    assert weights[0, 0, 0].tolist() == half
    assert not weights[1].any()


def test_several_labels_are_blended_as_they_are(monkeypatch):
    made = Mixing(load_recipe(None, ["MIXUP.ENABLE", True, "MODEL.NUM_CLASSES", 3]))
    monkeypatch.setattr(made, "draw", lambda number, crop: (0.25, 0, crop, 0, crop))
    labels = torch.tensor([[1.0, 1, 0], [0, 0, 1]])
    mixed = made([torch.zeros(2, 3, 1, 2, 2)], labels, [0, 1])
    assert mixed.tolist() == [[0.75, 0.75, 0.25], [0.25, 0.25, 0.75]]


def test_on_a_cpu_nothing_is_copied_and_a_gpu_gets_pinned_memory(monkeypatch):
    values = torch.ones(2)
    assert mixup._sent(values, torch.device("cpu")) is values
    asked = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: asked.append("pinned") or self)
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, *to, **how: asked.append((to, how)) or self
    )
    assert mixup._sent(values, torch.device("cuda")) is not None
    assert asked == ["pinned", ((torch.device("cuda"),), {"non_blocking": True})]


@pytest.mark.parametrize(
    ("grouped", "group", "batch", "processes", "depends"),
    [
        (True, 4, 8, 2, False),
        (True, 3, 8, 2, True),
        (False, 4, 8, 2, True),
        (True, 4, 6, 2, True),  # three clips a process
        (True, 4, 6, 1, False),
    ],
)
def test_pairs_are_divided_if_a_group_or_a_process_has_an_odd_number_of_clips(
    grouped, group, batch, processes, depends
):
    recipe = SimpleNamespace(
        groups_batchnorm=grouped,
        bn_group_size=group,
        base_shape=SimpleNamespace(batch=batch),
        world_size=processes,
    )
    assert depends_on_division(recipe) is depends


@pytest.mark.parametrize(("batch", "parts", "has_pairs"), [(8, 4, True), (8, 5, False)])
def test_micro_batches_need_two_clips(batch, parts, has_pairs):
    recipe = SimpleNamespace(
        world_size=1,
        solver=SimpleNamespace(accumulation_steps=parts),
        base_shape=SimpleNamespace(batch=batch),
    )
    assert (_with_pairs(recipe) is None) is has_pairs
    recipe.world_size = 2
    assert _with_pairs(recipe) == "with a single clip in each micro-batch"


@pytest.mark.parametrize(
    ("keys", "broken"),
    [
        ({}, []),
        ({"MIXUP.ALPHA": 0.0}, []),
        ({"MIXUP.CUTMIX_ALPHA": 0.0}, []),
        ({"MIXUP.ALPHA": 0.0, "MIXUP.CUTMIX_ALPHA": 0.0}, [0]),
        ({"MIXUP.ALPHA": 0.0, "MIXUP.CUTMIX_ALPHA": 0.0, "MIXUP.ENABLE": False}, []),
    ],
)
def test_the_rules_that_a_recipe_breaks(keys, broken):
    recipe = load_recipe(None, ["MIXUP.ENABLE", True]).replaced(keys)
    found = [number for number, rule in enumerate(RULES) if rule.is_broken(recipe)]
    assert found == broken


def test_targets_of_parts_of_clips_break_a_rule(own_folder):
    register_task("parts", TaskSpec("parts", scores_clips=False))(Task)
    recipe = load_recipe(None, ["MIXUP.ENABLE", True, "DATA.TASK", "parts"])
    assert [bool(rule.is_broken(recipe)) for rule in RULES] == [False, True]
    off = recipe.replaced({"MIXUP.ENABLE": False})
    assert not any(rule.is_broken(off) for rule in RULES)
