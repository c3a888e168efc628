"""Write a trained model as a folder for the Hugging Face Hub, which `load_model` reads back."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import save

from slowfast_patches.config.key_lists import private_keys
from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.extras.hub.card import (
    card,
    checkpoint_state,
    facts_of,
    run_of,
    start_argument,
)
from slowfast_patches.models.weights.weight_files import WEIGHTS_FILE, digest_of
from slowfast_patches.train.predict.predictor import Predictor
from slowfast_patches.utils.errors import UserError, mistake_in, writing
from slowfast_patches.utils.files import atomic_write, make_folder, write_text

_PROCESSOR = "preprocessor_config.json"
"""File with which `transformers.pipeline` loads the folder."""
_OWN = (WEIGHTS_FILE, "config.json", "recipe.yaml", "metrics.jsonl", _PROCESSOR)
"""Files that describe the weights, beside README.md."""


def write_hub_folder(predictor: Predictor, checkpoint: Path, folder: Path) -> None:
    """Write a model, its recipe and a model card to a folder that can be uploaded to the Hub.

    The folder has config.json, model.safetensors, recipe.yaml, README.md and, if the run has one,
    metrics.jsonl. In config.json, "recipe" and "class_names" are for `load_model`. These are also
    the arguments that `huggingface_hub.PyTorchModelHubMixin` passes to a class. The model may add
    more, so that other programs can load the folder (`ModelSpec.published`).

    Args:
        predictor: The model.
        checkpoint: The file with the weights. README.md quotes the accuracy of these weights.
        folder: The folder to write. If it has the same weights already, its README.md is kept.

    Raises:
        ValueError: The folder has another model or a README.md of another model. Or transformers
            cannot load the model, because its own input size differs from the size of the test
            clips.
    """
    defaults = default_recipe()
    recipe = predictor.recipe.replaced({key: defaults[key] for key in private_keys()})
    model: Any = next(predictor.children())
    names = predictor.class_names
    files = dict[str, dict[str, Any]]()
    if (published := recipe.model.spec.published) is not None:
        recipe, files = published(model, recipe, names)
    digest = digest_of(model.state_dict())
    _check_folder(folder, digest)
    config = {"recipe": yaml.safe_load(recipe.text), "class_names": names, "weights": digest}
    files["config.json"] = files.get("config.json", {}) | config
    has_pipeline = _PROCESSOR in files
    state = checkpoint_state(checkpoint)
    run = run_of(checkpoint, state)
    facts = facts_of(model, recipe, state, run, names)
    _check_own(folder)
    make_folder(folder, "--hub")
    for name, content in files.items():
        write_text(folder / name, json.dumps(content, indent=2, default=str) + "\n")
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    with atomic_write(folder / WEIGHTS_FILE) as file:
        file.write(save(tensors, metadata={"format": "pt"}))
    write_text(folder / "recipe.yaml", recipe.text)
    if run is not None and (metrics := run / "metrics.jsonl").exists():
        with writing(folder / metrics.name):
            shutil.copyfile(metrics, folder / metrics.name)
    if not (folder / "README.md").exists():
        text = card(recipe, facts, start_argument(state), has_pipeline=has_pipeline)
        write_text(folder / "README.md", text)


def _check_own(folder: Path) -> None:
    """Raise UserError if a folder has files but no config.json of a model of this package."""
    with mistake_in(f"--hub {folder} cannot be used", OSError, ValueError, TypeError):
        if not folder.exists() or not any(folder.iterdir()):
            return
        config = folder / "config.json"
        is_own = config.is_file() and "recipe" in json.loads(config.read_text(encoding="utf-8"))
    if not is_own:
        raise UserError(
            f"--hub {folder} has other files, which would be mixed with the model. Choose a new "
            "folder."
        )


def _check_folder(folder: Path, digest: str) -> None:
    """Check that a folder has neither another model nor a card that describes another model.

    Raises:
        ValueError: The folder has one of them.
    """
    there = [name for name in (*_OWN, "README.md") if (folder / name).exists()]
    if not there:
        return
    known = None
    with suppress(OSError, ValueError, AttributeError):
        known = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("weights")
    if known != digest:
        raise UserError(
            f"{folder} has {', '.join(there)} of another model. Remove them, or choose another "
            "folder for --hub."
        )
