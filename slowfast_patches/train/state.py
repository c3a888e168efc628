"""What lives through a whole training, and what of it is in a checkpoint."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import nn

from multigrid import (
    Batch,
    Schedule,
    Step,
    average_running_stats,
    clip_numbers,
    form_groups,
    form_neighbours,
)
from slowfast_patches.config.metrics import EMA, metric_names
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import recipe_at, schedule_of
from slowfast_patches.datasets.lists.dataset_lists import list_digest, list_path
from slowfast_patches.datasets.loader import build_dataset, loading_advice, training_loader
from slowfast_patches.launch.stopping import StopRequest, TrainingInterruptedError
from slowfast_patches.models.build import build_model
from slowfast_patches.models.flops import flops_per_clip
from slowfast_patches.models.solver import load_optimizer
from slowfast_patches.models.weights import load_weights
from slowfast_patches.train import checkpoints
from slowfast_patches.train.evaluate import Validation
from slowfast_patches.train.record.record import Record
from slowfast_patches.train.record.tables import names_of_data
from slowfast_patches.train.running_stats import buffers_of_ranks, set_buffers
from slowfast_patches.train.step import Outcome, Stepper, parallel
from slowfast_patches.train.warm_up import dry_run
from slowfast_patches.utils.distributed import World, from_main, sum_over_ranks

__all__ = ["Run", "build_run", "checkpoint_iterations", "evaluation_iterations", "phase_ends"]

logger = logging.getLogger(__name__)


def build_run(
    recipe: Recipe, world: World, stop: StopRequest, found: checkpoints.Found | None
) -> Run:
    """A training at its start: where `found`, the main process's checkpoint, was, at given weights,
    or from scratch. ValueError: of another list, or weights that do not fit."""
    run = Run(recipe, world, stop)
    if found is not None:
        videos, digest = run.schedule.num_videos, run.list_digest
        checkpoints.check_same_list(found, list_path(recipe, "train"), videos, digest)
        logger.info(
            "continuing after iteration %d, from %s", found.content["iteration"], found.path
        )
    content = from_main(lambda: found and found.content)
    if content is not None:
        run.load_state_dict(content)
    elif recipe.train.checkpoint_file_path:
        if world.is_main:
            path, kind = recipe.train.checkpoint_file_path, recipe.train.checkpoint_type
            load_weights(run.model, path, kind=kind, inflate=recipe.train.checkpoint_inflate)
        weights = from_main(lambda: checkpoints.snapshot(run.model.state_dict()))
        for model in run.models:
            model.load_state_dict(weights)
    return run


class Run:
    """One model, one optimizer and one loader, alive through all shapes of a schedule.

    Everything about an iteration is `schedule.at(i)`; what is counted beside it is in the record.

    Attributes:
        models: the model and, where MODEL.EMA_DECAY asks for it, the average of its weights.
        start: iterations done before.
        evaluations: what each validation found, as in result.json; `best` is the best of them.
        evaluation_due: the run was stopped before, or in, the validation after its last iteration.
        evaluated_after, saved_after: numbers of finished iterations.
        seconds: of each activity until the last checkpoint, which a run that is continued has too.
    """

    def __init__(self, recipe: Recipe, world: World, stop: StopRequest) -> None:
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
        self.record = Record(recipe, world, self.schedule, loading_advice(recipe, self.dataset))
        self.clock, self.start = self.record.clock, 0
        self.seconds = self.clock.seconds
        self.evaluations: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {}
        self.evaluation_due = False
        self.evaluated_after = evaluation_iterations(recipe, self.schedule)
        self.saved_after = checkpoint_iterations(recipe, self.schedule)
        kept, ends = recipe.train.checkpoints_kept, phase_ends(self.schedule)
        self.writer = checkpoints.Writer(recipe.output_dir, kept, ends)
        self.list_digest = list_digest(recipe, self.dataset.videos) if world.is_main else ""
        self.class_names = names_of_data(recipe) if world.is_main else None

    @cached_property
    def flops(self) -> Callable[[int, int], float]:
        """Training FLOPs of a clip of (frames, crop)."""
        return flops_per_clip(self.recipe)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The files of the run are open in the body, and whole after it. What ended it is raised;
        what fails in closing after that is noted with it."""
        try:
            self.record.open(self.start, self.evaluation_due)
            yield
            self.writer.wait()
        except BaseException as error:
            for close in (self.writer.wait, self.record.close):
                try:
                    close()
                except Exception as another:
                    error.add_note(f"while the training ended: {another}")
            raise
        self.record.close()

    def prepare(self) -> None:
        """Try each shape where that takes long or can fail, on a GPU or with a compiler; from then
        on the processes exchange gradients."""
        if self.world.device.type == "cuda" or self.recipe.train.compile:
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
        self.stepper.network = parallel(self.stepper.network, self.world)

    def _begin_dry_step(self, name: str) -> None:
        """Before a dry step; a run that is to stop ends here, with nothing to save."""
        self.stop.ask()
        if self.stop.agreed():
            raise TrainingInterruptedError(
                f"stopped by {self.stop.signal.name} before {name}: the training had not begun. "
                "The same command starts it, or goes on from the last checkpoint"
            )

    def batches(self) -> Iterator[Batch]:
        """The mini-batches from the start on. With each the processes begin to tell each other
        whether they were asked to stop, which the step hides."""
        rank, size, start = self.world.rank, self.world.size, self.start
        with self.clock.time("loading"):
            batches = iter(
                training_loader(self.recipe, self.dataset, self.schedule, start, rank, size)
            )
        for _ in range(self.start, self.schedule.iterations):
            with self.clock.wait(self.world.device):
                batch: Batch = next(batches)
            self.stop.ask()
            yield batch

    def starts_phase(self, step: Step) -> bool:
        """Whether a phase starts with this iteration, or the rest of one that is continued."""
        return step.iteration in (self.start, self.schedule.phases[step.phase].start)

    def train_step(self, step: Step, batch: Batch) -> Outcome:
        """One step of gradient descent, at the step's shape, BN size and learning rate."""
        assert batch["iteration"] == step.iteration, (batch["iteration"], step.iteration)
        return self.stepper(step, batch, clip_numbers(step, self.world.rank, self.world.size))

    def is_reported(self, step: Step) -> bool:
        """Whether to sum up, after this iteration, those since the last report."""
        done = step.iteration + 1
        due = done in self.evaluated_after or done in self.saved_after
        return due or done % self.recipe.log_period == 0

    def validate(self, step: Step) -> None:
        """Validate, and note what was found; raises as `Validation`."""
        with self.clock.time("evaluating"):
            metrics = self.validation(self.models, step)
        evaluation = {
            "iteration": step.iteration + 1,
            "epoch": round((step.first_clip + step.shape.batch) / len(self.dataset), 4),
            "seconds": round(self.clock.working, 3),
            **metrics,
        }
        self.evaluations.append(evaluation)
        metric = metric_names(self.recipe)[0] + EMA * (len(self.models) > 1)
        if self.recipe.train.keep_best and metrics[metric] > self.best.get(metric, -math.inf):
            self.best = evaluation
        if self.world.is_main:
            self.record.evaluated(evaluation, metrics)

    def is_best(self) -> bool:
        """Whether the validation after the last iteration was the best; of equals, the first is."""
        return bool(self.best.get("iteration") == self.record.done)

    def save(self) -> None:
        """Begin to write a checkpoint; every rank takes part so that running statistics agree."""
        done = self.record.done
        with self.clock.time("saving"):
            between = done not in self.evaluated_after | self.saved_after
            own = buffers_of_ranks(self.models, self.world) if between else None
            average_running_stats(self.models)
            self.seconds = self.clock.seconds
            if self.world.is_main:
                best = self._best_state() if self.is_best() else None
                self.writer.save(done, self.state_dict() | {"running_stats": own}, best)

    def save_best(self) -> None:
        """Begin to write the best checkpoint alone."""
        with self.clock.time("saving"):
            if self.world.is_main:
                self.writer.save(self.record.done, None, self._best_state())

    def end_early(self) -> NoReturn:
        """End a run that is asked to stop, once its state is on the disk."""
        self.writer.wait()
        where = checkpoints.describe_last(self.recipe.output_dir)
        raise TrainingInterruptedError(
            f"stopped by {self.stop.signal.name}; {where}. The same command continues"
        )

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has, beside the running statistics of each rank ("running_stats")."""
        step = self.schedule.at(self.record.done - 1)
        ema = {} if len(self.models) == 1 else {"ema_state": self.models[1].state_dict()}
        return {
            "iteration": self.record.done,
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
            "seconds": self.seconds,
            "evaluations": self.evaluations,
            "best": self.best,
            "evaluation_due": self.evaluation_due,
            "unreadable": dict(self.record.unreadable.counts),
        }

    def _best_state(self) -> dict[str, Any]:
        """What the best checkpoint has: the weights that were best, the averaged ones where there
        are, and nothing that only a training could continue with."""
        left_out = ("optimizer_state", "scaler_state", "ema_state")
        state = {key: value for key, value in self.state_dict().items() if key not in left_out}
        return state | {"model_state": self.models[-1].state_dict()}

    def load_state_dict(self, content: Mapping[str, Any]) -> None:
        """Take over the state of a checkpoint, which may be from before some keys existed."""
        size = content.get("world_size", self.world.size)
        by_process = self.recipe.model.has_batchnorm and not self.recipe.groups_batchnorm
        if size != self.world.size and self.world.is_main and by_process:
            logger.warning(
                "trained on %d processes before, now on %d: BN statistics are over the clips of "
                "each process; BN.GROUP_SIZE would fix them",
                *(size, self.world.size),
            )
        for model, state in zip(self.models, ("model_state", "ema_state"), strict=False):
            model.load_state_dict(content[state])
        set_buffers(self.models, content.get("running_stats"), self.world)
        load_optimizer(self.stepper.optimizer, content["optimizer_state"])
        self.stepper.precision.load_state_dict(content["scaler_state"])
        self.start = content["iteration"]
        self.evaluations, self.best = content["evaluations"], content.get("best", {})
        self.evaluation_due = content.get("evaluation_due", False)
        self.class_names = self.class_names or content.get("class_names")
        self.clock.load(content["seconds"])
        self.seconds = self.clock.seconds
        self.record.unreadable.counts.update(content["unreadable"])


def evaluation_iterations(recipe: Recipe, schedule: Schedule) -> frozenset[int]:
    """Numbers of finished iterations at which to validate: with the long cycle, MULTIGRID.EVAL_FREQ
    times in each phase; else every TRAIN.EVAL_PERIOD epochs and at the end."""
    if not recipe.multigrid.long_cycle:
        return _every(recipe.train.eval_period, schedule)
    times = recipe.multigrid.eval_freq
    return frozenset(
        phase.start + max(1, round(phase.iterations * (k + 1) / times))
        for phase in schedule.phases
        for k in range(times)
    )


def checkpoint_iterations(recipe: Recipe, schedule: Schedule) -> frozenset[int]:
    """Numbers of finished iterations at which to save: every CHECKPOINT_PERIOD epochs, and the ends
    of phases, the last of which is the end."""
    return _every(recipe.train.checkpoint_period, schedule) | phase_ends(schedule)


def phase_ends(schedule: Schedule) -> frozenset[int]:
    """Numbers of finished iterations at which a phase ends."""
    return frozenset(phase.stop for phase in schedule.phases)


def _every(epochs: int, schedule: Schedule) -> frozenset[int]:
    """The first iteration after each `epochs` epochs, and the last of all."""
    period = epochs * schedule.num_videos
    times = range(1, schedule.clips // period + 1)
    return frozenset(schedule.first_iteration_after(k * period) for k in times) | {
        schedule.iterations
    }
