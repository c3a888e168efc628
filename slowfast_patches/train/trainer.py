"""The training loop, and the hooks that it calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multigrid import Batch, Schedule, ScheduleStep, clip_numbers
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.train.step import Outcome, Stepper
from slowfast_patches.utils.clock import Clock
from slowfast_patches.utils.distributed import World


class Hook:
    """Base class of code that the trainer calls in every process.

    Override the methods that you need. To end the training early, but still validate, test and
    write results, set `trainer.should_stop` in `after_step`. To end it without a result, raise
    `RunError` in all processes at the same iteration. The same command then resumes from the last
    checkpoint.
    """

    def before_train(self, trainer: Trainer) -> None:
        """Run before the first iteration of a new or resumed training."""

    def before_step(self, trainer: Trainer, step: ScheduleStep, batch: Batch) -> None:
        """Run before the forward pass of each iteration.

        Args:
            trainer: The trainer. `trainer.progress.iteration` is the number of finished iterations.
            step: The shape, learning rate and BN group size of the iteration.
            batch: The mini-batch of this process, on the CPU. Changes in place take effect.
        """

    def after_backward(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        """Run after the backward pass of each iteration, before the optimizer step.

        `trainer.progress.iteration` does not count this iteration yet. The gradients of the
        parameters are scaled if `trainer.stepper.scaler` is enabled.

        Args:
            trainer: The trainer.
            step: The shape, learning rate and BN group size of the iteration.
            outcome: The loss, logits and labels of the iteration, on the device.
        """

    def after_step(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        """Run after each iteration.

        Args:
            trainer: The trainer. `trainer.progress.iteration` is the number of finished iterations.
            step: The shape, learning rate and BN group size of the iteration.
            outcome: The loss, logits and labels of the iteration, on the device.
        """

    def after_train(self, trainer: Trainer) -> None:
        """Run at the end of the training, also if an error ends it.

        Not called if the error comes before the end of `before_train` of this hook.
        """

    def after_test(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Run after the test that follows a complete training, if TEST.ENABLE is True.

        Args:
            trainer: The trainer.
            metrics: Maps the name of a metric, such as "top1", to its value.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state to store in checkpoints: tensors, numbers, texts and collections.

        The state of the main process is stored, and restored in all processes.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state in a checkpoint. Not called if the checkpoint has no such state."""


@dataclass(kw_only=True)
class Progress:
    """Progress of a training, as stored in its checkpoints.

    Attributes:
        training: Random text that all checkpoints and results of one training share.
        iteration: Number of finished iterations.
        seconds: Maps each activity of `Clock` to the seconds spent on it until the last checkpoint.
        evaluations: One dict for each validation, as in result.json. It has the keys "iteration",
            "epoch" and "seconds" and the metrics.
        best: The entry of `evaluations` with the best metric. Empty before the first validation
            and without TRAIN.KEEP_BEST.
        changes: One description for each time that the run was resumed with a difference that the
            user accepted, such as another learning rate.
        clocks: The machines, numbers of processes and keys that `seconds` were measured with, in
            the order of the resumes. With several, the seconds cannot be compared with others.
        ended: Whether a hook has ended the training before the end of its schedule.
    """

    training: str = ""
    iteration: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)
    clocks: list[str] = field(default_factory=list)
    ended: bool = False

    @property
    def last_evaluation(self) -> int:
        """Number of finished iterations at the last validation, or 0 if there was none."""
        return int(self.evaluations[-1]["iteration"]) if self.evaluations else 0


class Trainer:
    """Train all iterations of a schedule, and call the hooks after each of them.

    Nothing is rebuilt at a phase boundary. The mini-batches come in the new shape, the model
    accepts any shape, and each step sets its learning rate and BN group size.

    Args:
        stepper: Trains one iteration. It holds the model, the loss and the optimizer.
        schedule: The schedule of all iterations.
        batches: Function that takes an iteration and returns its mini-batch and all later ones,
            such as a data loader.
        hooks: The hooks, in the order in which they are called.
        world: Rank, world size and device of this process.
        stop: Stop requests of all processes.

    Attributes:
        progress: The progress of the training.
        clock: Measures the time of each activity.
        should_save: Set this to True in `Hook.after_step`, in all processes, to save a checkpoint
            after this iteration.
    """

    @property
    def should_stop(self) -> bool:
        """Whether the training ends after this iteration, with a validation, a test and a result.

        Set this to True in `Hook.after_step`. It is enough that one process does.
        """
        return self.progress.ended

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.progress.ended = value

    def __init__(
        self,
        stepper: Stepper,
        schedule: Schedule,
        batches: Callable[[int], Iterable[Batch]],
        hooks: Sequence[Hook],
        *,
        world: World,
        stop: StopRequest,
    ) -> None:
        self.stepper = stepper
        self.schedule = schedule
        self.batches = batches
        self.hooks = hooks
        self.world = world
        self.stop = stop
        self.clock = Clock()
        self.progress = Progress()
        self.should_save = False

    def train(self) -> None:
        """Train from iteration `progress.iteration` to the end of the schedule.

        The training ends earlier if a hook sets `should_stop`.

        Raises:
            TrainingInterruptedError: The run was asked to stop, and the state has been saved.
            RunError: The training cannot continue. The message states the reason.
        """
        started = list[Hook]()
        try:
            for hook in self.hooks:
                hook.before_train(self)
                started.append(hook)
            with self.clock.time("training"):
                self._train_from(self.progress.iteration)
        finally:
            for hook in started:
                hook.after_train(self)

    def _train_from(self, start: int) -> None:
        if self.should_stop:
            return
        with self.clock.time("loading"):
            batches = iter(self.batches(start))
        for step in self.schedule.steps(start):
            with self.clock.wait(self.world.device):
                batch = next(batches)
            self.stop.ask()  # The exchange of stop requests overlaps with the step.
            assert batch["iteration"] == step.iteration, (batch["iteration"], step.iteration)
            clips = clip_numbers(step, self.world.rank, self.world.size)
            for hook in self.hooks:
                hook.before_step(self, step, batch)
            outcome = self.stepper.forward_backward(step, batch, clips)
            for hook in self.hooks:
                hook.after_backward(self, step, outcome)
            self.stepper.update()
            self.progress.iteration = step.iteration + 1
            self.should_save = False
            for hook in self.hooks:
                hook.after_step(self, step, outcome)
            if self.should_stop:
                return

    def hook_states(self) -> dict[str, dict[str, Any]]:
        """Return the non-empty states of the hooks, by the name of the hook."""
        states = {name: hook.state_dict() for name, hook in self._named_hooks().items()}
        return {name: state for name, state in states.items() if state}

    def load_hook_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Restore the hooks whose state is in `states`, as returned by `hook_states`."""
        for name, hook in self._named_hooks().items():
            if name in states:
                hook.load_state_dict(states[name])

    def _named_hooks(self) -> dict[str, Hook]:
        """Return the hooks by class name. Hooks of one class are numbered: "Mine", "Mine 2"."""
        named = dict[str, Hook]()
        counts = Counter[str]()
        for hook in self.hooks:
            name = type(hook).__qualname__
            counts[name] += 1
            named[name if counts[name] == 1 else f"{name} {counts[name]}"] = hook
        return named
