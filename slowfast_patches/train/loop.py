"""The training loop."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from multigrid import (
    Batch,
    Step,
    average_running_stats,
    clip_numbers,
    form_groups,
    form_neighbours,
)
from slowfast_patches.config.metrics import EMA, metric_names
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import recipe_at, schedule_of
from slowfast_patches.datasets.lists.lists import list_digest, list_path
from slowfast_patches.datasets.loader import build_dataset, loading_advice, training_loader
from slowfast_patches.launch.stopping import StopRequest, TrainingInterruptedError
from slowfast_patches.models.build import build_model
from slowfast_patches.models.solver import load_optimizer
from slowfast_patches.models.weights import load_weights
from slowfast_patches.train import checkpoints
from slowfast_patches.train.class_names import names_of_data
from slowfast_patches.train.compiled import without_compiling
from slowfast_patches.train.milestones import (
    checkpoint_iterations,
    evaluation_iterations,
    phase_ends,
)
from slowfast_patches.train.parallel import parallel
from slowfast_patches.train.record.clock import Clock
from slowfast_patches.train.record.logs import check_log_files
from slowfast_patches.train.record.monitor import Monitor
from slowfast_patches.train.record.unreadable import TooManyUnreadableError, Unreadable
from slowfast_patches.train.record.window import Summary, Window
from slowfast_patches.train.running_stats import buffers_of_ranks, set_buffers
from slowfast_patches.train.step import Stepper
from slowfast_patches.train.validation import Validation
from slowfast_patches.train.warm_up import dry_run
from slowfast_patches.utils.distributed import World, sum_over_ranks

__all__ = ["Trainer"]

logger = logging.getLogger(__name__)


class Trainer:
    """One model, one optimizer and one loader, alive through all shapes of a schedule.

    Everything about an iteration is `schedule.at(i)`; the trainer's own state is the model, the
    optimizer, the iteration, and the clock.
    """

    def __init__(
        self, recipe: Recipe, world: World, stop: StopRequest, found: checkpoints.Found | None
    ) -> None:
        """`found` is the checkpoint to continue, in the main process; it is shared from there.

        Raises:
            ValueError: it was trained on another list, or given weights do not fit.
        """
        self.recipe, self.world, self.stop = recipe, world, stop
        self.dataset = build_dataset(recipe, "train")
        self.schedule = schedule_of(recipe, len(self.dataset))
        self.validation = Validation(recipe, world, stop, self.dataset, self.schedule)
        torch.manual_seed(recipe.rng_seed)
        # Without a group size it is the host's BN, until precise BN takes whole mini-batches.
        self.model = build_model(recipe, grouped_bn=True).to(world.device)
        self.stepper = Stepper(recipe, self.model, world.device)
        average = self.stepper.average
        self.models = nn.ModuleList([self.model] if average is None else [self.model, average])
        patience = timedelta(seconds=recipe.dist_stall_seconds)
        form_groups(self.schedule, patience)
        if recipe.bn.use_precise_stats:
            form_neighbours(world.size, patience)
        self.clock, self.start, self.done = Clock(), 0, 0
        self.evaluations: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {}
        self.evaluation_due = False
        self.list_digest = list_digest(recipe, self.dataset.videos) if world.is_main else ""
        self.class_names = names_of_data(recipe) if world.is_main else None
        self.unreadable = Unreadable(self.schedule, recipe.data.max_bad_fraction)
        self._start(found)
        self.evaluation_iterations = evaluation_iterations(recipe, self.schedule)
        self.checkpoint_iterations = checkpoint_iterations(recipe, self.schedule)
        self.milestones = self.evaluation_iterations | self.checkpoint_iterations
        self.monitor: Monitor | None = None
        self.writer = checkpoints.Writer(
            recipe.output_dir, recipe.train.checkpoints_kept, phase_ends(self.schedule)
        )

    def train(self) -> None:
        """Run the schedule from where it is to its end.

        Raises:
            TrainingInterruptedError: a signal asked to stop; the state is saved.
            TrainingStoppedError: it cannot go on; says why, and from where it will.
        """
        with self._guarded():
            self._prepare()
            with without_compiling() if self.recipe.train.compile else nullcontext():
                self._train()

    def _prepare(self) -> None:
        """Try each shape where that takes long or can fail: on a GPU, or with a compiler."""
        if self.world.device.type == "cpu" and not self.recipe.train.compile:
            return
        logger.info("a dry step of each shape before the training")
        with self.clock.time("preparing"):
            # Connections between GPUs claim memory of their own, while there is some.
            sum_over_ranks(torch.zeros(1, device=self.world.device))
            dry_run(
                self.stepper,
                self.schedule,
                start=self.start,
                rank=self.world.rank,
                world_size=self.world.size,
                begin=self._begin_dry_step,
            )

    def _begin_dry_step(self, name: str) -> None:
        """Before a dry step; a run that is to stop ends here, with nothing to save."""
        self.stop.ask()
        if self.stop.agreed():
            raise TrainingInterruptedError(
                f"stopped by {self.stop.signal.name} before {name}: the training had not begun. "
                "The same command starts it, or goes on from the last checkpoint"
            )

    def _train(self) -> None:
        self.stepper.network = parallel(self.stepper.network, self.world)
        window = Window(self.clock)
        if self.evaluation_due:
            self._reach(self.schedule.at(self.start - 1), self.stop.agreed())
        for step, batch in self._batches():
            self.stop.ask()
            with self.clock.time("training"):
                window.add(step, *self._train_step(step, batch), len(batch["failures"]))
                stopping = self.stop.agreed()
                summary = window.summarize(self.world) if self._reports(step, stopping) else None
            self._log(step, summary)
            self._reach(step, stopping)
        self.unreadable.finish()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """The training: its files are open, and whole when it ends, however it does."""
        try:
            with checkpoints.explain_dead_workers(self.recipe.output_dir):
                self._open_monitor()
                yield
                self.writer.wait()
        except BaseException as error:
            self._close_after(error)
            raise
        self._record(Monitor.close)

    def _close_after(self, error: BaseException) -> None:
        """Close the files after what ended the training; what fails in that is only said: the
        exit status and what follows depend on what was first."""
        for close in (self.writer.wait, lambda: self._record(Monitor.close)):
            try:
                close()
            except Exception as another:
                error.add_note(f"while the training ended: {another}")
                logger.error("while the training ended: %s", another)

    def _open_monitor(self) -> None:
        if not self.world.is_main:
            return
        advice = loading_advice(self.recipe, self.dataset)
        with checkpoints.writes("the record of the run", self.done, self.recipe.output_dir):
            self.monitor = Monitor(
                self.recipe.output_dir,
                self.schedule,
                self.clock,
                self.start,
                advice,
                self.evaluation_due,
            )

    def _reports(self, step: Step, stopping: bool) -> bool:
        """Whether to sum up the iterations since the last report."""
        done = step.iteration + 1
        return stopping or done % self.recipe.log_period == 0 or done in self.milestones

    def _reach(self, step: Step, stopping: bool) -> None:
        """Evaluate and save after an iteration, as it is due; where the run is to stop, do."""
        done = step.iteration + 1
        self.evaluation_due = done in self.evaluation_iterations
        if self.evaluation_due and not stopping:
            try:
                stopping = not self._evaluate(step)
            except TooManyUnreadableError:
                self._save(step)  # the training is as good as it was: its evaluation is due
                raise
            self.evaluation_due = stopping
        if stopping or done in self.checkpoint_iterations:
            self._save(step)
        elif self._is_best(done) and self.world.is_main:
            with self.clock.time("saving"):
                self.writer.save(done, None, self._best_state(step))
        if stopping:
            self.writer.wait()
            where = checkpoints.describe_last(self.recipe.output_dir)
            raise TrainingInterruptedError(
                f"stopped by {self.stop.signal.name}; {where}. The same command continues"
            )

    def _train_step(self, step: Step, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """One step of gradient descent; the loss and, where a clip has one label, the number of
        clips classified rightly."""
        clips = clip_numbers(step, self.world.rank, self.world.size)
        loss, scores, labels = self.stepper(step, batch, clips)
        if self.recipe.data.multi_label:
            return loss, None
        return loss, (scores.argmax(1) == labels).sum()

    def _batches(self) -> Iterator[tuple[Step, Batch]]:
        """Each step from the start on with its mini-batch; waiting for it counts as loading."""
        loader = training_loader(
            self.recipe, self.dataset, self.schedule, self.start, self.world.rank, self.world.size
        )
        with self.clock.time("loading"):
            batches = iter(loader)
        phase = -1
        for step in self.schedule.steps(self.start):
            with self.clock.wait(self.world.device):
                batch: Batch = next(batches)
            assert batch["iteration"] == step.iteration, (batch["iteration"], step.iteration)
            self.unreadable.warn(batch["failures"])
            if step.phase != phase:
                self._record(Monitor.boundary, step)
            phase = step.phase
            yield step, batch

    def _log(self, step: Step, summary: Summary | None) -> None:
        """Note an iteration; report those since the last report, if this is the time.

        Raises:
            TrainingStoppedError: too many videos were bad; a file could not be written.
        """
        self.done = step.iteration + 1
        if summary is not None:
            for earlier, count in summary.unreadable:
                self.unreadable.count(earlier, count)
            self._record(Monitor.progress, step, summary)
        self._record(Monitor.observe, step)
        self.writer.check()

    def _record(self, write: Callable[..., None], *what: object) -> None:
        """Call a method of the main process's monitor.

        Raises:
            TrainingStoppedError: the run's records cannot be written, those of its log included.
        """
        with checkpoints.writes("the record of the run", self.done, self.recipe.output_dir):
            if self.monitor is not None:
                write(self.monitor, *what)
            check_log_files()

    def _evaluate(self, step: Step) -> bool:
        """Validate; False where the run is to stop, and the evaluation is to be done again."""
        with self.clock.time("evaluating"):
            metrics = self.validation(self.models, step)
        if metrics is None:
            return False
        self.evaluations.append(
            {
                "iteration": step.iteration + 1,
                "epoch": round((step.first_clip + step.shape.batch) / len(self.dataset), 4),
                "seconds": round(self.clock.working, 3),
                **metrics,
            }
        )
        metric = metric_names(self.recipe)[0] + EMA * (len(self.models) > 1)
        if self.recipe.train.keep_best and metrics[metric] > self.best.get(metric, -math.inf):
            self.best = self.evaluations[-1]
        self._record(Monitor.evaluated, self.evaluations[-1], metrics)
        return True

    def _is_best(self, done: int) -> bool:
        """Whether the evaluation after `done` iterations was the best; of equals, the first is."""
        return bool(self.best.get("iteration") == done)

    def _save(self, step: Step) -> None:
        """Begin to write a checkpoint; every rank takes part so that running statistics agree."""
        done = step.iteration + 1
        with self.clock.time("saving"):
            between = done not in self.milestones
            own = buffers_of_ranks(self.models, self.world) if between else None
            average_running_stats(self.models)
            if self.world.is_main:
                best = self._best_state(step) if self._is_best(done) else None
                self.writer.save(done, self._state(step) | {"running_stats": own}, best)

    def _state(self, step: Step) -> dict[str, Any]:
        """What a checkpoint has."""
        ema = {} if len(self.models) == 1 else {"ema_state": self.models[1].state_dict()}
        return {
            "iteration": step.iteration + 1,
            "epoch": step.epoch,
            "model_state": self.model.state_dict(),
            **ema,
            "optimizer_state": self.stepper.optimizer.state_dict(),
            "scaler_state": self.stepper.precision.state_dict(),
            "cfg": self.recipe.text,
            "cfg_at_iteration": recipe_at(self.recipe, self.schedule, step.iteration).text,
            "world_size": self.world.size,
            "num_videos": len(self.dataset),
            "list_digest": self.list_digest,
            "class_names": self.class_names,
            "seconds": dict(self.clock.seconds),
            "evaluations": self.evaluations,
            "best": self.best,
            "evaluation_due": self.evaluation_due,
            "unreadable": dict(self.unreadable.counts),
        }

    def _best_state(self, step: Step) -> dict[str, Any]:
        """What the best checkpoint has: the weights that were best, the averaged ones where there
        are, and nothing that only a training could continue with."""
        left_out = ("optimizer_state", "scaler_state", "ema_state")
        state = {key: value for key, value in self._state(step).items() if key not in left_out}
        return state | {"model_state": self.models[-1].state_dict()}

    def _start(self, found: checkpoints.Found | None) -> None:
        """Continue from what the main process found, from given weights, or from scratch."""
        if found is not None:
            path, num_videos = list_path(self.recipe, "train"), len(self.dataset)
            checkpoints.check_same_list(
                found.content, found.path, path, num_videos, self.list_digest
            )
            done = found.content["iteration"]
            logger.info("continuing after iteration %d, from %s", done, found.path)
            self._compare_worlds(found.content.get("world_size", self.world.size))
        content = checkpoints.share(found and found.content, self.world)
        if content is not None:
            self._continue(content)
        elif self.recipe.train.checkpoint_file_path:
            if self.world.is_main:
                load_weights(
                    self.model,
                    self.recipe.train.checkpoint_file_path,
                    kind=self.recipe.train.checkpoint_type,
                    inflate=self.recipe.train.checkpoint_inflate,
                )
            given = checkpoints.share(self.model.state_dict(), self.world)
            for model in self.models:
                model.load_state_dict(given)

    def _compare_worlds(self, size: int) -> None:
        """Say where a run that continues on another number of processes is not the same."""
        if size != self.world.size and not self.recipe.groups_batchnorm:
            logger.warning(
                "trained on %d processes before, now on %d: BN statistics are over the clips of "
                "each process, which are more or fewer from here on; BN.GROUP_SIZE would fix them",
                *(size, self.world.size),
            )

    def _continue(self, content: Mapping[str, Any]) -> None:
        """Take over the state of a checkpoint, which may be from before some keys existed."""
        for model, state in zip(self.models, ("model_state", "ema_state"), strict=False):
            model.load_state_dict(content[state])
        set_buffers(self.models, content.get("running_stats"), self.world)
        load_optimizer(self.stepper.optimizer, content["optimizer_state"])
        self.stepper.precision.load_state_dict(content["scaler_state"])
        self.start = self.done = content["iteration"]
        self.evaluations, self.best = content["evaluations"], content.get("best", {})
        self.evaluation_due = content.get("evaluation_due", False)
        self.class_names = self.class_names or content.get("class_names")
        self.clock = Clock(content["seconds"])
        self.unreadable = Unreadable(
            self.schedule, self.recipe.data.max_bad_fraction, content["unreadable"]
        )
