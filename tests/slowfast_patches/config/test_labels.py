"""Data sets, labels, losses and scores that fit together, and those that do not."""

import pytest

from slowfast_patches.config import check_recipe, load_recipe

CHARADES = {
    "TRAIN.DATASET": "charades",
    "TEST.DATASET": "charades",
    "MODEL.NUM_CLASSES": 157,
    "DATA.MULTI_LABEL": True,
    "MODEL.LOSS_FUNC": "bce_logit",
    "MODEL.HEAD_ACT": "sigmoid",
    "DATA.ENSEMBLE_METHOD": "max",
}
"""What the later releases' Charades recipes say of labels."""


def check(keys: dict[str, object]) -> None:
    check_recipe(load_recipe(None, [word for pair in keys.items() for word in pair]))


@pytest.mark.parametrize("ensemble", ["sum", "max"])
def test_one_label_and_several_are_trained_and_tested(ensemble):
    check({"DATA.ENSEMBLE_METHOD": ensemble})
    check({"TRAIN.DATASET": "ssv2", "TEST.DATASET": "ssv2", "DATA.ENSEMBLE_METHOD": ensemble})
    check(CHARADES | {"DATA.ENSEMBLE_METHOD": ensemble})


@pytest.mark.parametrize("section", ["TRAIN", "TEST"])
def test_the_data_set_of_what_is_not_run_does_not_matter(section):
    check(CHARADES | {f"{section}.ENABLE": False, f"{section}.DATASET": "kinetics"})


def test_a_data_set_of_ones_own_may_have_either():
    own = {"TRAIN.DATASET": "cats", "TEST.DATASET": "cats"}
    check(own)
    check(CHARADES | own)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("MODEL.LOSS_FUNC", "hinge", "'hinge' does not fit DATA.MULTI_LABEL False"),
        ("MODEL.LOSS_FUNC", "bce_logit", "LOSS_FUNC cross_entropy, or DATA.MULTI_LABEL True"),
        ("MODEL.LOSS_FUNC", "bce", "the head gives logits; set MODEL.LOSS_FUNC cross_entropy"),
        ("MODEL.HEAD_ACT", "tanh", "set MODEL.HEAD_ACT softmax"),
        ("MODEL.HEAD_ACT", "sigmoid", "set MODEL.HEAD_ACT softmax, or DATA.MULTI_LABEL True"),
        ("DATA.MULTI_LABEL", True, "TRAIN.DATASET kinetics, whose videos have one label each"),
        ("TRAIN.DATASET", "charades", "DATA.MULTI_LABEL True with MODEL.LOSS_FUNC bce_logit and"),
        ("TEST.DATASET", "Charades", "TEST.DATASET Charades, whose videos have several labels"),
    ],
)
def test_one_label_refuses_what_is_for_several(key, value, message):
    with pytest.raises(ValueError) as caught:
        check({key: value})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("MODEL.LOSS_FUNC", "cross_entropy", "set MODEL.LOSS_FUNC bce_logit, or DATA.MULTI_LABEL"),
        ("MODEL.LOSS_FUNC", "bce", "the head gives logits; set MODEL.LOSS_FUNC bce_logit"),
        ("MODEL.HEAD_ACT", "softmax", "set MODEL.HEAD_ACT sigmoid, or DATA.MULTI_LABEL False"),
        ("MODEL.LABEL_SMOOTHING", 0.1, "DATA.MULTI_LABEL is True; set MODEL.LABEL_SMOOTHING 0.0"),
        ("DATA.MULTI_LABEL", False, "TRAIN.DATASET charades, whose videos have several labels"),
        ("TEST.DATASET", "ssv2", "DATA.MULTI_LABEL True does not fit TEST.DATASET ssv2"),
    ],
)
def test_several_labels_refuse_what_is_for_one(key, value, message):
    with pytest.raises(ValueError) as caught:
        check(CHARADES | {key: value})
    assert message in str(caught.value)
