"""Train a VideoMAE with multigrid: python (or torchrun) examples/transformers_demo.py DATA."""

import sys

from transformers import TrainingArguments, VideoMAEConfig, VideoMAEForVideoClassification, set_seed

import multigrid as mg
from multigrid.integrations.transformers import MultigridTrainer
from slowfast_patches.datasets import VideoClips


def main() -> None:
    base = mg.Shape(batch=8, frames=8, crop=32)
    clips, val = (VideoClips(f"{sys.argv[1]}/{s}.csv", base, stride=2) for s in ("train", "val"))
    rate = mg.SteppedRate((4.0, 5.0), (1e-3, 1e-4))
    schedule = mg.make_schedule(
        base, len(clips), rate, bn_group_size=None, size_divisor=8, batch_rate_rule="sqrt"
    )
    set_seed(0)
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3}
    grid = {"num_frames": 8, "image_size": 32, "tubelet_size": 2, "patch_size": 8}
    config = VideoMAEConfig(**sizes, **grid, intermediate_size=96, num_labels=clips.num_classes)
    model = mg.convert_positions(VideoMAEForVideoClassification(config))
    mg.check_patches(model, schedule.shapes)
    epochs = {"eval_strategy": "epoch", "save_strategy": "epoch", "save_total_limit": 1}
    trainer = MultigridTrainer(
        schedule=schedule,
        model=model,
        args=TrainingArguments("runs/transformers_demo", use_cpu=True, **epochs),
        train_dataset=clips,
        eval_dataset=val,
        compute_metrics=lambda found: {"accuracy": (found[0].argmax(1) == found[1]).mean()},
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
