"""The training loop: each iteration of the schedule, and what follows it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

from multigrid import Batch, Step, average_running_stats, clip_numbers
from slowfast_patches.config.metrics import EMA, metric_names
from slowfast_patches.datasets.items import TooManyUnreadableError
from slowfast_patches.datasets.loader import training_loader
from slowfast_patches.launch.stopping import TrainingInterruptedError
from slowfast_patches.train.checkpoint import describe_last
from slowfast_patches.train.running_stats import buffers_of_ranks
from slowfast_patches.train.state import Run, best_of, to_checkpoint
from slowfast_patches.train.step import Outcome


def train(run: Run) -> None:
    """Run the schedule from iteration `run.progress.iteration` to its end.

    At a phase nothing is rebuilt: the loader gives mini-batches of the new shape, the model takes
    any shape, and each step sets its own learning rate and BN size.

    Raises:
        TrainingInterruptedError: a signal asked to stop; the state is saved.
        TrainingStoppedError: it cannot go on; the message has the reason and the checkpoint.
    """
    start = run.progress.iteration
    if run.progress.evaluation_due:  # the run that is resumed was stopped before it
        leave_step(run, run.schedule.at(start - 1))
    for step, batch in zip(run.schedule.steps(start), _batches(run), strict=True):
        if step.iteration in (start, run.schedule.phases[step.phase].start):
            run.record.enter_phase(step)
        outcome = train_step(run, step, batch)
        run.progress.iteration = step.iteration + 1
        run.record.add(step, outcome, batch["failures"], cast(Any, batch).get("redrawn", 0))
        leave_step(run, step)


def _batches(run: Run) -> Iterator[Batch]:
    """The mini-batches from the start on. With each, the processes begin to tell each other whether
    they were asked to stop, which the step hides."""
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


def train_step(run: Run, step: Step, batch: Batch) -> Outcome:
    """One step of gradient descent, at the step's shape, BN size and learning rate."""
    assert batch["iteration"] == step.iteration, (batch["iteration"], step.iteration)
    return run.stepper(step, batch, clip_numbers(step, run.world.rank, run.world.size))


def leave_step(run: Run, step: Step) -> None:
    """Do what is due after an iteration: report, validate, save, stop."""
    done = step.iteration + 1
    validates = done in run.evaluated_after
    saves = done in run.saved_after
    stops = run.stop.agreed()
    if stops or validates or saves or done % run.recipe.log_period == 0:
        run.record.report(step)
    run.writer.check()
    run.progress.evaluation_due = validates
    if validates and not stops:
        stops = not validate(run, step)
    if stops or saves or _is_best(run):
        save(run, best_alone=not (stops or saves))
    if stops:
        run.writer.wait()
        raise TrainingInterruptedError(
            f"stopped by {run.stop.signal.name}; {describe_last(run.recipe.output_dir)}. "
            "The same command continues"
        )


def validate(run: Run, step: Step) -> bool:
    """Validate after an iteration; False where the run is asked to stop meanwhile, and has to
    validate again when it is resumed."""
    try:
        with run.record.clock.time("evaluating"):
            metrics = run.validation(run.models, step)
    except TrainingInterruptedError:
        return False
    except TooManyUnreadableError:
        save(run)  # the training is as good as before: its validation is due
        raise
    progress = run.progress
    progress.evaluation_due = False
    evaluation = {
        "iteration": progress.iteration,
        "epoch": round((step.first_clip + step.shape.batch) / len(run.dataset), 4),
        "seconds": round(run.record.clock.working, 3),
        **metrics,
    }
    progress.evaluations.append(evaluation)
    metric = metric_names(run.recipe)[0] + EMA * (len(run.models) > 1)
    if run.recipe.train.keep_best and metrics[metric] > progress.best.get(metric, -math.inf):
        progress.best = evaluation
    run.record.evaluated(evaluation, metrics)
    return True


def _is_best(run: Run) -> bool:
    """Whether the validation after the last iteration was the best; of equals, the first is."""
    return bool(run.progress.best.get("iteration") == run.progress.iteration)


def save(run: Run, *, best_alone: bool = False) -> None:
    """Begin to write a checkpoint and, where it is the best, the best one, or that alone. Every
    rank calls this: running statistics are averaged."""
    clock = run.record.clock
    of_ranks = None
    with clock.time("saving"):
        if run.progress.iteration not in run.evaluated_after | run.saved_after:
            of_ranks = buffers_of_ranks(run.models, run.world)
        average_running_stats(run.models)
        if not best_alone:
            run.progress.seconds = clock.seconds
        if run.world.is_main:
            last = to_checkpoint(run, of_ranks)
            best = [best_of(run, last)] if _is_best(run) else []
            run.writer.save(*best, *([] if best_alone else [last]))
