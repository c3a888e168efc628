"""Write a trained model as a folder for the Hugging Face Hub, which `load_model` reads back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import save
from torch import nn

from slowfast_patches.config.metrics import format_metrics, metric_names
from slowfast_patches.config.recipe import Recipe, default_recipe
from slowfast_patches.datasets.sampling import sampling_of
from slowfast_patches.models.transformer import input_size
from slowfast_patches.models.weights.files import WEIGHTS_FILE
from slowfast_patches.train.checkpoint import load
from slowfast_patches.train.predict.predictor import Predictor
from slowfast_patches.utils.files import atomic_write, write_text

_PRIVATE = (
    *("DATA.PATH_TO_DATA_DIR", "DATA.PATH_PREFIX", "OUTPUT_DIR", "TRAIN.CHECKPOINT_FILE_PATH"),
    *("TEST.CHECKPOINT_FILE_PATH", "AVA.FRAME_DIR", "AVA.FRAME_LIST_DIR", "AVA.ANNOTATION_DIR"),
)
"""Keys with paths of the machine. The folder has their defaults instead."""
_WITH_IMAGE_PROCESSOR = ("timesformer", "videomae")
"""Model types whose image processor runs without torchvision."""
_FILL_IN = "(fill in)"


def write_hub_folder(predictor: Predictor, checkpoint: Path, folder: Path) -> None:
    """Write a model, its recipe and a model card to a folder that can be uploaded to the Hub.

    The folder has config.json, model.safetensors, recipe.yaml, README.md and, if the run has one,
    metrics.jsonl. In config.json, "recipe" and "class_names" are for `load_model`. These are also
    the arguments that `huggingface_hub.PyTorchModelHubMixin` passes to a class. For a transformer,
    config.json is the model's configuration as well. VideoMAE and TimeSformer get a
    preprocessor_config.json, so that `transformers.pipeline` can load the folder.

    Args:
        predictor: The model.
        checkpoint: The file with the weights. A result.json of its run is quoted in README.md.
        folder: The folder to write. An existing README.md is kept.

    Raises:
        ValueError: transformers cannot load the model, because its own input size differs from the
            size of the test clips.
    """
    defaults = default_recipe()
    recipe = predictor.recipe.replaced({key: defaults[key] for key in _PRIVATE})
    if Path(recipe.hf.model).is_dir():
        recipe = recipe.replaced({"HF.MODEL": Path(recipe.hf.model).name})
    model = next(predictor.children())
    folder.mkdir(parents=True, exist_ok=True)
    added = {"recipe": yaml.safe_load(recipe.text), "class_names": predictor.class_names}
    if recipe.model.family.is_transformer:
        _write_transformer(model, recipe, added, folder)
    else:
        write_text(folder / "config.json", json.dumps(added, indent=2) + "\n")
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    with atomic_write(folder / WEIGHTS_FILE) as file:
        file.write(save(tensors, metadata={"format": "pt"}))
    write_text(folder / "recipe.yaml", recipe.text)
    run = checkpoint.parent.parent
    if (metrics := run / "metrics.jsonl").exists():
        shutil.copyfile(metrics, folder / metrics.name)
    if not (folder / "README.md").exists():
        write_text(folder / "README.md", _card(model, recipe, checkpoint, predictor.class_names))


def _write_transformer(model: Any, recipe: Recipe, added: Mapping[str, Any], folder: Path) -> None:
    """Write config.json and the image processor of a model of the package transformers."""
    data = recipe.data
    wanted = (data.num_frames, data.test_crop_size)
    if (size := input_size(model)) != wanted:
        raise ValueError(
            f"The model itself takes {size[0]} frames of {size[1]}² pixels, but the test has "
            f"{wanted[0]} frames of {wanted[1]}². For --hub, set DATA.NUM_FRAMES {size[0]} and "
            f"DATA.TEST_CROP_SIZE {size[1]}."
        )
    config = model.config.to_dict() | added | {"architectures": [type(model).__name__]}
    if names := added["class_names"]:
        config["id2label"] = dict(enumerate(names))
        config["label2id"] = {name: number for number, name in enumerate(names)}
    sigmoid = recipe.model.head_act == "sigmoid"
    config["problem_type"] = f"{'multi' if sigmoid else 'single'}_label_classification"
    write_text(folder / "config.json", json.dumps(config, indent=2, default=str) + "\n")
    if not _has_pipeline(model):
        return
    crops = recipe.test.num_spatial_crops
    short = sampling_of(recipe, "test").evaluation_short_side(data.test_crop_size, crops)
    processor = {
        "image_processor_type": "VideoMAEImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": short},
        "do_center_crop": True,
        "crop_size": {"height": data.test_crop_size, "width": data.test_crop_size},
        "do_rescale": True,
        "do_normalize": True,
        "image_mean": list(data.mean),
        "image_std": list(data.std),
    }
    write_text(folder / "preprocessor_config.json", json.dumps(processor, indent=2) + "\n")


def _has_pipeline(model: Any) -> bool:
    config = getattr(model, "config", None)
    return getattr(config, "model_type", None) in _WITH_IMAGE_PROCESSOR


def _card(model: nn.Module, recipe: Recipe, checkpoint: Path, names: tuple[str, ...] | None) -> str:
    """Return the text of README.md with the facts of the training."""
    data = recipe.data
    size = f"{data.num_frames} frames of {data.test_crop_size}² pixels"
    count = sum(parameter.numel() for parameter in model.parameters())
    facts = {
        "model": f"MODEL.ARCH {recipe.model.arch}, {count:,} parameters",
        "input": f"clips of {size}, DATA.CLIP_SAMPLING {data.clip_sampling}",
        "classes": ", ".join(names) if names else str(recipe.model.num_classes),
        "training data": _FILL_IN,
        **_facts_of_run(checkpoint, recipe),
        "seed": str(recipe.rng_seed),
        "multigrid": str(recipe.uses_multigrid),
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    stride = data.sampling_rate
    code = (
        f"""from transformers import pipeline

classify = pipeline("video-classification", model="PATH_OR_NAME")
classify("video.mp4", num_frames={data.num_frames}, frame_sampling_rate={stride})"""
        if _has_pipeline(model)
        else """from slowfast_patches import load_model

model = load_model("PATH")
model.scores("video.mp4")"""
    )
    return f"""---
license: other  # {_FILL_IN}
library_name: {"transformers" if _has_pipeline(model) else "slowfast-multigrid"}
pipeline_tag: video-classification
---
# {_FILL_IN}

| | |
|---|---|
{rows}

Licence: {_FILL_IN}

```python
{code}
```

To repeat the training:

```bash
multigrid-train --cfg recipe.yaml DATA.PATH_TO_DATA_DIR DATA OUTPUT_DIR RUN
```
"""


def _facts_of_run(checkpoint: Path, recipe: Recipe) -> dict[str, str]:
    """Return facts from a checkpoint and the result.json of its run, as far as they exist."""
    facts = dict[str, str]()
    try:
        state = load(checkpoint)
    except ValueError:  # not a checkpoint of the trainer
        return facts
    facts["training videos"] = f"{state.num_videos:,}"
    facts["trained for"] = f"{state.iteration:,} iterations, {state.epoch:.1f} epochs"
    result_file = checkpoint.parent.parent / "result.json"
    if not result_file.exists():
        return facts
    result = json.loads(result_file.read_text(encoding="utf-8"))
    metrics = {name: result[name] for name in metric_names(recipe)}
    versions = ", ".join(f"{name} {value}" for name, value in result["versions"].items())
    return facts | {
        "accuracy in the test": format_metrics(metrics),
        "seconds of training": f"{result['seconds']['training']:,.0f}",
        "date and versions": f"{result['date'][:10]}, {versions}",
    }
