"""The training loop."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from fvcore.common.config import CfgNode
from torch import Tensor, nn

from multigrid import Batch, Step, average_running_stats, set_group_size
from slowfast_patches.config.schedule import config_at, schedule_from_config, uses_multigrid
from slowfast_patches.datasets.loader import (
    build_dataset,
    evaluation_loader,
    precise_bn_loader,
    training_loader,
)
from slowfast_patches.engine import checkpoint
from slowfast_patches.engine.evaluate import Accuracy, evaluate, update_precise_bn
from slowfast_patches.engine.milestones import checkpoint_iterations, evaluation_iterations
from slowfast_patches.engine.monitor import Clock, Monitor
from slowfast_patches.models.build import build_model
from slowfast_patches.models.inputs import InputTransform, memory_format
from slowfast_patches.models.solver import (
    Precision,
    build_optimizer,
    clip_gradients,
    loss_function,
    set_learning_rate,
)
from slowfast_patches.utils.distributed import World, sum_over_ranks

__all__ = ["Trainer", "TrainingStoppedError"]

logger = logging.getLogger(__name__)


class TrainingStoppedError(RuntimeError):
    """The training cannot go on; the message says why and where."""


class Trainer:
    """One model, one optimizer and one loader, alive through all shapes of a schedule.

    Everything about an iteration is `schedule.at(i)`; the trainer's own state is the model, the
    optimizer, the iteration, and the clock.
    """

    def __init__(self, cfg: CfgNode, world: World) -> None:
        self.cfg, self.world = cfg, world
        self.dataset = build_dataset(cfg, "train")
        self.validation = build_dataset(cfg, "val")
        self.schedule = schedule_from_config(cfg, len(self.dataset))
        torch.manual_seed(cfg.RNG_SEED)
        self.model = build_model(cfg, grouped_bn=uses_multigrid(cfg)).to(
            device=world.device, memory_format=memory_format(world.device)
        )
        self.optimizer = build_optimizer(cfg, self.model)
        self.precision = Precision(cfg, world.device)
        self.transform = InputTransform.from_config(cfg, world.device)
        self.loss_function = loss_function(cfg)
        self.clock, self.start = Clock(), 0
        self.evaluations: list[dict[str, Any]] = []
        self.unreadable: Counter[int] = Counter()
        self._reported: set[str] = set()
        self._resume_or_start()
        self.evaluation_iterations = evaluation_iterations(cfg, self.schedule)
        self.checkpoint_iterations = checkpoint_iterations(cfg, self.schedule)
        self.milestones = self.evaluation_iterations | self.checkpoint_iterations
        self.monitor: Monitor | None = None

    def train(self) -> None:
        """Run the schedule from where it is to its end."""
        if self.world.is_main:
            self.monitor = Monitor(self.cfg.OUTPUT_DIR, self.schedule, self.clock, self.start)
        network, window = self._parallel(), _Window()
        for step, batch in self._batches():
            with self.clock.time("training"):
                window.add(step, *self._train_step(network, step, batch))
                done = step.iteration + 1
                if done % self.cfg.LOG_PERIOD == 0 or done in self.milestones:
                    self._log(step, window)
            if done in self.evaluation_iterations:
                self._evaluate(step)
            if done in self.checkpoint_iterations:
                self._save(step)
        if self.monitor is not None:
            self.monitor.close()

    def _train_step(self, network: nn.Module, step: Step, batch: Batch) -> tuple[Tensor, Tensor]:
        """One step of gradient descent; the loss and the number of clips classified rightly."""
        torch.manual_seed(_step_seed(self.cfg.RNG_SEED, step.iteration, self.world.rank))
        network.train()
        set_group_size(self.model, step.bn_size)
        set_learning_rate(self.optimizer, step.lr)
        inputs = self.transform(batch["clips"], batch["flips"])
        labels = batch["labels"].to(self.world.device, non_blocking=True)
        with self.precision.autocast():
            scores = network(inputs)
            loss = self.loss_function(scores, labels)
        self.optimizer.zero_grad(set_to_none=True)
        self.precision.backward(loss, self.optimizer)
        clip_gradients(self.cfg, self.model)
        self.precision.step(self.optimizer)
        return loss.detach(), (scores.detach().argmax(1) == labels).sum()

    def _batches(self) -> Iterator[tuple[Step, Batch]]:
        """Each step from the start on with its mini-batch; waiting for it counts as loading."""
        loader = training_loader(
            self.cfg, self.dataset, self.schedule, self.start, self.world.rank, self.world.size
        )
        with self.clock.time("loading"):
            batches = iter(loader)
        phase = -1
        for step in self.schedule.steps(self.start):
            began = self.clock.working
            with self.clock.time("loading"):
                batch: Batch = next(batches)
            assert batch["iteration"] == step.iteration, (batch["iteration"], step.iteration)
            self._count_unreadable(step, batch)
            if self.monitor is not None and step.phase != phase:
                self.monitor.boundary(step)
            phase = step.phase
            yield step, batch
            if self.monitor is not None:
                self.monitor.observe(step, self.clock.working - began)

    def _log(self, step: Step, window: _Window) -> None:
        """Stop on a loss that is not finite; else report the iterations since the last report."""
        clips = window.clips
        loss, right = window.summarize(self.world)
        if self.monitor is not None:
            self.monitor.progress(step, loss, 100 * right / clips, clips)

    def _evaluate(self, step: Step) -> None:
        """Validate at the baseline grid, after precise BN where the recipe asks for it."""
        with self.clock.time("evaluating"):
            average_running_stats(self.model)
            if self.cfg.BN.USE_PRECISE_STATS:
                loader = precise_bn_loader(
                    self.cfg, self.dataset, self.schedule, step, self.world.rank, self.world.size
                )
                update_precise_bn(self.model, loader, self.transform, self.precision.autocast)
            accuracy = self._accuracy()
        self.evaluations.append(
            {
                "iteration": step.iteration + 1,
                "epoch": round((step.first_clip + step.shape.batch) / len(self.dataset), 4),
                "seconds": round(self.clock.working, 3),
                "top1": round(accuracy.top1, 4),
                "top5": round(accuracy.top5, 4),
            }
        )
        if self.monitor is not None:
            self.monitor.evaluated(self.evaluations[-1])

    def _accuracy(self) -> Accuracy:
        local = max(1, self.schedule.base.batch // self.world.size)
        loader = evaluation_loader(
            self.cfg, self.validation, local, self.world.rank, self.world.size
        )
        return evaluate(
            self.model,
            loader,
            self.transform,
            self.world,
            num_videos=len(self.validation.videos),
            num_classes=self.cfg.MODEL.NUM_CLASSES,
            ensemble=self.cfg.DATA.ENSEMBLE_METHOD,
            autocast=self.precision.autocast,
        )

    def _save(self, step: Step) -> None:
        """Write a checkpoint; every rank takes part so that running statistics agree."""
        average_running_stats(self.model)
        if not self.world.is_main:
            return
        done = step.iteration + 1
        payload = {
            "iteration": done,
            "epoch": step.epoch,
            "model_state": self.model.state_dict(),
            "optimizer_state": self.optimizer.state_dict(),
            "scaler_state": self.precision.state_dict(),
            "cfg": self.cfg.dump(),
            "cfg_at_iteration": config_at(self.cfg, self.schedule, step.iteration).dump(),
            "num_videos": len(self.dataset),
            "seconds": dict(self.clock.seconds),
            "evaluations": self.evaluations,
            "unreadable": dict(self.unreadable),
        }
        path = checkpoint.save(self.cfg.OUTPUT_DIR, done, payload)
        logger.info("checkpoint after iteration %d: %s", done, path)

    def _resume_or_start(self) -> None:
        """Continue the run in OUTPUT_DIR, start from given weights, or start from scratch."""
        path = checkpoint.last_checkpoint(self.cfg.OUTPUT_DIR)
        if path is None or not self.cfg.TRAIN.AUTO_RESUME:
            if self.cfg.TRAIN.CHECKPOINT_FILE_PATH:
                checkpoint.load_weights(
                    self.model,
                    self.cfg.TRAIN.CHECKPOINT_FILE_PATH,
                    inflate=self.cfg.TRAIN.CHECKPOINT_INFLATE,
                )
            return
        content = checkpoint.load(path)
        checkpoint.check_same_recipe(content, self.cfg, path)
        if content["num_videos"] != len(self.dataset):
            raise ValueError(
                f"{path} was trained on {content['num_videos']} videos, the list now has "
                f"{len(self.dataset)}; use another OUTPUT_DIR"
            )
        self.model.load_state_dict(content["model_state"])
        self.optimizer.load_state_dict(content["optimizer_state"])
        self.precision.load_state_dict(content["scaler_state"])
        self.start, self.evaluations = content["iteration"], content["evaluations"]
        self.clock = Clock(content["seconds"])
        self.unreadable = Counter(content["unreadable"])
        logger.info("continuing after iteration %d, from %s", self.start, path)

    def _parallel(self) -> nn.Module:
        """The model, its gradients averaged over processes where there are several.

        Buffers are not broadcast: running statistics are averaged where they are used.
        """
        if self.world.size == 1:
            return self.model
        ids = [self.world.device] if self.world.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(
            self.model, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True
        )

    def _count_unreadable(self, step: Step, batch: Batch) -> None:
        """Report each unreadable video once; stop when an epoch has too many."""
        for path, reason in batch["failures"]:
            if path not in self._reported:
                logger.warning("%s %s; another video takes its place", path, reason)
                self._reported.add(path)
        epoch, limit = int(step.epoch), self.cfg.DATA.MAX_BAD_FRACTION * len(self.dataset)
        for done in [e for e in self.unreadable if e < epoch]:
            if self.monitor is not None:
                self.monitor.epoch(done + 1, self.unreadable[done])
            del self.unreadable[done]
        self.unreadable[epoch] += len(batch["failures"])
        if self.unreadable[epoch] > limit:
            raise TrainingStoppedError(
                f"iteration {step.iteration}: {self.unreadable[epoch]} videos of epoch {epoch + 1} "
                f"could not be read, more than DATA.MAX_BAD_FRACTION "
                f"{self.cfg.DATA.MAX_BAD_FRACTION} of {len(self.dataset)}; mend the files or the "
                "list, or raise the fraction"
            )


class _Window:
    """Losses since the last report, left on the device until it."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._losses: list[Tensor] = []
        self._right: list[Tensor] = []

    def add(self, step: Step, loss: Tensor, right: Tensor) -> None:
        self._steps.append(step)
        self._losses.append(loss)
        self._right.append(right)

    @property
    def clips(self) -> int:
        """Clips of the window, over all processes."""
        return sum(step.shape.batch for step in self._steps)

    def summarize(self, world: World) -> tuple[float, int]:
        """Mean loss and number of clips classified rightly over all processes; empties the window.

        Raises:
            TrainingStoppedError: a loss is not finite; names the iteration.
        """
        losses = sum_over_ranks(torch.stack(self._losses).double()) / world.size
        right = sum_over_ranks(torch.stack(self._right).sum())
        for step, loss in zip(self._steps, losses.tolist(), strict=True):
            if not math.isfinite(loss):
                raise TrainingStoppedError(
                    f"the loss of iteration {step.iteration} is {loss} (shape {step.shape}, LR "
                    f"{step.lr:.4g}); the last checkpoint is from before. A lower SOLVER.BASE_LR, "
                    "a longer SOLVER.WARMUP_EPOCHS or SOLVER.CLIP_GRAD_L2NORM may help"
                )
        self._steps, self._losses, self._right = [], [], []
        return float(losses.mean()), int(right)


def _step_seed(seed: int, iteration: int, rank: int) -> int:
    """The seed of dropout in one iteration on one rank: a function of nothing else."""
    return int(np.random.SeedSequence((seed, iteration, rank)).generate_state(1)[0])
