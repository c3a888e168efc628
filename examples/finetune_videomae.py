"""Fine-tune a VideoMAE: python (or torchrun) examples/finetune_videomae.py MODEL PREPARED OUTPUT.

PREPARED is the output of multigrid-prepare for a folder of videos.
"""

import json
import sys
from functools import partial
from pathlib import Path

import torch
from transformers import TrainingArguments, VideoMAEForVideoClassification, set_seed

import multigrid as mg
from multigrid.integrations.transformers import MultigridTrainer, processor_colours, video_inputs
from slowfast_patches.datasets import VideoClips
from slowfast_patches.extras.transformers.transformer_model import parameter_depths

EPOCHS = 20
RATE = 3e-4
LAYER_DECAY = 0.75


def main() -> None:
    folder, prepared, output = map(Path, sys.argv[1:4])
    numbers = json.loads((prepared / "classes.json").read_text())
    names = {number: name for name, number in numbers.items()}
    set_seed(0)
    model = VideoMAEForVideoClassification.from_pretrained(
        folder, id2label=names, label2id=numbers, ignore_mismatched_sizes=True
    )  # The head is new. To train the head alone, add model.videomae.requires_grad_(False).
    mg.convert_positions(model)  # Interpolate position embeddings to the shape of each mini-batch.

    base = mg.Shape(batch=8, frames=model.config.num_frames, crop=model.config.image_size)
    # For clips of a fixed stride, pass segments=False here and `stride` to VideoClips.
    sampling = mg.SamplingOptions(segments=True, flip=False)
    kinds = {"sampling": sampling, "short_sides": (base.crop, base.crop * 9 // 8)}
    train, val = (VideoClips(prepared / f"{s}.csv", base, **kinds) for s in ("train", "val"))
    schedule = mg.make_schedule(
        base,
        len(train),
        mg.CosineRate(RATE, EPOCHS, 1e-6, mg.Warmup(1e-6, EPOCHS / 20)),
        # (t/T, h/H) of each long-cycle shape. To train the baseline, replace Cycles(...) by None.
        mg.Cycles(((0.25, 1), (0.5, 1), (1, 1)), batch_exponent=0.5),
        bn_group_size=None,
        size_divisor=model.config.patch_size,
        batch_rate_rule="sqrt",
    )
    mg.check_patches(model, schedule.shapes)
    depths = parameter_depths(model)
    groups = [
        {"params": [p], "weight_decay": 0.05 * (p.ndim > 1), "lr_scale": LAYER_DECAY**above}
        for p, above in ((p, max(depths.values()) - depth) for p, depth in depths.items())
    ]
    colours = json.loads((folder / "preprocessor_config.json").read_text())
    mean, std = processor_colours(colours)
    epochs = {"save_strategy": "epoch", "save_total_limit": 1, "eval_strategy": "epoch"}
    trainer = MultigridTrainer(
        schedule=schedule,
        model=model,
        args=TrainingArguments(output, bf16=torch.cuda.is_available(), **epochs),
        train_dataset=train,
        eval_dataset=val,
        optimizers=(torch.optim.AdamW(groups, lr=0.0), None),
        data_collator=partial(video_inputs, mean=mean, std=std),
        compute_metrics=lambda found: {"accuracy": (found[0].argmax(1) == found[1]).mean()},
    )
    trainer.train()
    print(trainer.evaluate())
    trainer.save_model(output)


if __name__ == "__main__":
    main()
