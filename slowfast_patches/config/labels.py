"""Whether a recipe's data sets, labels, loss and scores fit together."""

from __future__ import annotations

from collections.abc import Mapping

from slowfast_patches.config.recipe import Recipe

__all__ = ["SEVERAL_LABELS", "check_labels"]

SEVERAL_LABELS: Mapping[str, bool] = {"kinetics": False, "ssv2": False, "charades": True}
"""Whether a video of a data set has several labels; of other data sets nothing is known."""

_FITTING: Mapping[bool, Mapping[str, str]] = {
    False: {"LOSS_FUNC": "cross_entropy", "HEAD_ACT": "softmax"},
    True: {"LOSS_FUNC": "bce_logit", "HEAD_ACT": "sigmoid"},
}
"""Keys of MODEL by DATA.MULTI_LABEL. Sigmoid scores of a softmax training depend on an offset that
nothing trains; softmax scores of several labels do not compare between videos, which mAP ranks."""

_BECAUSE: Mapping[bool, str] = {
    False: "the classes compete for a video's one label",
    True: "a video may have each of the classes or not, whatever the others",
}


def check_labels(recipe: Recipe) -> None:
    """Refuse a loss, or an activation of the head, that does not fit the labels.

    DATA.ENSEMBLE_METHOD is free: scores are probabilities either way, and their sum and their
    maximum over views both rank classes and videos.

    Raises:
        ValueError: a single class; MODEL.LABEL_SMOOTHING with several labels; DATA.MULTI_LABEL
            that is not the data set's, MODEL.LOSS_FUNC or MODEL.HEAD_ACT that is not for it; says
            what is.
    """
    several = recipe.data.multi_label
    if recipe.model.num_classes == 1 and not several:
        raise ValueError(
            "MODEL.NUM_CLASSES 1: where every video has the same label there is nothing to learn; "
            "give the videos of at least one class more"
        )
    for section in (name for name in ("TRAIN", "TEST") if recipe[name].enable):
        dataset = recipe[section].dataset
        if SEVERAL_LABELS.get(dataset.lower(), several) != several:
            raise ValueError(
                f"DATA.MULTI_LABEL {several} does not fit {section}.DATASET {dataset}, whose "
                f"videos have {'one label' if several else 'several labels'} each; set "
                f"{section}.DATASET to another, or DATA.MULTI_LABEL {not several} with "
                f"{_fitting(not several)}"
            )
    if several and recipe.model.label_smoothing:
        raise ValueError(
            f"MODEL.LABEL_SMOOTHING {recipe.model.label_smoothing:g} is for a video's one label "
            f"among "
            "classes that compete, and DATA.MULTI_LABEL is True; set MODEL.LABEL_SMOOTHING 0.0"
        )
    if recipe.model.loss_func == "bce":
        raise ValueError(
            "MODEL.LOSS_FUNC bce takes probabilities, and in training the head gives logits; set "
            f"MODEL.LOSS_FUNC {_FITTING[several]['LOSS_FUNC']}"
        )
    for key, fitting in _FITTING[several].items():
        value = recipe[f"MODEL.{key}"]
        if value != fitting:
            other = value == _FITTING[not several][key]
            raise ValueError(
                f"MODEL.{key} {value!r} does not fit DATA.MULTI_LABEL {several}, where "
                f"{_BECAUSE[several]}; set MODEL.{key} {fitting}"
                + (f", or DATA.MULTI_LABEL {not several}" if other else "")
            )


def _fitting(several: bool) -> str:
    """What else to set with DATA.MULTI_LABEL."""
    return " and ".join(f"MODEL.{key} {value}" for key, value in _FITTING[several].items())
