"""Train with multigrid in Lightning: python examples/lightning_demo.py DATA [PROCESSES]."""

import sys

import lightning as L
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader

import multigrid as mg
from multigrid.integrations.lightning import MultigridCallback
from slowfast_patches.datasets import VideoClips


class Net(L.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        parts = [nn.Conv3d(3, 32, 5, 2, 2), nn.BatchNorm3d(32), nn.ReLU(), nn.AdaptiveAvgPool3d(1)]
        self.net = mg.convert_batchnorm(nn.Sequential(*parts, nn.Flatten(), nn.Linear(32, classes)))

    def training_step(self, batch: mg.Batch, number: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(mg.network_input(batch)), batch["labels"])

    def validation_step(self, batch: mg.Batch, number: int) -> None:
        right = self.net(mg.network_input(batch)).argmax(1) == batch["labels"]
        self.log("accuracy", right.float().mean(), prog_bar=True, batch_size=len(right))

    def configure_optimizers(self) -> optim.Optimizer:
        return optim.SGD(self.parameters(), lr=0.0, momentum=0.9)


if __name__ == "__main__":
    base, devices = mg.Shape(batch=8, frames=8, crop=32), sys.argv[2] if sys.argv[2:] else 1
    clips, val = (VideoClips(f"{sys.argv[1]}/{s}.csv", base, stride=2) for s in ("train", "val"))
    schedule = mg.make_schedule(
        base, len(clips), mg.SteppedRate((4, 5), (0.1, 0.01)), bn_group_size=4
    )
    net, multigrid = Net(clips.num_classes), MultigridCallback(schedule)
    net.train_dataloader = lambda: multigrid.loader(clips, num_workers=1)
    saves = L.pytorch.callbacks.ModelCheckpoint("runs/lightning_demo")  # after each epoch
    options = {"max_epochs": multigrid.epochs, "use_distributed_sampler": False}
    trainer = L.Trainer(**options, callbacks=[multigrid, saves], devices=devices)
    trainer.fit(net, val_dataloaders=DataLoader(val, 16, collate_fn=mg.collate))
