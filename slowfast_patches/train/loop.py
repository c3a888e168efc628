"""The training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

from multigrid import Batch, ScheduleStep, average_running_stats, clip_numbers
from slowfast_patches.config.metrics import EMA, metric_names
from slowfast_patches.datasets.loader import training_loader
from slowfast_patches.launch.stopping import TrainingInterruptedError
from slowfast_patches.train.checkpoint import Checkpoint, write_checkpoint
from slowfast_patches.train.running_stats import buffers_of_ranks
from slowfast_patches.train.state import Run, best_of, phase_ends, to_checkpoint
from slowfast_patches.train.step import Outcome


def train(run: Run) -> None:
    """Run the schedule from iteration `run.progress.iteration` to its end.

    Nothing is rebuilt at a phase boundary: the loader returns mini-batches of the new shape, the
    model accepts any shape, and each step sets its own learning rate and BN size.

    Raises:
        TrainingInterruptedError: the run was asked to stop. Its state is saved.
        TrainingStoppedError: the training cannot go on. The message has the reason.
    """
    start = run.progress.iteration
    if start in run.evaluated_after and run.progress.last_evaluation < start:
        validate(run, run.schedule.at(start - 1))  # the run was stopped before or during it
    for step, batch in zip(run.schedule.steps(start), _batches(run), strict=True):
        if step.iteration in (start, run.schedule.phases[step.phase].start):
            run.record.enter_phase(step)
        outcome = train_step(run, step, batch)
        run.progress.iteration = step.iteration + 1
        run.record.add(step, outcome, batch["failures"], cast(Any, batch).get("redrawn", 0))
        for hook in run.hooks:
            hook.after_step(run, step, outcome)
        after_step(run, step)


def _batches(run: Run) -> Iterator[Batch]:
    """Yield the remaining mini-batches.

    Each one starts an asynchronous exchange of stop requests, which overlaps with the step.
    """
    clock = run.record.clock
    rank = run.world.rank
    start = run.progress.iteration
    with clock.time("loading"):
        batches = iter(
            training_loader(run.recipe, run.dataset, run.schedule, start, rank, run.world.size)
        )
    for _ in range(start, run.schedule.iterations):
        with clock.wait(run.world.device):
            batch: Batch = next(batches)
        run.stop.ask()
        yield batch


def train_step(run: Run, step: ScheduleStep, batch: Batch) -> Outcome:
    """Take one step of gradient descent, at the step's shape, BN size and learning rate."""
    assert batch["iteration"] == step.iteration, (batch["iteration"], step.iteration)
    return run.stepper(step, batch, clip_numbers(step, run.world.rank, run.world.size))


def after_step(run: Run, step: ScheduleStep) -> None:
    """Report, save, stop and validate, as each is due after an iteration.

    The state is saved before a validation. If the run ends during the validation, the resumed run
    repeats it.
    """
    done = step.iteration + 1
    validates = done in run.evaluated_after
    saves = done in run.saved_after
    stops = run.stop.agreed()
    if stops or validates or saves or done % run.recipe.log_period == 0:
        run.record.report(step)
    if stops or validates or saves:
        save(run)
    if stops:
        raise TrainingInterruptedError(f"stopped by {run.stop.signal.name}")
    if validates:
        validate(run, step)


def validate(run: Run, step: ScheduleStep) -> None:
    """Validate after an iteration, and save the weights if they are the best so far.

    If a checkpoint is due, it is written again after the validation. It then includes the metrics
    and the running statistics of precise BN, which tests and predictions need.
    """
    with run.record.clock.time("evaluating"):
        metrics = run.validation(run.models, step)
    progress = run.progress
    evaluation = {
        "iteration": progress.iteration,
        "epoch": round((step.first_clip + step.shape.batch) / len(run.dataset), 4),
        "seconds": round(run.record.clock.working, 3),
        **metrics,
    }
    progress.evaluations.append(evaluation)
    run.record.evaluated(evaluation, metrics)
    metric = metric_names(run.recipe)[0] + EMA * (len(run.models) > 1)
    if run.recipe.train.keep_best and metrics[metric] > progress.best.get(metric, -math.inf):
        progress.best = evaluation
        _write(run, best_of)
    if progress.iteration in run.saved_after:
        save(run)
    for hook in run.hooks:
        hook.after_evaluation(run, evaluation)


def save(run: Run) -> None:
    """Write a checkpoint. Every rank must call this, because running statistics are averaged."""
    of_ranks = None
    with run.record.clock.time("saving"):
        if run.progress.iteration not in run.evaluated_after | run.saved_after:
            of_ranks = buffers_of_ranks(run.models, run.world)
        average_running_stats(run.models)
        run.progress.seconds = run.record.clock.seconds
    _write(run, partial(to_checkpoint, running_stats=of_ranks))


def _write(run: Run, make: Callable[[Run], Checkpoint]) -> None:
    """Write a checkpoint in the main process."""
    if run.world.is_main:
        kept = run.recipe.train.checkpoints_kept
        with run.record.clock.time("saving"):
            checkpoint = make(run)
            write_checkpoint(run.recipe.output_dir, checkpoint, kept, phase_ends(run.schedule))
