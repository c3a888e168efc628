"""The model card of a folder for the Hub: facts about the weights in the folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from slowfast_patches.config.key_lists import changes_scores, describes_test
from slowfast_patches.config.metrics import EMA, format_metrics, metric_names
from slowfast_patches.config.recipe import Recipe, stored_keys, values_by_key
from slowfast_patches.config.yaml_text import parse_yaml
from slowfast_patches.plan.run_identity import Aspect, Identity, differences_between
from slowfast_patches.train.checkpoint import Checkpoint, head_of, last_checkpoint, load
from slowfast_patches.utils.errors import UserError, mistake_in

FILL_IN = "(fill in)"
_SCORED = Aspect(lambda name: changes_scores(name) or describes_test(name), frozenset())
"""What must be as in the training for its accuracy to be that of the folder."""
_START = "TRAIN.CHECKPOINT_FILE_PATH"


def checkpoint_state(checkpoint: Path) -> Checkpoint | None:
    """Return the state in a file with weights, or None if it is no checkpoint of a training."""
    with suppress(UserError):
        return load(checkpoint)
    return None


def run_of(checkpoint: Path, state: Checkpoint | None) -> Path | None:
    """Return the OUTPUT_DIR of the training of a checkpoint, or None if it lies elsewhere."""
    run = checkpoint.parent.parent
    last = last_checkpoint(run)
    head = head_of(last) if last else None
    is_of_run = state is not None and head is not None and head.training == state.training
    return run if is_of_run else None


def facts_of(
    model: nn.Module,
    recipe: Recipe,
    state: Checkpoint | None,
    run: Path | None,
    names: Sequence[str] | None,
) -> dict[str, str]:
    """Return the facts of the model card.

    Args:
        model: The model.
        recipe: The recipe of the folder.
        state: The checkpoint that the weights are from, if they are from a training.
        run: The OUTPUT_DIR of this training, if it is known.
        names: The class names.
    """
    data = recipe.data
    count = sum(parameter.numel() for parameter in model.parameters())
    facts = {
        "model": f"MODEL.ARCH {recipe.model.arch}, {count:,} parameters",
        "input": f"clips of {data.num_frames} frames of {data.test_crop_size}² pixels",
        "classes": ", ".join(names) if names else str(recipe.model.num_classes),
        "training data": FILL_IN,
    }
    if state is None:
        return facts | {"accuracy": FILL_IN}
    facts["training videos"] = f"{state.num_videos:,}"
    facts["start weights"] = _start_weights(state)
    facts["trained for"] = f"{state.iteration:,} iterations, {state.epoch:.1f} epochs"
    if state.averaged:
        facts["weights"] = "averaged over the iterations (MODEL.EMA_DECAY)"
    if state.changes:
        facts["changes in the training"] = "; ".join(state.changes)
    if others := _changed_since(state, recipe):
        facts["changed since the training"] = "; ".join(others)
    return facts | _accuracy(state, _result_of(state, run), bool(others), recipe)


def start_argument(state: Checkpoint | None) -> str:
    """Return the arguments that name the start weights in the command of a training."""
    given = _given_start(state)
    if not given:
        return ""
    shown = given if given.startswith("https://") else Path(given).name
    return f" {_START} {shlex.quote(shown)}"


def _given_start(state: Checkpoint | None) -> str:
    return str(state.identity.get("keys", {}).get(_START, "")) if state else ""


def _start_weights(state: Checkpoint) -> str:
    fact = state.identity.get("facts", {}).get("weights")
    given = _given_start(state)
    if not given:
        model = state.identity.get("keys", {}).get("HF.MODEL", "")
        is_pretrained = state.identity.get("keys", {}).get("MODEL.ARCH") == "hf" and "/" in model
        return Path(model).name if is_pretrained else "random"
    name = given if given.startswith("https://") else Path(given).name
    return f"{name} (SHA-256 {fact['content']}…)" if fact and "content" in fact else name


def _changed_since(state: Checkpoint, recipe: Recipe) -> list[str]:
    """Describe the keys that affect the scores and had another value in the training."""
    trained = Identity(stored_keys(parse_yaml(state.cfg)), {})
    here = Identity(values_by_key(recipe), {})
    ignored = ("HF.MODEL", "TEST.CHECKPOINT_FILE_PATH", "TEST.ENABLE", "TEST.DATASET")
    found = differences_between(trained, here, _SCORED)
    return [text for name, text in found.items() if name not in ignored]


def _result_of(state: Checkpoint, run: Path | None) -> dict[str, Any]:
    """Return the result of the training of a checkpoint, or {} if it has none."""
    file = run and run / "result.json"
    if not file or not file.is_file():
        return {}
    with mistake_in(f"{file} is not a result", OSError, ValueError, LookupError, TypeError):
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return result if result["training"] == state.training else {}


def _accuracy(
    state: Checkpoint, result: Mapping[str, Any], is_changed: bool, recipe: Recipe
) -> dict[str, str]:
    """Return the accuracy of the weights in a checkpoint, and when it was measured.

    Only the weights after the last iteration are tested. Earlier weights may have been validated.
    """
    names = metric_names(recipe)
    is_best = state.optimizer_state is None
    metrics: Mapping[str, Any] = {}
    what = f"accuracy in the validation after iteration {state.iteration:,}"
    if is_best:
        metrics = state.best
    elif result and result["iterations"] == state.iteration:
        metrics = result
        is_tested = result["config"]["TEST"]["ENABLE"]
        what = "accuracy in the test" if is_tested else what
    else:
        metrics = next((e for e in state.evaluations if e["iteration"] == state.iteration), {})
    suffix = EMA if state.averaged else ""
    found = {name: metrics[name + suffix] for name in names if name + suffix in metrics}
    facts = {what: format_metrics(found) if found else f"not measured {FILL_IN}"}
    if is_changed:
        facts[what] += ", before the changes since the training"
    if result:
        facts["date"] = result["date"][:10]
    return facts


def card(recipe: Recipe, facts: Mapping[str, str], start: str, *, has_pipeline: bool) -> str:
    """Return the text of README.md.

    Args:
        recipe: The recipe of the folder.
        facts: Result of `facts_of`.
        start: Result of `start_argument`.
        has_pipeline: Whether `transformers.pipeline` can load the folder.
    """
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    code = """from slowfast_patches import load_model

model = load_model("PATH")
model.scores("video.mp4")"""
    if has_pipeline:
        data = recipe.data
        code = f"""from transformers import pipeline

classify = pipeline("video-classification", model="PATH_OR_NAME")
classify("video.mp4", num_frames={data.num_frames}, frame_sampling_rate={data.sampling_rate})"""
    return f"""---
license: other  # {FILL_IN}
library_name: {"transformers" if has_pipeline else "slowfast-multigrid"}
pipeline_tag: video-classification
---
# {FILL_IN}

| | |
|---|---|
{rows}

Licence: {FILL_IN}

```python
{code}
```

To repeat the training:

```bash
multigrid-train --cfg recipe.yaml DATA.PATH_TO_DATA_DIR DATA OUTPUT_DIR RUN{start}
```
"""
