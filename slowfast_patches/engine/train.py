"""The training loop."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from fvcore.common.config import CfgNode
from torch import Tensor, nn

from multigrid import Batch, Step, average_running_stats
from slowfast_patches.config.schedule import config_at, groups_batchnorm, schedule_from_config
from slowfast_patches.datasets.loader import (
    build_dataset,
    evaluation_loader,
    loading_advice,
    precise_bn_loader,
    training_loader,
)
from slowfast_patches.engine import checkpoint
from slowfast_patches.engine.clock import Clock
from slowfast_patches.engine.evaluate import evaluate, update_precise_bn
from slowfast_patches.engine.heartbeat import Heartbeat
from slowfast_patches.engine.milestones import checkpoint_iterations, evaluation_iterations
from slowfast_patches.engine.monitor import Monitor
from slowfast_patches.engine.pulse import WatchedBatches, note_communication
from slowfast_patches.engine.step import train_step
from slowfast_patches.engine.unreadable import Unreadable
from slowfast_patches.engine.window import Summary, Window
from slowfast_patches.models.build import build_model
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.solver import Precision, build_optimizer, loss_function
from slowfast_patches.models.weights import load_weights
from slowfast_patches.utils.distributed import World

__all__ = ["Trainer"]

logger = logging.getLogger(__name__)


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
        self.model = build_model(cfg, grouped_bn=groups_batchnorm(cfg)).to(world.device)
        self.optimizer = build_optimizer(cfg, self.model)
        self.precision = Precision(cfg, world.device)
        self.transform = InputTransform.from_config(cfg, world.device)
        self.loss_function = loss_function(cfg)
        self.clock, self.start = Clock(), 0
        self.evaluations: list[dict[str, Any]] = []
        self.unreadable = Unreadable(self.schedule, cfg.DATA.MAX_BAD_FRACTION)
        self._resume_or_start()
        self.evaluation_iterations = evaluation_iterations(cfg, self.schedule)
        self.checkpoint_iterations = checkpoint_iterations(cfg, self.schedule)
        self.milestones = self.evaluation_iterations | self.checkpoint_iterations
        self.monitor: Monitor | None = None

    def train(self) -> None:
        """Run the schedule from where it is to its end, watched."""
        with Heartbeat(self.clock.pulse, self.world):
            self._train()

    def _train(self) -> None:
        if self.world.is_main:
            advice = loading_advice(self.cfg, self.dataset)
            self.monitor = Monitor(
                self.cfg.OUTPUT_DIR, self.schedule, self.clock, self.start, advice
            )
        network, window = self._parallel(), Window(self.clock)
        if self.world.size > 1:
            note_communication(self.clock.pulse, self.model, self.optimizer)
        for step, batch in self._batches():
            done = step.iteration + 1
            due = done % self.cfg.LOG_PERIOD == 0 or done in self.milestones
            with self.clock.time("training"):
                window.add(step, *self._train_step(network, step, batch), len(batch["failures"]))
                summary = window.summarize(self.world) if due else None
            if summary is not None:
                self._log(step, summary)
            if done in self.evaluation_iterations:
                self._evaluate(step)
            if done in self.checkpoint_iterations:
                self._save(step)
        self.unreadable.finish_epochs()
        if self.monitor is not None:
            self.monitor.close()

    def _train_step(
        self, network: nn.Module, step: Step, batch: Batch
    ) -> tuple[Tensor, Tensor | None]:
        """One step of gradient descent; the loss and, where a clip has one label, the number of
        clips classified rightly."""
        torch.manual_seed(_step_seed(self.cfg.RNG_SEED, step.iteration, self.world.rank))
        loss, scores, labels = train_step(
            self.cfg,
            network,
            self.optimizer,
            step,
            batch,
            transform=self.transform,
            precision=self.precision,
            loss_function=self.loss_function,
        )
        if self.cfg.DATA.MULTI_LABEL:
            return loss, None
        return loss, (scores.argmax(1) == labels).sum()

    def _batches(self) -> Iterator[tuple[Step, Batch]]:
        """Each step from the start on with its mini-batch; waiting for it counts as loading."""
        loader = training_loader(
            self.cfg, self.dataset, self.schedule, self.start, self.world.rank, self.world.size
        )
        with self.clock.time("loading"):
            batches = iter(loader)
        phase = -1
        for step in self.schedule.steps(self.start):
            kind = step.shape if step.iteration > self.start else None  # its workers start
            self.clock.pulse.begin(f"iteration {step.iteration}", kind)
            with self.clock.wait(self.world.device):
                batch: Batch = next(batches)
            assert batch["iteration"] == step.iteration, (batch["iteration"], step.iteration)
            self.unreadable.warn(batch["failures"])
            if self.monitor is not None and step.phase != phase:
                self.monitor.boundary(step)
            phase = step.phase
            yield step, batch
            if self.monitor is not None:
                self.monitor.observe(step)

    def _log(self, step: Step, summary: Summary) -> None:
        """Report the iterations since the last report; stop where too many videos were bad."""
        for earlier, count in summary.unreadable:
            self.unreadable.count(earlier, count)
        if self.monitor is not None:
            self.monitor.progress(step, summary)

    def _evaluate(self, step: Step) -> None:
        """Validate at the baseline grid, after precise BN where the recipe asks for it."""
        with self.clock.time("evaluating"):
            average_running_stats(self.model)
            if self.cfg.BN.USE_PRECISE_STATS:
                loader = precise_bn_loader(
                    self.cfg, self.dataset, self.schedule, step, self.world.rank, self.world.size
                )
                update_precise_bn(
                    self.model,
                    WatchedBatches(loader, self.clock.pulse, "precise BN"),
                    self.transform,
                    self.precision.autocast,
                    self.schedule.base.batch,
                )
            metrics = self._metrics()
        self.evaluations.append(
            {
                "iteration": step.iteration + 1,
                "epoch": round((step.first_clip + step.shape.batch) / len(self.dataset), 4),
                "seconds": round(self.clock.working, 3),
                **metrics,
            }
        )
        if self.monitor is not None:
            self.monitor.evaluated(self.evaluations[-1], metrics)

    def _metrics(self) -> dict[str, float]:
        """Those of the validation set, as they go to files."""
        local = max(1, self.schedule.base.batch // self.world.size)
        loader = evaluation_loader(
            self.cfg, self.validation, local, self.world.rank, self.world.size
        )
        metrics = evaluate(
            self.model,
            WatchedBatches(loader, self.clock.pulse, "the validation"),
            self.transform,
            self.world,
            num_videos=len(self.validation.videos),
            num_classes=self.cfg.MODEL.NUM_CLASSES,
            multi_label=self.cfg.DATA.MULTI_LABEL,
            ensemble=self.cfg.DATA.ENSEMBLE_METHOD,
            autocast=self.precision.autocast,
        )
        return {name: round(value, 4) for name, value in metrics.items()}

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
            "unreadable": dict(self.unreadable.counts),
        }
        path = checkpoint.save(self.cfg.OUTPUT_DIR, done, payload)
        logger.info("checkpoint after iteration %d: %s", done, path)

    def _resume_or_start(self) -> None:
        """Continue the run in OUTPUT_DIR, start from given weights, or start from scratch."""
        found = checkpoint.find_resumable(self.cfg, len(self.dataset))
        if found is None:
            if self.cfg.TRAIN.CHECKPOINT_FILE_PATH:
                load_weights(
                    self.model,
                    self.cfg.TRAIN.CHECKPOINT_FILE_PATH,
                    kind=self.cfg.TRAIN.CHECKPOINT_TYPE,
                    inflate=self.cfg.TRAIN.CHECKPOINT_INFLATE,
                )
            return
        path, content = found
        self.model.load_state_dict(content["model_state"])
        self.optimizer.load_state_dict(content["optimizer_state"])
        self.precision.load_state_dict(content["scaler_state"])
        self.start, self.evaluations = content["iteration"], content["evaluations"]
        self.clock = Clock(content["seconds"])
        self.unreadable = Unreadable(
            self.schedule, self.cfg.DATA.MAX_BAD_FRACTION, content["unreadable"]
        )
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


def _step_seed(seed: int, iteration: int, rank: int) -> int:
    """The seed of dropout in one iteration on one rank: a function of nothing else."""
    return int(np.random.SeedSequence((seed, iteration, rank)).generate_state(1)[0])
