"""Identity of a result: all inputs that determine it, for runs, checkpoints and experiments.

`run_identity` makes the value of a run. It is stored in each checkpoint and in result.json.
`differences_between` compares two values in words. A result is never reused only because a name, a
time stamp or a count agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from slowfast_patches.config.key_lists import (
    changes_scores,
    changes_times,
    changes_training,
    describes_evaluations,
    describes_test,
)
from slowfast_patches.config.recipe import (
    KEYS,
    Recipe,
    default_recipe,
    differences,
    plain,
    values_by_key,
)
from slowfast_patches.datasets.protocol import VideoDataset
from slowfast_patches.plan.facts import (
    Fact,
    code_digest,
    division_of,
    facts_of_split,
    reading_key,
    schedule_facts,
    splits_of,
    weights_fact,
)
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.utils.machine import machine, versions

WEIGHTS_KEYS = ("TRAIN.CHECKPOINT_FILE_PATH", "TEST.CHECKPOINT_FILE_PATH")


@dataclass(frozen=True)
class Identity:
    """Everything that determines the result of a run, and what is known about its times.

    Attributes:
        keys: Values of the keys that have an effect, by full key. TRAIN.BATCH_SIZE is the global
            batch size.
        facts: Maps a name such as "train_list" to a `Fact`. A fact that is unknown here, such as a
            list on another machine, is missing.
        timing: What the wall-clock times depend on besides the keys: machine and processes.
        remarks: What should not change the result: versions of packages, time stamps of videos.
    """

    keys: Mapping[str, Any]
    facts: Mapping[str, Fact]
    timing: Mapping[str, Any] = field(default_factory=dict)
    remarks: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the value as nested dicts, lists, texts and numbers."""
        value: dict[str, Any] = plain(asdict(self))
        return value

    @classmethod
    def of_json(cls, content: Mapping[str, Any]) -> Identity:
        """Return the value from the result of `to_json`. Entries of later versions are ignored."""
        return cls(
            **{name: content.get(name, {}) for name in ("keys", "facts", "timing", "remarks")}
        )


class Aspect(NamedTuple):
    """A purpose of a comparison, which says what must be equal.

    Attributes:
        key: Function that returns whether a key counts.
        facts: Names of the facts that count.
    """

    key: Callable[[str], bool]
    facts: frozenset[str]


_TRAINING = frozenset(
    (
        *("train_list", "train_clips", "val_list", "val_clips", "weights", "code"),
        *("schedule", "rates", "division"),
    )
)
_TEST = frozenset(("test_list", "test_clips"))

TRAINING = Aspect(changes_training, _TRAINING)
"""What must be equal for a run to resume: everything that determines the weights, and how the
validations score them."""
RESULT = Aspect(
    lambda name: changes_training(name) or describes_test(name) or describes_evaluations(name),
    _TRAINING | _TEST,
)
"""What must be equal for two results to be equal."""
EXPERIMENT = Aspect(lambda name: RESULT.key(name) or changes_times(name), RESULT.facts)
"""What must be equal for a finished run to stand for a run of an experiment: result and times."""
SCORES = Aspect(changes_scores, frozenset())
"""What must be equal for a model to score videos as in its training."""
DATA = Aspect(lambda name: False, _TRAINING - {"schedule", "rates", "division"} | _TEST)
"""What the recipes of two variants do not say."""


def differences_between(there: Identity, here: Identity, aspect: Aspect) -> dict[str, str]:
    """Describe what differs between two runs.

    A fact that is unknown in one of them is not compared, and neither is an unknown path of
    weights. If the content of both weight files is known, their paths are not compared.

    Args:
        there: The run that was computed before.
        here: The run that is to be computed now.
        aspect: The keys and facts to compare.

    Returns:
        A text such as "SOLVER.BASE_LR 0.1 there, 0.2 here" by the name of each key or fact.
    """
    facts = [name for name in sorted(aspect.facts) if name in there.facts and name in here.facts]
    ignored = {name for name in KEYS if not aspect.key(name)}
    if "weights" in facts:
        ignored.update(WEIGHTS_KEYS)
    ignored.update(n for n in WEIGHTS_KEYS if n not in there.keys or n not in here.keys)
    texts = differences(_with_defaults(there), _with_defaults(here), ignored)
    for name in facts:
        before, now = there.facts[name], here.facts[name]
        if {**before, "file": None} != {**now, "file": None}:  # a file may have been renamed
            texts[name] = f"{name}: {_compare(before, now)}"
    return texts


def remarks_between(there: Identity, here: Identity) -> list[str]:
    """Describe what differs but should not change a result: versions and times of videos."""
    texts = list[str]()
    before, now = (each.remarks.get("versions", {}) for each in (there, here))
    other = [f"{n} {before[n]} (now {now[n]})" for n in before if n in now and before[n] != now[n]]
    if other:
        texts.append(f"other versions: {', '.join(other)}")
    for name, value in here.remarks.items():
        if name.endswith("_times") and there.remarks.get(name, value) != value:
            split = name.removesuffix("_times")
            texts.append(
                f"videos of {split} that had other modification times, but the same frames"
            )
    return texts


def clock_text(identity: Identity) -> str:
    """Return what the wall-clock times of a run depend on besides its recipe."""
    timing = identity.timing
    gpus = timing["gpus"] if identity.keys.get("NUM_GPUS", 1) else []
    where = f"CPU {timing['processor']}, {timing['cores']} cores, {timing['threads']} threads"
    if gpus:
        where = gpus[0]
    defaults = values_by_key(default_recipe())
    keys = [
        f"{name} {value}"
        for name, value in identity.keys.items()
        if (changes_times(name) or KEYS[name].switch) and value != defaults.get(name)
    ]
    return ", ".join([f"{timing['processes']} × {where}", *sorted(keys)])


def _with_defaults(identity: Identity) -> dict[str, Any]:
    """Return the keys, with the default of each key that had no effect or did not exist."""
    values = values_by_key(default_recipe())
    return values | {name: value for name, value in identity.keys.items() if name in values}


_WORDS = {
    "labels": "other labels",
    "names": "other names or another order",
    "content": "other sizes or frames",
}
"""What a different hash in a fact about a list means."""


def _compare(there: Fact, here: Fact) -> str:
    """Describe how two facts differ, without the hashes of lists and videos."""
    for count, what in (("videos", "videos"), ("readable", "readable videos")):
        if count in there and count in here:
            differing = [name for name in {**there, **here} if there.get(name) != here.get(name)]
            words = [_WORDS.get(name, f"another {name}") for name in differing if name != count]
            found = f"{there[count]} {what} there, {here[count]} here"
            return f"{found} ({', '.join(words)})" if words else found
    return f"{_describe(there, here)} there, {_describe(here, there)} here"


def _describe(fact: Fact, other: Fact) -> str:
    """Return the entries of a fact that differ from those of another fact."""
    parts = [
        f"{name} {_shorten(value)}"
        for name, value in fact.items()
        if name not in other or other[name] != value
    ]
    return ", ".join(parts) or "nothing else"


def _shorten(value: Any) -> str:
    text = "; ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# The value of a run.


def run_identity(
    recipe: Recipe,
    datasets: Mapping[str, VideoDataset] | None = None,
    *,
    seen: MutableMapping[object, dict[str, Any]] | None = None,
    clips: bool = True,
) -> Identity:
    """Return the `Identity` of a run: everything that determines its result.

    Args:
        recipe: The resolved recipe.
        datasets: The data sets of the run by split. By default, they are built from the lists that
            exist on this machine. Lists that do not exist are unknown.
        seen: Cache of facts about lists and videos. The runs of an experiment share their lists.
        clips: Whether to look at the video files. Without `datasets`, the lists alone are read.
    """
    facts = dict[str, Fact]()
    remarks: dict[str, Any] = {"versions": versions()}
    for split in splits_of(recipe):
        known = None if seen is None else seen.get(reading_key(recipe, split, clips))
        if known is None:
            known = facts_of_split(recipe, split, (datasets or {}).get(split), clips)
            if seen is not None:
                seen[reading_key(recipe, split, clips)] = known
        facts |= known["facts"]
        remarks |= known["remarks"]
    if recipe.train.enable:
        size = facts.get("train_list", {}).get("videos")
        if size is not None:
            facts |= schedule_facts(schedule_of(recipe, size))
        if (processes := division_of(recipe)) is not None:
            facts["division"] = processes
    if (weights := weights_fact(recipe)) is not None:
        facts["weights"] = weights
    if recipe.imports:
        facts["code"] = {name: code_digest(name) for name in recipe.imports}
    here = machine()
    timing = {name: here[name] for name in ("processor", "cores", "threads", "gpus")}
    return Identity(
        effective_keys(recipe), facts, timing | {"processes": recipe.world_size}, remarks
    )


def effective_keys(recipe: Recipe) -> dict[str, Any]:
    """Return the keys that may change the result or the times of a recipe, by full key."""
    values = values_by_key(recipe)
    values["TRAIN.BATCH_SIZE"] = recipe.base_shape.batch
    without_effect = {name for name, key in KEYS.items() if key.needs and key.needs(recipe)}
    without_effect.update(recipe.model.spec.without_effect)
    if not recipe.test.enable:
        without_effect.update(name for name in KEYS if name.startswith("TEST."))
        without_effect.remove("TEST.ENABLE")
    if recipe.train.enable:
        without_effect.add("TEST.CHECKPOINT_FILE_PATH")
    return {
        name: value
        for name, value in values.items()
        if (EXPERIMENT.key(name) or SCORES.key(name)) and name not in without_effect
    }


def without_weights(identity: Identity) -> Identity:
    """Return a copy in which the initial weights are unknown."""
    keys = {name: value for name, value in identity.keys.items() if name not in WEIGHTS_KEYS}
    facts = {name: fact for name, fact in identity.facts.items() if name != "weights"}
    return replace(identity, keys=keys, facts=facts)
