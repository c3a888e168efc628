"""Trainer: build, run, save and restore a training."""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from multigrid import (
    Batch,
    ScheduleStep,
    average_running_stats,
    clip_numbers,
    form_bn_process_groups,
    form_groups,
)
from slowfast_patches.config.metrics import EMA, metric_names
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import recipe_at, schedule_of
from slowfast_patches.datasets.lists.dataset_lists import label_counts, list_digest, list_path
from slowfast_patches.datasets.loader import (
    build_dataset,
    limit_workers,
    loading_advice,
    training_bytes,
    training_loader,
)
from slowfast_patches.launch.stopping import StopRequest, TrainingStoppedError
from slowfast_patches.models.build import build_model
from slowfast_patches.models.solver import load_optimizer
from slowfast_patches.models.weights import load_weights
from slowfast_patches.plan.evaluations import (
    checkpoint_iterations,
    evaluation_iterations,
    phase_ends,
)
from slowfast_patches.plan.flops import flops_per_clip
from slowfast_patches.train.checkpoint import (
    Checkpoint,
    DivergedError,
    Progress,
    describe_last,
    to_cpu,
    write_checkpoint,
)
from slowfast_patches.train.evaluate import Validation
from slowfast_patches.train.record.metrics_logger import MetricsLogger
from slowfast_patches.train.record.tables import names_of_data
from slowfast_patches.train.resume import Resumable, check_same_list, check_same_schedule
from slowfast_patches.train.running_stats import buffers_of_ranks, set_buffers
from slowfast_patches.train.step import Outcome, Stepper, in_parallel
from slowfast_patches.train.warm_up import dry_run, without_compiling
from slowfast_patches.utils.command_line import ToolError
from slowfast_patches.utils.distributed import World, broadcast_from_main, sum_over_ranks
from slowfast_patches.utils.signals import TrainingInterruptedError

logger = logging.getLogger(__name__)


class Hook:
    """Base class of user code that the trainer calls in every process.

    Override the methods that you need. To end the training, raise `TrainingStoppedError` in all
    processes at the same iteration. The checkpoints are kept, so that the same command resumes from
    the last checkpoint.
    """

    def after_step(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        """Run after each iteration, before a checkpoint or a validation.

        Args:
            trainer: The trainer. `trainer.progress.iteration` is the number of finished iterations.
            step: The shape, learning rate and BN group size of the iteration.
            outcome: The loss, logits and labels of the iteration, on the device.
        """

    def after_evaluation(self, trainer: Trainer, evaluation: Mapping[str, Any]) -> None:
        """Run after each validation, when its metrics have been logged and its checkpoints saved.

        Args:
            trainer: The trainer.
            evaluation: Dict with the keys "iteration", "epoch" and "seconds" and the metrics, as in
                the list "evaluations" of result.json.
        """


class HookError(TrainingStoppedError):
    """Error raised when a hook has raised an error that is not a `ToolError`."""

    def __init__(self, hook: Hook, method: str, iteration: int, error: Exception) -> None:
        text = "".join(traceback.format_exception(error)).rstrip()
        super().__init__(
            f"{type(hook).__name__}.{method} failed after iteration {iteration}:\n{text}"
        )


class Trainer:
    """Train one model on all clip shapes of a schedule, with a single optimizer and loader.

    `schedule.at(i)` defines iteration i. `progress` stores how far the training has come. A
    training resumes from a checkpoint, or starts from pretrained weights or from scratch. Every
    process of the run must build a trainer.

    Args:
        recipe: The recipe of the training.
        world: Rank, world size and device of this process.
        stop: Stop requests of all processes.
        resumable: The checkpoint to resume from, or None. Only the main process needs it.
        hooks: Hooks to call after each step and each validation.

    Raises:
        ValueError: The checkpoint was trained on another list or schedule, or the weights do not
            match the model.

    Attributes:
        dataset: The data set of the training videos.
        schedule: The schedule of all iterations.
        stepper: Runs the training steps. It holds the model, the loss and the optimizer.
        models: The model, followed by the averaged weights with MODEL.EMA_DECAY.
        validation: Computes the metrics of `models`.
        record: Writes logs and metrics, and measures the time.
        progress: The progress of the training, which checkpoints store.
        flops: Maps (frames, crop) to the training FLOPs of one clip.
        evaluated_after: Numbers of finished iterations at which to validate.
        saved_after: Numbers of finished iterations at which to save a checkpoint.
    """

    def __init__(
        self,
        recipe: Recipe,
        world: World,
        stop: StopRequest,
        resumable: Resumable | None = None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        self.recipe = recipe
        self.world = world
        self.stop = stop
        self.hooks = hooks
        self.progress = Progress()
        self.dataset = build_dataset(recipe, "train")
        self.schedule = schedule_of(recipe, len(self.dataset))
        self._loading = limit_workers(recipe, training_bytes(self.schedule, world.size))
        torch.manual_seed(recipe.rng_seed)
        # Precise BN needs grouped BN. Without a group size, grouped BN equals ordinary BN.
        self.model = build_model(recipe, grouped_bn=True).to(world.device)
        weighted = recipe.solver.class_weights
        counts = label_counts(recipe, self.dataset.videos) if weighted else None
        self.stepper = Stepper(recipe, self.model, world.device, counts)
        self.models = nn.ModuleList(filter(None, [self.model, self.stepper.average]))
        patience = timedelta(seconds=recipe.dist_stall_seconds)
        form_groups(self.schedule, patience)
        if recipe.bn.use_precise_stats:
            form_bn_process_groups(world.size, patience)
        self.validation = Validation(self._loading, world, stop, self.dataset, self.schedule)
        self.record = MetricsLogger(
            recipe, world, self.schedule, loading_advice(recipe, self.dataset)
        )
        self.flops = flops_per_clip(recipe)
        self.evaluated_after = frozenset(evaluation_iterations(recipe, self.schedule))
        self.saved_after = checkpoint_iterations(recipe, self.schedule)
        self._list_digest = list_digest(recipe, self.dataset.videos) if world.is_main else ""
        self._class_names = names_of_data(recipe) if world.is_main else None
        self._set_start(resumable)

    def _set_start(self, resumable: Resumable | None) -> None:
        """Restore a checkpoint, or load the weights of TRAIN.CHECKPOINT_FILE_PATH."""
        if resumable is not None:
            path = list_path(self.recipe, "train")
            check_same_list(resumable, path, self.schedule.num_videos, self._list_digest)
            check_same_schedule(resumable, self.schedule)
            iteration = resumable.checkpoint.iteration
            logger.info("Resuming after iteration %d from %s.", iteration, resumable.path)
        checkpoint = broadcast_from_main(lambda: resumable and resumable.checkpoint)
        train = self.recipe.train
        if checkpoint is not None:
            self.restore(checkpoint)
        elif train.checkpoint_file_path:
            if self.world.is_main:
                load_weights(
                    self.model,
                    train.checkpoint_file_path,
                    kind=train.checkpoint_type,
                    inflate=train.checkpoint_inflate,
                )
            weights = broadcast_from_main(lambda: to_cpu(self.model.state_dict()))
            for model in self.models:
                model.load_state_dict(weights)

    # Training.

    def train(self) -> None:
        """Train from iteration `progress.iteration` to the end of the schedule.

        Raises:
            TrainingInterruptedError: The run was asked to stop. The state has been saved, if an
                iteration has finished.
            TrainingStoppedError: The training cannot continue. The message states the reason.
            ValueError: A shape does not fit into the memory of the device, or cannot be compiled.
        """
        compiles = bool(self.recipe.train.compile)
        with self._opened():
            if compiles or self.world.device.type == "cuda":
                self._take_dry_steps()
            if self.world.size > 1:
                self.stepper.network = in_parallel(self.stepper.network, self.world.device)
            with (
                self.record.clock.time("training"),
                without_compiling() if compiles else nullcontext(),
            ):
                self._loop()

    def _loop(self) -> None:
        """Run the remaining steps.

        Nothing is rebuilt at a phase boundary. The loader returns mini-batches of the new shape,
        the model accepts any shape, and each step sets its learning rate and BN group size.
        """
        start = self.progress.iteration
        if start in self.evaluated_after and self.progress.last_evaluation < start:
            self.validate(self.schedule.at(start - 1))  # the run ended before this validation did
        for step, batch in zip(self.schedule.steps(start), self._batches(start), strict=True):
            assert batch["iteration"] == step.iteration, (batch["iteration"], step.iteration)
            if step.iteration in (start, self.schedule.phases[step.phase].start):
                self.record.enter_phase(step)
            clips = clip_numbers(step, self.world.rank, self.world.size)
            outcome = self.stepper(step, batch, clips)
            self.progress.iteration = step.iteration + 1
            self.record.add(step, outcome, batch["failures"], cast(Any, batch).get("redrawn", 0))
            self._call_hooks("after_step", step, step, outcome)
            self.after_step(step)

    def after_step(self, step: ScheduleStep) -> None:
        """Log, save, stop and validate, if these are due after the iteration.

        Save a checkpoint before each validation. If the run ends during the validation, the resumed
        run repeats the validation.

        Raises:
            TrainingInterruptedError: The run was asked to stop. The state has been saved.
        """
        done = self.progress.iteration
        validates = done in self.evaluated_after
        saves = done in self.saved_after
        stops = self.stop.agreed()
        if stops or validates or saves or done % self.recipe.log_period == 0:
            self.record.report(step)
        if stops or validates or saves:
            self.save()
        self.stop.check()
        if validates:
            self.validate(step)

    def validate(self, step: ScheduleStep) -> None:
        """Validate after an iteration, and save the weights if they are the best so far.

        If a checkpoint is due at this iteration, write the checkpoint again after the validation.
        The new file includes the metrics, and the running statistics of precise BN that tests and
        predictions need.
        """
        progress = self.progress
        self.record.bar.close()  # the next iteration opens it again
        with self.record.clock.time("evaluating"):
            metrics = self.validation(self.models, step)
        evaluation = {
            "iteration": progress.iteration,
            "epoch": round((step.first_clip + step.shape.batch) / len(self.dataset), 4),
            "seconds": round(self.record.clock.working, 3),
            **metrics,
        }
        progress.evaluations.append(evaluation)
        self.record.evaluated(evaluation, metrics)
        metric = metric_names(self.recipe)[0] + EMA * (len(self.models) > 1)
        if self.recipe.train.keep_best and metrics[metric] > progress.best.get(metric, -math.inf):
            progress.best = evaluation
            self._write(self._best_checkpoint)
        if progress.iteration in self.saved_after:
            self.save()
        self._call_hooks("after_evaluation", step, evaluation)

    def _call_hooks(self, method: str, step: ScheduleStep, *arguments: Any) -> None:
        """Call a method of all hooks after an iteration.

        If a hook fails in a run with a single process, save a checkpoint first. With several
        processes, all of them would have to save, but the hook may have failed in one only.

        Raises:
            HookError: A hook failed.
            ToolError: A hook raised this error to end the training.
        """
        for hook in self.hooks:
            try:
                getattr(hook, method)(self, *arguments)
            except ToolError:
                raise
            except Exception as error:
                if self.world.size == 1:
                    self.record.report(step)
                    self.save()
                raise HookError(hook, method, self.progress.iteration, error) from error

    def _batches(self, start: int) -> Iterator[Batch]:
        """Yield the remaining mini-batches.

        Before each mini-batch is yielded, start an asynchronous exchange of stop requests, which
        overlaps with the training step.
        """
        clock = self.record.clock
        world = self.world
        order = (self.schedule, start, world.rank, world.size)
        with clock.time("loading"):
            batches = iter(training_loader(self._loading, self.dataset, *order))
        for _ in range(start, self.schedule.iterations):
            with clock.wait(world.device):
                batch: Batch = next(batches)
            self.stop.ask()
            yield batch

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Open the log files of `record` for the body.

        If the training ends early, add the name of the last checkpoint to the error.
        """
        output_dir = self.recipe.output_dir
        self.record.open(self.progress)
        try:
            yield
        except (DivergedError, HookError) as error:
            error.add_note(describe_last(output_dir))
            raise
        except TrainingInterruptedError as error:
            raise TrainingInterruptedError(
                f"{error}. {describe_last(output_dir)} Repeat the command to resume."
            ) from error
        finally:
            self.record.close()

    def _take_dry_steps(self) -> None:
        """Run a dry step of each shape. The run can be stopped before each step."""
        logger.info("Running a dry step of each shape before the training.")
        with self.record.clock.time("preparing"):
            # Open the connections between GPUs first, because they allocate GPU memory.
            sum_over_ranks(torch.zeros(1, device=self.world.device))
            dry_run(
                self.stepper,
                self.schedule,
                start=self.progress.iteration,
                rank=self.world.rank,
                world_size=self.world.size,
                begin=self.stop.begin,
            )

    # State.

    def save(self) -> None:
        """Write a checkpoint from which the run can resume.

        Every rank must call this, because the BN running statistics are averaged over the ranks.
        """
        of_ranks = None
        with self.record.clock.time("saving"):
            if self.progress.iteration not in self.evaluated_after | self.saved_after:
                of_ranks = buffers_of_ranks(self.models, self.world)
            average_running_stats(self.models)
            self.progress.seconds = self.record.clock.seconds
        self._write(partial(self.checkpoint, of_ranks))
        self.record.saved()
        # An unscheduled save, for example by a hook, must not change the run.
        set_buffers(self.models, of_ranks, self.world)

    def _write(self, make: Callable[[], Checkpoint]) -> None:
        """Write the checkpoint that `make` returns. Do nothing outside the main process."""
        if self.world.is_main:
            train = self.recipe.train
            with self.record.clock.time("saving"):
                ends = phase_ends(self.schedule)
                write_checkpoint(self.recipe.output_dir, make(), train.checkpoints_kept, ends)

    def checkpoint(self, running_stats: Tensor | None = None) -> Checkpoint:
        """Return the state after the last finished iteration.

        Args:
            running_stats: BN running statistics of each rank, (world size, N), if they differ.
        """
        step = self.schedule.at(self.progress.iteration - 1)
        average = self.stepper.average
        return Checkpoint(
            **vars(self.progress),
            epoch=step.epoch,
            cfg=self.recipe.text,
            cfg_at_iteration=recipe_at(self.recipe, self.schedule, step.iteration).text,
            model_state=self.model.state_dict(),
            ema_state=None if average is None else average.state_dict(),
            optimizer_state=self.stepper.optimizer.state_dict(),
            scaler_state=self.stepper.scaler.state_dict(),
            running_stats=running_stats,
            world_size=self.world.size,
            phases=self.schedule.phase_lines(),
            num_videos=len(self.dataset),
            list_digest=self._list_digest,
            class_names=self._class_names,
        )

    def _best_checkpoint(self) -> Checkpoint:
        """Return a checkpoint of the current weights for tests and predictions.

        With MODEL.EMA_DECAY, `model_state` contains the averaged weights. The optimizer and the
        gradient scaler are left out, so that a run cannot resume from the checkpoint.
        """
        return replace(
            self.checkpoint(),
            model_state=self.models[-1].state_dict(),
            ema_state=None,
            optimizer_state=None,
            scaler_state=None,
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state of a checkpoint. It must not be the best checkpoint."""
        by_process = self.recipe.model.has_batchnorm and not self.recipe.groups_batchnorm
        if checkpoint.world_size != self.world.size and self.world.is_main and by_process:
            logger.warning(
                "The checkpoint was trained on %d processes, and this run has %d. BN normalizes "
                "over the clips of each process, so the results change. Set BN.GROUP_SIZE to make "
                "the results independent of the number of processes.",
                *(checkpoint.world_size, self.world.size),
            )
        self.model.load_state_dict(checkpoint.model_state)
        if self.stepper.average is not None:
            assert checkpoint.ema_state is not None
            self.stepper.average.load_state_dict(checkpoint.ema_state)
        set_buffers(self.models, checkpoint.running_stats, self.world)
        assert checkpoint.optimizer_state is not None
        assert checkpoint.scaler_state is not None
        load_optimizer(self.stepper.optimizer, checkpoint.optimizer_state)
        if checkpoint.scaler_state:
            self.stepper.scaler.load_state_dict(checkpoint.scaler_state)
        self.progress = Progress(**{f.name: getattr(checkpoint, f.name) for f in fields(Progress)})
        self._class_names = self._class_names or checkpoint.class_names
