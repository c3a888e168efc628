"""The training loop: the schedule says what each iteration is, and what follows it."""

from __future__ import annotations

from multigrid import Step
from slowfast_patches.launch.stopping import TrainingInterruptedError
from slowfast_patches.train.record.unreadable import TooManyUnreadableError
from slowfast_patches.train.state import Run

__all__ = ["enter_phase", "evaluate", "leave_step", "train"]


def train(run: Run) -> None:
    """Run the schedule from where it is to its end.

    Raises:
        TrainingInterruptedError: a signal asked to stop; the state is saved.
        TrainingStoppedError: it cannot go on; says why, and from where it will.
    """
    if run.evaluation_due:  # the run that is continued was stopped before it
        leave_step(run, run.schedule.at(run.start - 1))
    for step, batch in zip(run.schedule.steps(run.start), run.batches(), strict=True):
        if run.starts_phase(step):
            enter_phase(run, step)
        outcome = run.train_step(step, batch)  # BN size, learning rate, forward, backward, update
        run.record.add(step, outcome, batch["failures"])
        leave_step(run, step)


def enter_phase(run: Run, step: Step) -> None:
    """From here on mini-batches have another shape. Nothing is rebuilt: the loader gives what the
    schedule says, the model takes any shape, and each step sets its own learning rate and BN size.
    It is said, and its time is measured apart."""
    run.record.enter_phase(step)


def leave_step(run: Run, step: Step) -> None:
    """Report, evaluate and save after an iteration, as it is due; where the run is to stop, do."""
    stopping = run.stop.agreed()
    if stopping or run.is_reported(step):
        run.record.report(step)
    run.writer.check()
    done = step.iteration + 1
    run.evaluation_due = done in run.evaluated_after
    if run.evaluation_due and not stopping:
        stopping = not evaluate(run, step)
    if stopping or done in run.saved_after:
        run.save()
    elif run.is_best():
        run.save_best()
    if stopping:
        run.end_early()


def evaluate(run: Run, step: Step) -> bool:
    """Validate; False where the run is to stop, and the validation is to be done again."""
    try:
        run.validate(step)
    except TrainingInterruptedError:
        return False
    except TooManyUnreadableError:
        run.save()  # the training is as good as it was: its validation is due
        raise
    run.evaluation_due = False
    return True
