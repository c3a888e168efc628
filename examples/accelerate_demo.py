"""Train with multigrid in accelerate: python (or torchrun) examples/accelerate_demo.py DATA."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

import multigrid as mg
from slowfast_patches.datasets import VideoClips

if __name__ == "__main__":
    accelerator = Accelerator(cpu=True)
    base, rate = mg.Shape(batch=8, frames=8, crop=32), mg.SteppedRate((4, 5), (0.1, 0.01))
    clips, val = (VideoClips(f"{sys.argv[1]}/{s}.csv", base, stride=2) for s in ("train", "val"))
    schedule = mg.make_schedule(base, len(clips), rate, mg.GENTLE, bn_group_size=4)
    layers = [nn.Conv3d(3, 32, 5, 2, 2), nn.BatchNorm3d(32), nn.ReLU(), nn.AdaptiveAvgPool3d(1)]
    layers += [nn.Flatten(), nn.Linear(32, clips.num_classes)]
    model = mg.convert_batchnorm(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    network, stepped = accelerator.prepare(model, optimizer)  # Do not prepare the loader.
    mg.fix_gradient_layout(network)  # A resumed training rounds as an uninterrupted one.
    training = mg.Training(schedule, model, optimizer)
    accelerator.register_for_checkpointing(training)  # To resume, call accelerator.load_state here.
    for batch in training.batches(training.loader(clips, num_workers=1)):
        training.begin(batch)  # Set the learning rate and the BN group size of this iteration.
        loss = nn.functional.cross_entropy(network(mg.network_input(batch)), batch["labels"])
        stepped.zero_grad()
        accelerator.backward(loss)
        stepped.step()
        mg.average_running_stats(model)  # BN statistics of all processes
        if training.iteration % 10 == 0 or training.iteration == schedule.iterations:
            accelerator.save_state("runs/accelerate_demo")
    (batch,) = DataLoader(val, len(val), collate_fn=mg.collate)
    right = model.eval()(mg.network_input(batch)).argmax(1) == batch["labels"]
    print(f"accuracy {right.float().mean():.3f}")
