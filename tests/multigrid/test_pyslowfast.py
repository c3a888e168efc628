"""Tests of multigrid in PySlowFast's loop: config keys, data sets at each shape, and heads.

tests/test_pyslowfast_loop.py tests the example, which trains with the parts of PySlowFast 1.0."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from fvcore.common.config import CfgNode
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from slowfast.config.defaults import get_cfg
from torch import nn
from torch.utils.data import DataLoader, Dataset

from multigrid import (
    PAPER,
    ClipRequest,
    Shape,
    SteppedRate,
    make_schedule,
)
from multigrid.integrations.pyslowfast import PySlowFastMultigrid, add_multigrid_config
from multigrid.integrations.pyslowfast_clips import ConfiguredClips
from multigrid.integrations.pyslowfast_epochs import epoch_ends
from slowfast_patches.config.load import parse_recipe
from slowfast_patches.plan.recipe_schedule import schedule_of
from tests.multigrid.clips import Clips

VIDEOS = 24
RECIPE = """
MULTIGRID: {LONG_CYCLE: True, SHORT_CYCLE: True, BN_BASE_SIZE: 4, EPOCH_FACTOR: 2.0}
TRAIN: {BATCH_SIZE: 4}
DATA: {NUM_FRAMES: 8, SAMPLING_RATE: 2, TRAIN_JITTER_SCALES: [36, 40], TRAIN_CROP_SIZE: 32}
SOLVER: {BASE_LR: 0.1, LR_POLICY: steps_with_relative_lrs, STEPS: [0, 4, 6],
         LRS: [1, 0.1, 0.01, 0.001], MAX_EPOCH: 6, WARMUP_EPOCHS: 0.5, WARMUP_START_LR: 0.02}
DATA_LOADER: {NUM_WORKERS: 0, PIN_MEMORY: False}
RNG_SEED: 3
"""
CYCLES_OFF = ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False)
BASE, COARSE = Shape(4, 8, 32), Shape(32, 2, 16)

pytestmark = pytest.mark.filterwarnings("ignore:the training ends", "ignore:the baseline has")


def new_config(*pairs: object) -> CfgNode:
    cfg = get_cfg()
    cfg.SOLVER.WARMUP_EPOCHS = 0.0  # an integer in PySlowFast 1.0
    cfg.BN.NORM_TYPE = "batchnorm"  # as in a later release
    add_multigrid_config(cfg)
    cfg.merge_from_other_cfg(CfgNode(CfgNode.load_cfg(RECIPE)))
    cfg.merge_from_list(list(pairs))
    return cfg


def new_multigrid(*pairs: object) -> PySlowFastMultigrid:
    return PySlowFastMultigrid(new_config(*pairs), VIDEOS)


class Asked(Dataset):
    """Data set whose items contain values of its config and draws from the global generators."""

    def __init__(self, cfg: CfgNode) -> None:
        self.cfg = cfg

    def __len__(self) -> int:
        return VIDEOS

    def __getitem__(self, index: int):
        data = self.cfg.DATA
        clip = torch.full((3, data.NUM_FRAMES, data.TRAIN_CROP_SIZE, data.TRAIN_CROP_SIZE), 1.0)
        draws = [random.random(), float(np.random.rand()), float(torch.rand(1))]
        asked = [data.SAMPLING_RATE, *data.TRAIN_JITTER_SCALES, self.cfg.MULTIGRID.SHORT_CYCLE]
        return [clip[:, ::2], clip], index % 2, index, {"asked": asked, "draws": draws}


class Net(nn.Module):
    """Network that pools a window of the size of the baseline's feature map, as PySlowFast 1.0."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn = nn.Conv3d(3, 4, 3, (1, 4, 4), 1), nn.BatchNorm3d(4)
        self.small = nn.AvgPool3d((1, 1, 1), stride=1)
        self.pool = nn.AvgPool3d((8, 8, 8), stride=1)
        self.projection = nn.Linear(4, 2)

    def forward(self, pathways):
        maps = self.small(self.bn(self.conv(pathways[-1])).relu())
        scores = self.projection(self.pool(maps).permute(0, 2, 3, 4, 1))
        return scores.flatten(1) if self.training else scores.softmax(4).mean((1, 2, 3))


# --- the schedule of a config is the trainer's


@pytest.mark.parametrize(
    "pairs",
    [
        CYCLES_OFF,
        ("NUM_SHARDS", 2, "TRAIN.BATCH_SIZE", 2, "SOLVER.LRS", []),
        ("SOLVER.LR_POLICY", "cosine", "SOLVER.COSINE_AFTER_WARMUP", True, "SOLVER.MAX_EPOCH", 24),
        ("MULTIGRID.BATCH_EXPONENT", 0.5, "SOLVER.BATCH_RATE_RULE", "sqrt"),
    ],
    ids=str,
)
def test_the_schedule_is_the_trainer_s(pairs):
    expected = schedule_of(parse_recipe(new_config(*pairs).dump(), "the test"), VIDEOS)
    assert [*new_multigrid(*pairs).schedule.steps()] == [*expected.steps()]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (("SOLVER.LR_POLICY", "exponential"), "exponential is not supported.*pass learning_rate"),
        (("MULTIGRID.DEFAULT_B", 4), "as it was loaded"),
    ],
)
def test_a_config_without_a_schedule_is_refused(pairs, message):
    with pytest.raises(ValueError, match=message):
        new_multigrid(*pairs)


def test_keys_are_added_only_where_they_are_missing():
    cfg, other = CfgNode({"MULTIGRID": CfgNode({"EPOCH_FACTOR": 3.0})}), CfgNode()
    for one in (cfg, other):
        add_multigrid_config(one)
    assert (cfg.MULTIGRID.EPOCH_FACTOR, cfg.MULTIGRID.BN_BASE_SIZE) == (3.0, 8)
    other.MULTIGRID.LONG_CYCLE_FACTORS[0][0] = 0.0
    assert cfg.MULTIGRID.LONG_CYCLE_FACTORS[0][0] == 0.25


# --- the data set under the config of each shape


def test_a_clip_is_read_under_its_shape_and_the_config_is_as_before():
    cfg = new_config()
    before = cfg.dump()
    cfg.freeze()
    clips = ConfiguredClips(Asked(cfg), new_config(), BASE)
    frames, *_ = clips[ClipRequest(5, 0, COARSE, 0)]
    assert [tuple(part.shape) for part in frames] == [(3, 1, 16, 16), (3, 2, 16, 16)]
    requests = [ClipRequest(v, e, COARSE, 0) for v in range(VIDEOS) for e in range(3)]
    asked = [clips[request][3]["asked"] for request in requests]
    assert {stride for stride, *_ in asked} == set(range(2, 9)), "from τ to τ·T/t"
    assert {(low, high) for _, low, high, _ in asked} == {(18, 40)}, "from min·h/H to max"
    assert clips[ClipRequest(5, 0, BASE, 0)][3]["asked"] == [2, 36, 40, False]
    assert cfg.dump() == before


def test_draws_follow_seed_epoch_and_video_and_leave_the_generators_alone():
    clips = ConfiguredClips(Asked(new_config()), new_config(), BASE)

    def state():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    def draws(video, epoch, shape):
        return tuple(clips[ClipRequest(video, epoch, shape, 0)][3]["draws"])

    before = state()
    keys = [(video, epoch) for video in (0, 1) for epoch in (0, 1)]
    assert len({draws(*key, BASE) for key in keys}) == 4
    assert all(draws(*key, BASE) == draws(*key, COARSE) for key in keys)
    assert state() == before


def test_a_data_set_that_does_not_follow_its_config_is_refused():
    class Fixed(Asked):
        def __getitem__(self, index):
            return torch.zeros(3, 8, 32, 32), 0, index, {}

    multigrid = new_multigrid()
    with pytest.raises(ValueError, match="no attribute cfg"):
        multigrid.loader(DataLoader([1]))
    with pytest.raises(ValueError, match=r"Fixed returned a clip of shape \(3, 8, 32, 32\)"):
        next(iter(multigrid.loader(Fixed(new_config()))))


def test_a_data_set_by_request_is_asked_as_it_is():
    multigrid = new_multigrid()
    batch = next(iter(multigrid.loader(Clips(VIDEOS), by_request=True)))
    assert Shape(*batch["clips"].shape[:3]) == multigrid.schedule.at(0).shape


# --- the loop


def train(multigrid, loader, model, stop=None):
    """Train, and return what the loop saw in each iteration."""
    optimizer = torch.optim.SGD([{"params": model.parameters(), "decay": 0.5}], lr=0.0)

    def set_lr(optimizer, rate):
        optimizer.param_groups[0]["lr"] = rate * optimizer.param_groups[0]["decay"]

    seen = []
    for epoch, batches in multigrid.epochs(loader):
        for inputs, labels, index, meta in batches:
            step = multigrid.begin(optimizer, set_lr)
            assert optimizer.param_groups[0]["lr"] == step.lr * 0.5
            assert (len(labels), *inputs[-1].shape[2:4]) == (
                step.shape.batch,
                step.shape.frames,
                step.shape.crop,
            )
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            size = getattr(model.bn, "group_size", None)
            seen.append((step, epoch, size, index.tolist(), meta, loss.item()))
            if step.iteration == stop:
                return seen
        assert getattr(model.bn, "group_size", None) is None, "for precise BN"
    return seen


def test_a_training_follows_the_schedule_and_goes_on_bit_for_bit_inside_a_phase_with_workers():
    multigrid = new_multigrid()
    model = multigrid.convert(Net())
    whole = train(multigrid, multigrid.loader(Asked(new_config())), model)
    steps = list(multigrid.schedule.steps())
    assert [(step, size) for step, _, size, *_ in whole] == [(s, s.bn_size) for s in steps]
    assert [*dict.fromkeys(epoch for _, epoch, *_ in whole)] == list(range(9))
    first, again = new_multigrid(), new_multigrid()
    half = first.convert(Net())
    train(first, first.loader(Asked(new_config())), half, stop=11)
    assert again.schedule.phase_at(11) == again.schedule.phase_at(12)
    again.resume(iteration=12)
    loader = again.loader(Asked(new_config()), num_workers=2)
    assert str(train(again, loader, again.convert(half))) == str(whole[12:])
    assert all(map(torch.equal, half.state_dict().values(), model.state_dict().values()))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 200), st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 12), st.booleans())
@example(96, 16, 9, False)
def test_every_epoch_has_an_iteration_and_begins_a_pass(videos, batch, epochs, short_alone):
    cycles = replace(PAPER, long_cycle=()) if short_alone else PAPER
    rate = SteppedRate((epochs / 2, float(epochs)), (0.1, 0.01))
    try:
        schedule = make_schedule(Shape(batch, 8, 32), videos, rate, cycles, bn_size=1)
    except ValueError as error:
        assume("too short" not in str(error))
        raise
    ends = epoch_ends(schedule)
    assert ends[-1] == schedule.iterations
    assert all(start < end for start, end in pairwise((0, *ends)))
    for start in ends[:-1]:
        before = schedule.at(start - 1).first_clip
        assert schedule.at(start).first_clip // videos > before // videos


def test_mini_batches_that_do_not_begin_once_each_are_refused():
    multigrid = new_multigrid()
    model = multigrid.convert(Net())
    loader = multigrid.loader(Asked(new_config()))
    batches = iter(loader)
    next(batches)
    multigrid.begin(torch.optim.SGD(model.parameters(), lr=0.0))
    next(batches)
    for again in (batches, iter(loader)):
        with pytest.raises(ValueError, match=r"The loader is at iteration \d, but 1 is the next"):
            next(again)


# --- the model


def test_heads_pool_any_map_in_training_and_their_window_in_evaluation():
    """The model is inside another module, as in a DistributedDataParallel."""
    model, clip = Net().eval(), torch.randn(4, 3, 8, 48, 48)
    expected = model([clip])
    new_multigrid().convert(nn.ModuleDict({"module": model}))
    assert torch.equal(model.eval()([clip]), expected), "a larger test crop slides the window"
    assert type(model.small) is nn.AvgPool3d
    model.train()
    for frames, crop in ((8, 32), (2, 16), (4, 23)):
        clip = torch.randn(4, 3, frames, crop, crop, requires_grad=True)
        pooled = model.projection(model.bn(model.conv(clip)).relu().mean((2, 3, 4)))
        assert torch.allclose(model([clip]), pooled, atol=1e-6)
    assert model.state_dict().keys() == Net().state_dict().keys()


class Embedding(nn.Module):
    """Positions of the baseline's shape alone."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(4, 8, 8, 8))

    def forward(self, x):
        return x + self.positions


def test_a_model_that_does_not_fit_a_shape_is_refused_by_its_module():
    model = Net()
    model.small = nn.Sequential(nn.ReLU(), Embedding())
    with pytest.raises(ValueError, match=r"2 frames of 16² .* called was small\.1 \(Embedding\)"):
        new_multigrid().convert(model)


class Strange(Net):
    def forward(self, pathways, query):
        return super().forward(pathways)


def test_a_model_of_other_inputs_is_left_alone_with_a_warning(caplog):
    model = new_multigrid().convert(Strange())
    assert type(model.pool) is nn.AvgPool3d
    assert "could not be run on a clip of the baseline's shape" in caplog.text


def test_probing_changes_neither_model_nor_generators():
    model = Net().train()
    model.projection.eval()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    new_multigrid().convert(model)
    assert all(map(torch.equal, before.values(), model.state_dict().values()))
    assert torch.equal(state, torch.get_rng_state())
    assert (model.training, model.projection.training) == (True, False)
