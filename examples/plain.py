"""Train with multigrid in a plain loop: python (or torchrun) examples/plain.py DATA."""

import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import multigrid as mg
from slowfast_patches.datasets import VideoClips


def main() -> None:
    if torchrun := torch.distributed.is_torchelastic_launched():
        torch.distributed.init_process_group("gloo")
    base, rate = mg.Shape(batch=8, frames=8, crop=32), mg.SteppedRate((4, 5), (0.1, 0.01))
    clips, val = (VideoClips(f"{sys.argv[1]}/{s}.csv", base, stride=2) for s in ("train", "val"))
    schedule = mg.make_schedule(base, len(clips), rate, mg.GENTLE, bn_group_size=4)
    torch.manual_seed(0)
    layers = [nn.Conv3d(3, 16, 5, (1, 2, 2), 2), nn.BatchNorm3d(16), nn.ReLU()]
    layers += [nn.Conv3d(16, 32, 3, (1, 2, 2), 1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()]
    model = mg.convert_batchnorm(nn.Sequential(*layers, nn.Linear(32, clips.num_classes)))
    network = DistributedDataParallel(model, broadcast_buffers=False) if torchrun else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    training = mg.Training(schedule, model, optimizer)
    loader = training.loader(clips, num_workers=1)
    for _ in range(training.epochs):  # To resume, call training.load_state_dict before.
        for batch in loader:
            training.begin(batch)  # Set the learning rate and the BN group size of this iteration.
            loss = nn.functional.cross_entropy(network(mg.network_input(batch)), batch["labels"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    mg.average_running_stats(model.eval())
    for batch in DataLoader(val, len(val), collate_fn=mg.collate):
        right = model(mg.network_input(batch)).argmax(1) == batch["labels"]
        print(f"accuracy {right.float().mean():.3f}")


if __name__ == "__main__":
    main()
