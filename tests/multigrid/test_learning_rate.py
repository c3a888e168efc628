"""Tests of learning-rate policies against hand-worked values and PySlowFast's functions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slowfast.config.defaults import get_cfg
from slowfast.utils.lr_policy import get_lr_at_epoch

from multigrid import CosineRate, MultigridError, SteppedRate, Warmup
from multigrid.learning_rate import batch_rate_factor, is_adaptive, suits_linear_rule

quick = settings(max_examples=30, deadline=None, derandomize=True)

STEPPED = SteppedRate(ends=(40.0, 70.0, 90.0, 110.0), rates=(0.8, 0.08, 0.008, 0.0008))


def pyslowfast_config(*, warmup_epochs=0, cosine=False):
    """Return PySlowFast's config of the policies: 0.8, ×0.1 at epochs 40, 70 and 90 of 110."""
    cfg = get_cfg()
    solver = cfg.SOLVER
    solver.BASE_LR, solver.MAX_EPOCH = 0.8, 110
    solver.LR_POLICY = "cosine" if cosine else "steps_with_relative_lrs"
    solver.STEPS, solver.LRS = [0, 40, 70, 90], [1, 0.1, 0.01, 0.001]
    solver.WARMUP_EPOCHS, solver.WARMUP_START_LR = warmup_epochs, 0.002
    return cfg


@quick
@given(epoch=st.floats(0, 109.999), warmup_epochs=st.sampled_from([0, 16, 45]))
def test_stepped_rate_is_the_hosts(epoch, warmup_epochs):
    warmup = Warmup(start=0.002, epochs=warmup_epochs)
    policy = SteppedRate(STEPPED.ends, STEPPED.rates, warmup)
    expected = get_lr_at_epoch(pyslowfast_config(warmup_epochs=warmup_epochs), epoch)
    assert policy.at(epoch) == pytest.approx(expected, rel=1e-12)


@quick
@given(epoch=st.floats(0, 110), warmup_epochs=st.sampled_from([0, 16]))
def test_cosine_rate_is_the_hosts(epoch, warmup_epochs):
    policy = CosineRate(0.8, 110, warmup=Warmup(0.002, warmup_epochs))
    expected = get_lr_at_epoch(pyslowfast_config(warmup_epochs=warmup_epochs, cosine=True), epoch)
    assert policy.at(epoch) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_the_late_last_drop_comes_in_the_middle_of_the_last_stage():
    assert [STEPPED.at(e) for e in (39.99, 40, 110)] == [0.8, 0.08, 0.0008]
    late = STEPPED.with_late_last_drop()
    assert late.drops == (40, 70, 100)
    assert (late.at(99.9), late.at(100.1)) == (0.008, 0.0008)
    assert STEPPED.drops == (40, 70, 90), "the baseline's own policy is left alone"


def test_cosines_by_hand():
    policy = CosineRate(base=1.0, epochs=60, end=0.2)
    # cos 0, cos 60°, cos 90°, cos 120°, cos 180°
    assert [policy.at(e) for e in (0, 20, 30, 40, 60)] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    late = CosineRate(0.1, 10, warmup=Warmup(0.02, 2), after_warmup=True)
    # half of the warm-up, its end, cos 0, cos 90° and cos 180° of the 8 epochs that remain
    assert [late.at(e) for e in (0, 1, 2, 6, 10)] == pytest.approx([0.02, 0.06, 0.1, 0.05, 0])
    assert CosineRate(0.1, 100, cycles=2, fine_tuning=0.4).stage_ends == pytest.approx(
        (30, 60, 100)
    )
    with pytest.raises(ValueError, match="so no cosine follows"):
        CosineRate(0.1, 10, warmup=Warmup(0.02, 10), after_warmup=True)


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 0},
        {"epochs": -1.0},
        {"cycles": 0},
        {"fine_tuning": 0.0},
        {"fine_tuning": 1.0},
    ],
)
def test_cosines_that_are_none_are_refused(options):
    with pytest.raises(MultigridError, match="cycles at least 1, and fine_tuning"):
        CosineRate(**{"base": 0.1, "epochs": 1.0} | options)
    assert CosineRate(0.1, 0.5, cycles=1, fine_tuning=0.5).stage_ends == (0.25, 0.5)


@pytest.mark.parametrize(
    ("ends", "rates"),
    [
        ((), ()),
        ((1.0,), (0.1, 0.1)),
        ((0.0,), (0.1,)),
        ((2.0, 2.0), (0.1, 0.1)),
        ((2.0, 1.0), (0.1, 0.1)),
        ((1.0, 2.0), (0.1, -0.1)),
    ],
)
def test_steps_that_are_none_are_refused(ends, rates):
    with pytest.raises(MultigridError, match="one end for each learning rate"):
        SteppedRate(ends, rates)


def test_policies_of_one_stage():
    """A rate may be 0, as for weights that are frozen. One stage has no drop to delay."""
    flat = SteppedRate((5.0,), (0.0,))
    assert (flat.drops, flat.at(3.0), flat.with_late_last_drop()) == ((), 0.0, flat)
    cosine = CosineRate(0.1, 10)
    assert (cosine.drops, cosine.with_late_last_drop()) == ((), cosine)


def test_the_rate_of_a_batch_grows_by_a_rule():
    assert (batch_rate_factor(4.0), batch_rate_factor(4.0, "sqrt")) == (4.0, 2.0)
    with pytest.raises(MultigridError, match="batch_rate_rule is 'log'"):
        batch_rate_factor(4.0, "log")
    for name in ("Adam", "AdamW", "Adagrad", "Lamb", "Lion", "RMSprop"):
        assert is_adaptive(name)
        assert not suits_linear_rule(type(name, (), {}))
    for name in ("SGD", "LARS", "MomentumOptimizer", "Nesterov"):
        assert not is_adaptive(name)
        assert suits_linear_rule(type(name, (), {}))
