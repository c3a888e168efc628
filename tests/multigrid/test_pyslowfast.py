"""Tests of multigrid in PySlowFast's loop: config keys, data sets at each shape, and heads.

tests/test_pyslowfast_loop.py tests the example, which trains with the parts of PySlowFast 1.0."""

from __future__ import annotations

import copy
import random
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fvcore.common.config import CfgNode
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from multigrid import ClipRequest, CosineRate, GroupedBatchNorm3d, Shape
from multigrid.integrations.pyslowfast import PySlowFastMultigrid, add_multigrid_config
from multigrid.integrations.pyslowfast_clips import ConfiguredClips
from multigrid.integrations.pyslowfast_keys import learning_rate_of
from slowfast_patches.config.load import parse_recipe
from slowfast_patches.config.schedule import recipe_at
from slowfast_patches.plan.evaluations import evaluation_iterations
from slowfast_patches.plan.recipe_schedule import schedule_of
from tests.multigrid.clips import Clips

VIDEOS = 24

# As a later release's, with keys of BN that 1.0 lacks.
RECIPE = """
MULTIGRID: {LONG_CYCLE: True, SHORT_CYCLE: True, BN_BASE_SIZE: 4, EPOCH_FACTOR: 2.0, EVAL_FREQ: 2}
TRAIN: {BATCH_SIZE: 4, DATASET: ssv2}
DATA: {PATH_TO_DATA_DIR: '', PATH_PREFIX: '', NUM_FRAMES: 8, SAMPLING_RATE: 2,
       TRAIN_JITTER_SCALES: [36, 40], TRAIN_CROP_SIZE: 32, TEST_CROP_SIZE: 32}
BN: {NORM_TYPE: batchnorm, NUM_SPLITS: 1, NUM_SYNC_DEVICES: 1, WEIGHT_DECAY: 0.0}
SOLVER: {BASE_LR: 0.1, LR_POLICY: steps_with_relative_lrs, STEPS: [0, 4, 6],
         LRS: [1, 0.1, 0.01, 0.001], GAMMA: 0.1, MAX_EPOCH: 6, WARMUP_EPOCHS: 0.5,
         WARMUP_START_LR: 0.02, COSINE_END_LR: 0.0, COSINE_AFTER_WARMUP: False}
DATA_LOADER: {NUM_WORKERS: 0, PIN_MEMORY: False}
NUM_GPUS: 1
NUM_SHARDS: 1
RNG_SEED: 3
"""


def new_config(*pairs: object) -> CfgNode:
    cfg = CfgNode(CfgNode.load_cfg(RECIPE))
    add_multigrid_config(cfg)
    for name, value in zip(pairs[::2], pairs[1::2], strict=True):
        section, _, key = str(name).rpartition(".")
        setattr(getattr(cfg, section) if section else cfg, key, value)
    return cfg


def new_multigrid(cfg: CfgNode, videos: int = VIDEOS, **options: object) -> PySlowFastMultigrid:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return PySlowFastMultigrid(cfg, videos, **options)


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
        cycles = self.cfg.MULTIGRID
        own = [cycles.SHORT_CYCLE, cycles.DEFAULT_S, cycles.LONG_CYCLE_SAMPLING_RATE]
        asked = [data.SAMPLING_RATE, *data.TRAIN_JITTER_SCALES, *own]
        return [clip[:, ::2], clip], index % 2, index, {"asked": asked, "draws": draws}


class Head(nn.Module):
    """Head that pools a window of the size of the baseline's feature map, as in PySlowFast 1.0."""

    def __init__(self, window: list[int]) -> None:
        super().__init__()
        self.pathway0_avgpool = nn.AvgPool3d(window, stride=1)
        self.projection = nn.Linear(4, 2)

    def forward(self, x):
        pooled = self.pathway0_avgpool(x).permute(0, 2, 3, 4, 1)
        scores = self.projection(pooled)
        return scores.flatten(1) if self.training else scores.softmax(4).mean((1, 2, 3))


class Net(nn.Module):
    def __init__(self, window: tuple[int, int, int] = (8, 8, 8)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn = nn.Conv3d(3, 4, 3, (1, 4, 4), 1), nn.BatchNorm3d(4)
        self.pool = nn.AvgPool3d((1, 1, 1), stride=1)
        self.head = Head([*window])

    def forward(self, pathways):
        return self.head(self.pool(self.bn(self.conv(pathways[-1])).relu()))


# --- the schedule of a config is the trainer's


COSINE = ("SOLVER.LR_POLICY", "cosine", "SOLVER.COSINE_END_LR", 0.001, "SOLVER.MAX_EPOCH", 24)
CYCLES_OFF = ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False)


@pytest.mark.parametrize(
    "pairs",
    [
        CYCLES_OFF,
        ("NUM_SHARDS", 2, "TRAIN.BATCH_SIZE", 2, "SOLVER.LRS", []),
        (*COSINE, "SOLVER.COSINE_AFTER_WARMUP", True),
        ("MULTIGRID.BATCH_EXPONENT", 0.5, "SOLVER.BATCH_RATE_RULE", "sqrt"),
    ],
    ids=str,
)
def test_schedule_and_rewritten_keys_are_the_trainer_s(pairs):
    cfg = new_config(*pairs)
    recipe = parse_recipe(cfg.dump(), "the test")
    schedule = schedule_of(recipe, VIDEOS)
    multigrid = new_multigrid(cfg)
    assert [*multigrid.schedule.steps()] == [*schedule.steps()]
    for phase in schedule.phases:
        theirs = recipe_at(recipe, schedule, phase.start)
        for key, value in multigrid.config_at(phase.start).items():
            if not key.startswith(("BN.", "MULTIGRID.", "SOLVER.MAX")):
                assert value == theirs[key], key


def test_absolute_rates_are_taken_as_they_are():
    cfg = new_config("SOLVER.LR_POLICY", "steps_with_lrs", "SOLVER.LRS", [0.3, 0.02, 0.001])
    assert learning_rate_of(cfg).rates == (0.3, 0.02)
    assert new_multigrid(cfg).config_at(0)["SOLVER.LRS"] == pytest.approx([2.4, 0.16, 0.008])


def test_evaluations_are_the_trainer_s():
    cfg = new_config()
    multigrid = new_multigrid(cfg)
    recipe = parse_recipe(cfg.dump(), "the test")
    due = {s.iteration + 1 for s in multigrid.schedule.steps() if multigrid.evaluates_after(s)}
    assert sorted(due) == evaluation_iterations(recipe, multigrid.schedule)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (("SOLVER.LR_POLICY", "exponential"), "exponential is not supported.*pass learning_rate"),
        (("SOLVER.STEPS", [1, 4]), "must start with 0"),
        (("SOLVER.LRS", [1]), "one value per step"),
        (("MULTIGRID.DEFAULT_B", 4), "as it was loaded"),
        (("MULTIGRID.EVAL_FREQ", 0), "EVAL_FREQ is 0"),
        (("SOLVER.MAX_EPOCH", 1, "SOLVER.STEPS", [0, 0.5]), "too short"),
    ],
)
def test_a_config_without_a_schedule_is_refused(pairs, message):
    with pytest.raises(ValueError, match=message):
        new_multigrid(new_config(*pairs))


def test_a_fork_s_own_policy_can_be_given():
    cfg = new_config("SOLVER.LR_POLICY", "exponential")
    multigrid = new_multigrid(cfg, learning_rate=CosineRate(0.4, 24.0))
    assert multigrid.schedule.at(0).lr == pytest.approx(0.4 * 8)


def test_keys_are_added_only_where_they_are_missing():
    cfg = CfgNode({"MULTIGRID": CfgNode({"EPOCH_FACTOR": 3.0})})
    add_multigrid_config(cfg)
    assert (cfg.MULTIGRID.EPOCH_FACTOR, cfg.MULTIGRID.BN_BASE_SIZE) == (3.0, 8)
    other = CfgNode()
    add_multigrid_config(other)
    other.MULTIGRID.LONG_CYCLE_FACTORS[0][0] = 0.0
    assert cfg.MULTIGRID.LONG_CYCLE_FACTORS[0][0] == 0.25
    with pytest.raises(ValueError, match="Call add_multigrid_config"):
        new_multigrid(CfgNode({"SOLVER": CfgNode()}))


# --- the data set under the config of each shape


def test_a_clip_is_read_under_its_shape_and_the_config_is_as_before():
    cfg = new_config("MULTIGRID.DEFAULT_S", 32, "MULTIGRID.LONG_CYCLE_SAMPLING_RATE", 8)
    before = cfg.dump()
    dataset = Asked(cfg)
    cfg.freeze()
    clips = ConfiguredClips(dataset, new_config(), Shape(4, 8, 32))
    with pytest.raises(TypeError):
        clips[ClipRequest(None, 0, Shape(32, 2, 16), 0)]
    frames, *_ = clips[ClipRequest(5, 0, Shape(32, 2, 16), 0)]
    assert [tuple(part.shape) for part in frames] == [(3, 1, 16, 16), (3, 2, 16, 16)]
    requests = [ClipRequest(v, e, Shape(32, 2, 16), 0) for v in range(VIDEOS) for e in range(3)]
    asked = [clips[request][3]["asked"] for request in requests]
    assert {stride for stride, *_ in asked} == set(range(2, 9)), "from τ to τ·T/t"
    assert {(low, high) for _, low, high, *_ in asked} == {(18, 40)}, "from min·h/H to max"
    assert {tuple(own) for _, _, _, *own in asked} == {(False, 0, 0)}, "no multigrid of its own"
    base = clips[ClipRequest(5, 0, Shape(4, 8, 32), 0)][3]["asked"]
    assert base[:3] == [2, 36, 40]
    assert cfg.is_frozen()
    assert cfg.dump() == before


def test_draws_follow_seed_epoch_and_video_and_leave_the_generators_alone():
    clips = ConfiguredClips(Asked(new_config()), new_config(), Shape(4, 8, 32))
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    def draws(video, epoch, shape):
        return tuple(clips[ClipRequest(video, epoch, shape, 0)][3]["draws"])

    coarse, base = Shape(32, 2, 16), Shape(4, 8, 32)
    keys = [(video, epoch) for video in (0, 1) for epoch in (0, 1)]
    assert len({draws(*key, base) for key in keys}) == 4
    assert all(draws(*key, base) == draws(*key, coarse) for key in keys)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == states


def test_a_data_set_that_does_not_follow_its_config_is_refused():
    class Fixed(Asked):
        def __getitem__(self, index):
            return torch.zeros(3, 8, 32, 32), 0, index, {}

    multigrid = new_multigrid(new_config())
    with pytest.raises(ValueError, match="no attribute cfg"):
        multigrid.loader(DataLoader([1]))
    with pytest.raises(ValueError, match=r"Fixed returned a clip of shape \(3, 8, 32, 32\)"):
        next(iter(multigrid.loader(Fixed(new_config()))))


# --- the loop


def test_the_loop_follows_the_schedule_and_the_config_its_phases():
    cfg = new_config()
    cfg.freeze()
    multigrid = new_multigrid(cfg)
    model = multigrid.convert(Net())
    optimizer = torch.optim.SGD([{"params": model.parameters(), "lr_scale": 0.5}], lr=0.0)
    seen = []
    for _inputs, _labels, _index, _meta in multigrid.loader(Asked(cfg)):
        step = multigrid.begin(cfg, optimizer)
        assert optimizer.param_groups[0]["lr"] == step.lr * 0.5
        assert model.bn.group_size == step.bn_size
        seen.append((cfg.TRAIN.BATCH_SIZE, cfg.DATA.NUM_FRAMES, cfg.DATA.TRAIN_CROP_SIZE))
        assert pytest.approx(0.1 * cfg.TRAIN.BATCH_SIZE / 4) == cfg.SOLVER.BASE_LR
        assert cfg.BN.NUM_SPLITS == cfg.TRAIN.BATCH_SIZE // 4
        with multigrid.evaluation(cfg):
            inside = (cfg.TRAIN.BATCH_SIZE, cfg.DATA.NUM_FRAMES, cfg.DATA.TRAIN_CROP_SIZE)
            assert (*inside, cfg.SOLVER.BASE_LR, cfg.MULTIGRID.DEFAULT_B) == (4, 8, 32, 0.1, 0)
            assert (cfg.SOLVER.MAX_EPOCH, model.bn.group_size) == (9, None)
    assert len(seen) == multigrid.schedule.iterations
    assert [*dict.fromkeys(seen)] == [(32, 2, 23), (16, 4, 23), (8, 4, 32), (4, 8, 32)]
    assert (cfg.MULTIGRID.DEFAULT_B, cfg.MULTIGRID.DEFAULT_T, cfg.MULTIGRID.DEFAULT_S) == (4, 8, 32)
    assert cfg.is_frozen()


CYCLES = st.sampled_from([(True, True), (True, False), (False, True), (False, False)])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 200), st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 12), CYCLES)
@example(96, 16, 9, (False, True))
def test_every_epoch_has_an_iteration_and_the_last_is_max_epoch(videos, batch, epochs, cycles):
    pairs = ("TRAIN.BATCH_SIZE", batch, "SOLVER.MAX_EPOCH", epochs, "SOLVER.WARMUP_EPOCHS", 0)
    steps = ("SOLVER.STEPS", [0, epochs / 2], "SOLVER.LRS", [1, 0.1], "MULTIGRID.BN_BASE_SIZE", 1)
    cfg = new_config(*pairs, *steps)
    cfg.MULTIGRID.LONG_CYCLE, cfg.MULTIGRID.SHORT_CYCLE = cycles
    try:
        multigrid = new_multigrid(cfg, videos=videos)
    except ValueError as error:
        assume("too short" not in str(error))
        raise
    table = multigrid.epoch_table
    starts = [table.start(epoch) for epoch in range(len(table) + 1)]
    assert (starts[0], starts[-1]) == (0, multigrid.schedule.iterations)
    lengths = [table.length(epoch) for epoch in range(len(table))]
    assert min(lengths) > 0
    assert (sum(lengths), max(lengths)) == (starts[-1], table.longest)
    assert len(table) == cfg.SOLVER.MAX_EPOCH
    for epoch, start in enumerate(starts[1:-1], 1):
        assert [table.epoch_of(start - 1), table.epoch_of(start)] == [epoch - 1, epoch]
        step = multigrid.schedule.at(start)
        assert step.first_clip // videos > multigrid.schedule.at(start - 1).first_clip // videos


def test_without_a_cycle_config_and_model_stay_as_they_are():
    cfg = new_config(*CYCLES_OFF, "BN.NORM_TYPE", "sync_batchnorm", "BN.NUM_SPLITS", 2)
    before = cfg.dump()
    multigrid, model = new_multigrid(cfg), Net()
    kinds = [type(module) for module in model.modules()]
    assert [type(module) for module in multigrid.convert(model).modules()] == kinds
    seen, _ = train(multigrid, cfg, multigrid.loader(Asked(cfg)), model=model)
    assert len(seen) == 36
    assert cfg.dump() == before


@pytest.mark.parametrize(
    "options", [{}, {"iteration": 1, "epoch": 1}, {"iteration": -1}, {"epoch": 99}]
)
def test_what_cannot_be_resumed_is_refused(options):
    with pytest.raises(ValueError, match=r"Cannot resume|Epoch 99 does not"):
        new_multigrid(new_config()).resume(**options)


def test_mini_batches_that_do_not_begin_once_each_are_refused():
    cfg = new_config()
    multigrid = new_multigrid(cfg)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0)
    with pytest.raises(ValueError, match=r"Call convert\(model\)"):
        multigrid.begin(cfg, optimizer)
    multigrid.convert(Net())
    loader = multigrid.loader(Asked(cfg))
    with pytest.raises(ValueError, match="has not returned the mini-batch"):
        multigrid.begin(cfg, optimizer)
    batches = iter(loader)
    next(batches)
    multigrid.begin(cfg, optimizer)
    with pytest.raises(ValueError, match="has not returned the mini-batch"):
        multigrid.begin(cfg, optimizer)
    next(batches)
    with pytest.raises(ValueError, match="The loader is at iteration 2, but 1 is the next"):
        next(batches)
    with pytest.raises(ValueError, match="The loader is at iteration 0, but 1 is the next"):
        next(iter(loader))


# --- the model


def test_heads_pool_any_map_in_training_and_their_window_in_evaluation():
    """The model is inside another module, as in a DistributedDataParallel."""
    model, clip = Net().eval(), torch.randn(4, 3, 8, 48, 48)
    expected = model([clip])
    new_multigrid(new_config()).convert(nn.ModuleDict({"module": model}))
    assert torch.equal(model.eval()([clip]), expected), "a larger test crop slides the window"
    assert type(model.pool) is nn.AvgPool3d
    model.train()
    for frames, crop in ((8, 32), (2, 16), (4, 23)):
        clip = torch.randn(4, 3, frames, crop, crop, requires_grad=True)
        features = model.pool(model.bn(model.conv(clip)).relu())
        pooled = model.head.projection(features.mean((2, 3, 4)))
        assert torch.allclose(model([clip]), pooled, atol=1e-6)
    assert model.state_dict().keys() == Net().state_dict().keys()


class Boxes(nn.Module):
    """Network that pools over time only, as a detection head does, and then over space."""

    def __init__(self) -> None:
        super().__init__()
        self.bn, self.pool = nn.BatchNorm3d(3), nn.AvgPool3d((8, 1, 1), stride=1)

    def forward(self, pathways):
        return self.pool(self.bn(pathways[-1])).amax((2, 3, 4))


def test_a_window_of_one_value_leaves_its_axis_alone():
    model = new_multigrid(new_config()).convert(Boxes())
    assert model.train().pool(torch.zeros(1, 4, 2, 5, 6)).shape[2:] == (1, 5, 6)


class Fixed(nn.Module):
    """Model that adds an embedding with the baseline's shape, so it cannot take other shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv3d(3, 4, 1), nn.Sequential(nn.BatchNorm3d(4), Embedding())

    def forward(self, pathways):
        return self.blocks(self.stem(pathways[-1])).mean((2, 3, 4))


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(4, 8, 32, 32))

    def forward(self, x):
        return x + self.positions


class Unpooled(Net):
    """Head that returns scores for each position of the feature map instead of one row."""

    def __init__(self) -> None:
        super().__init__((8, 1, 1))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            Fixed,
            r"2 frames of 16² .* last module called was blocks\.1 \(Embedding\)",
        ),
        (Unpooled, r"returns scores of shape \(1, 32\) for clips of 2 frames of 16² pixels"),
    ],
)
def test_a_model_that_does_not_fit_a_shape_is_refused_by_its_module(kind, message):
    with pytest.raises(ValueError, match=message):
        new_multigrid(new_config()).convert(kind())


class Strange(Net):
    def forward(self, pathways, query):
        return super().forward(pathways)


def test_a_model_of_other_inputs_is_left_alone_with_a_warning(caplog):
    model = new_multigrid(new_config()).convert(Strange())
    assert type(model.head.pathway0_avgpool) is nn.AvgPool3d
    assert "could not be run on a clip of the baseline's shape" in caplog.text


def test_probing_changes_neither_model_nor_generators():
    model = Net().train()
    model.head.eval()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    new_multigrid(new_config()).convert(model)
    assert all(map(torch.equal, before.values(), model.state_dict().values()))
    assert torch.equal(state, torch.get_rng_state())
    assert (model.training, model.head.training) == (True, False)


def test_a_validation_outside_of_the_evaluation_context_is_noticed():
    cfg = new_config()
    multigrid, model = new_multigrid(cfg), Net()
    model.head.pathway0_avgpool = nn.AdaptiveAvgPool3d(1)
    multigrid.convert(model)
    train(multigrid, cfg, multigrid.loader(Asked(cfg)), stop=0, model=model)
    data = Asked(cfg)
    clip = data[0][0][-1][None]
    with pytest.warns(UserWarning, match=r"2 frames of 23².*within evaluation\(cfg\)"):
        model.eval()([clip])
    with warnings.catch_warnings(), multigrid.evaluation(cfg):
        warnings.simplefilter("error")
        model([data[0][0][-1][None]])
        with torch.no_grad():
            model.train()([clip])


def test_a_model_without_bn_is_refused_unless_its_size_is_zero():
    plain = nn.Sequential(nn.Conv3d(3, 4, 3))
    with pytest.raises(ValueError, match=r"Set MULTIGRID\.BN_BASE_SIZE 0"):
        new_multigrid(new_config()).convert(plain)
    assert new_multigrid(new_config("MULTIGRID.BN_BASE_SIZE", 0)).convert(plain) is plain


def test_a_data_set_by_request_is_asked_as_it_is():
    multigrid = new_multigrid(new_config())
    batch = next(iter(multigrid.loader(Clips(VIDEOS), by_request=True)))
    assert Shape(*batch["clips"].shape[:3]) == multigrid.schedule.at(0).shape


def train(multigrid, cfg, loader, stop=None, model=None):
    """Train, and return the steps, items and rates of the loop, and the model."""
    model = multigrid.convert(Net()) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen = []
    for inputs, labels, index, *_, meta in loader:
        step = multigrid.begin(cfg, optimizer)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sizes = (m.group_size for m in model.modules() if isinstance(m, GroupedBatchNorm3d))
        size = next(sizes, None)
        rate = optimizer.param_groups[0]["lr"]
        shape = Shape(len(labels), *inputs[-1].shape[2:4])
        seen.append((step, shape, rate, size, index.tolist(), meta, loss.item()))
        if step.iteration == stop:
            break
    return seen, model


def test_a_training_goes_on_bit_for_bit_inside_a_phase_and_workers_read_the_same_clips():
    cfg, again_cfg = new_config(), new_config()
    multigrid = new_multigrid(cfg)
    whole, model = train(multigrid, cfg, multigrid.loader(Asked(cfg)))
    first, again = new_multigrid(new_config()), new_multigrid(again_cfg)
    _, half = train(first, again_cfg, first.loader(Asked(again_cfg)), stop=11)
    again.resume(iteration=12)
    assert again.schedule.phase_at(11) == again.schedule.phase_at(12)
    loader = again.loader(Asked(new_config()), num_workers=2)
    rest, ended = train(again, again_cfg, loader, model=again.convert(half))
    assert str(rest) == str(whole[12:])
    assert all(map(torch.equal, ended.state_dict().values(), model.state_dict().values()))
    assert again_cfg.dump() == cfg.dump()


def test_a_model_may_be_in_distributed_data_parallel():
    """PySlowFast's build_model returns such a model on several GPUs. BN is local to a process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = new_multigrid(new_config()).convert(DistributedDataParallel(Net()))
    finally:
        dist.destroy_process_group()
    assert not model.broadcast_buffers
    assert type(model.module.bn) is GroupedBatchNorm3d
    assert type(model.module.head.pathway0_avgpool) is not nn.AvgPool3d
