"""Multigrid training in any training loop."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from multigrid.agreement import differences
from multigrid.batchnorm import GroupedBatchNorm3d, check_accumulation, form_groups
from multigrid.batchnorm.shared import is_distributed
from multigrid.compiled import check_cuda_graphs
from multigrid.contract import CheckedClips, check_dataset, check_options, require
from multigrid.cost import cycle_advice, fine_tuning_warnings, rate_rule_advice
from multigrid.epochs import EpochLoader, divide_epochs
from multigrid.errors import MultigridError
from multigrid.micro_batches import MicroBatch, divide
from multigrid.positions import check_patches
from multigrid.prepare_step import keep_ratios
from multigrid.sampler import Batch, MultigridBatchSampler, collate
from multigrid.schedule import Schedule, ScheduleStep
from multigrid.schedule_identity import describe
from multigrid.shared_memory import fit_workers
from multigrid.step_state import StepState, scaled_rates
from multigrid.user_warning import warn_user
from multigrid.watch import LoopWatch, check_converted, untrained, unwrap

_CYCLES_CODE = (
    "make_schedule(..., cycles=multigrid.{name}) and "
    "VideoClips(..., sampling=multigrid.{name}.sampling)"
)


class Training:
    """Provide the mini-batches of a schedule, and prepare model and optimizer for each of them.

        training = Training(schedule, model, optimizer, seed=0)
        loader = training.loader(dataset)
        for epoch in range(training.epoch, training.epochs):
            for batch in loader:
                training.begin(batch)
                ...                            # forward, backward, optimizer.step()

    To train all epochs in one loop, write `for batch in training.batches(loader)`.

    The only state is the number of iterations trained. To resume, even within an epoch, create a
    `Training` with the same arguments and call `load_state_dict`. The training then continues with
    the next clips.

    A warning is issued if the training ends with too few iterations at the baseline's shape
    (`multigrid.cost.fine_tuning_warnings`), or if other cycles are recommended for the length of
    the training (`recommend_cycles`).

    Args:
        schedule: The schedule to train.
        model: The model to train. BN layers must have been converted by `convert_batchnorm`.
        optimizer: The optimizer, or a list of optimizers that train different parameters. `begin`
            sets the learning rate of each parameter group to the schedule's learning rate times the
            group's "lr_scale", which is 1 by default. A group may have a "batch_rate_rule" of its
            own (see `prepare_step`). If a framework creates model and optimizer later, set the
            attributes `model` and `optimizer` before the first `begin`.
        seed: Seed of the order of clips.
        accumulation_steps: Number of micro-batches into which `micro_batches` divides the
            mini-batch of a process to save memory (gradient accumulation).
        weights: Sampling weight of each video, to draw some videos more often than others, such as
            `balanced_weights(labels)`. The clips still depend on the seed and the iteration alone.
            None means that each video appears once in each pass over the data.

    Attributes:
        iteration: Number of iterations begun.
        epochs: Number of epochs. An epoch is an equal share of the iterations, about as long as a
            pass over the data. The last one may be shorter.
        epoch_iterations: Number of iterations in an epoch.
    """

    def __init__(
        self,
        schedule: Schedule,
        model: nn.Module | None = None,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        seed: int = 0,
        accumulation_steps: int = 1,
        weights: Sequence[float] | None = None,
    ) -> None:
        require(
            accumulation_steps >= 1,
            f"accumulation_steps is {accumulation_steps}, but must be 1 or more",
        )
        self.schedule = schedule
        self.model = model
        self.optimizer = optimizer
        self.seed = seed
        self.weights = None if weights is None else [float(weight) for weight in weights]
        self.iteration = 0
        self.epochs, self.epoch_iterations = divide_epochs(schedule)
        self.accumulation_steps = accumulation_steps
        self._step: ScheduleStep | None = None
        self._is_compared = False
        self._state: StepState | None = None
        self._watch = LoopWatch()
        for text in (*fine_tuning_warnings(schedule), *cycle_advice(schedule, _CYCLES_CODE)):
            warn_user(text)

    @property
    def epoch(self) -> int:
        """Index of the epoch of the next iteration, or `epochs` after the last iteration."""
        return self.epochs if self.is_complete else self.iteration // self.epoch_iterations

    @property
    def is_complete(self) -> bool:
        """Whether all iterations have begun."""
        return self.iteration == self.schedule.iterations

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """The optimizers, without the wrappers of frameworks."""
        given = self.optimizer
        listed = () if given is None else (given,) if isinstance(given, Optimizer) else (*given,)
        for one in listed:
            require(
                isinstance(one, Optimizer),
                f"the optimizer is a {type(one).__name__}, but must be a torch.optim.Optimizer or "
                "a list of them",
            )
        return tuple(map(unwrap, listed))

    def loader(
        self,
        dataset: Dataset[Any],
        *,
        loader: type[DataLoader[Batch]] = EpochLoader,
        **options: Any,
    ) -> DataLoader[Batch]:
        """Return a data loader of this rank's mini-batches. One `iter()` of it is one epoch.

        The first epoch starts at the current `iteration`, so it is shorter in a resumed training.
        `len(loader)` is `epoch_iterations`. The worker processes continue from epoch to epoch.

        This also registers hooks that raise ValueError if the loop forgets to call `begin`. The
        hooks check each forward in training mode with gradients, and each `optimizer.step()`. They
        do nothing after the last iteration. Samples of the data set are checked when they are read.

        Args:
            dataset: A data set that accepts a `ClipRequest` as index. It must have as many videos
                as the schedule.
            loader: A subclass of `DataLoader`. Integrations replace it.
            options: Options of the loader, such as num_workers. collate_fn defaults to `collate`.

        Raises:
            ValueError: The data set has another number of videos than the schedule, the data set
                cannot be indexed by `ClipRequest`, an option would select other clips, or the
                mini-batches cannot be divided over the processes (`check_processes`).
        """
        check_options(options)
        check_dataset(dataset, self.schedule.num_videos)
        rank, size = _ranks()
        sampler = MultigridBatchSampler(
            self.schedule, self.seed, rank, size, self.iteration, self.weights
        )
        form_groups(self.schedule)
        if self.model is not None and self.optimizers and not self.is_complete:
            self._watch.attach(self.model, self.optimizers)
        _, shortage = fit_workers(
            options.get("num_workers", 0),
            3 * max(shape.volume for shape in self.schedule.shapes) // size,
            processes=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
            prefetch=options.get("prefetch_factor") or 2,
        )
        if shortage:
            warn_user(f"{shortage}, or reduce num_workers")
        # Give it a generator, because the loader would otherwise change torch's random numbers.
        options = {"collate_fn": collate, "generator": torch.Generator(), **options}
        clips = CheckedClips(dataset, is_collated=options["collate_fn"] is collate)
        made = loader(clips, batch_sampler=sampler, **options)
        if isinstance(made, EpochLoader):
            made.training = self
        return made

    def batches(self, loader: DataLoader[Batch]) -> Iterator[Batch]:
        """Yield the mini-batches of all remaining epochs, to train them in one loop.

        Args:
            loader: The data loader from `loader`.
        """
        require(
            isinstance(loader, EpochLoader) and loader.training is self,
            "batches needs the loader that training.loader(dataset) of the same training returns, "
            f"but got another {type(loader).__name__}",
        )
        assert isinstance(loader, EpochLoader)
        return loader.read(self.schedule.iterations)

    def begin(self, batch: Batch | Mapping[str, Any] | SupportsIndex) -> ScheduleStep:
        """Prepare model and optimizers for the next iteration. Call this before the forward.

        This sets the BN group size, the learning rates and, for transformers, the coverage of the
        clips (see `set_coverage`). It increments `iteration`.

        Args:
            batch: The mini-batch from the loader, or the index of its iteration.

        Returns:
            The settings of the iteration.

        Raises:
            ValueError: The mini-batch has no "iteration", or is not the next one because
                mini-batches were skipped or repeated. Or there is no model or optimizer. The first
                call also raises ValueError if the model does not accept all shapes
                (`check_patches`), if it is compiled with CUDA graphs, or if its BN layers were not
                converted by `convert_batchnorm`.
        """
        iteration = iteration_of(batch)
        require(
            iteration == self.iteration,
            f"the mini-batch is of iteration {iteration}, but iteration {self.iteration} is next. "
            "Call begin once for each mini-batch of training.loader(dataset), which must not be "
            "passed to accelerator.prepare. To resume a training, call load_state_dict before you "
            "iterate over the loader",
        )
        optimizers = self.optimizers
        if self.model is None or not optimizers:
            raise MultigridError(
                "Training has no model or no optimizer. Create it with both, or set the attributes "
                "model and optimizer before you call begin"
            )
        if self._step is None:
            self._check_parts(self.model, optimizers)
        if self._step is not None:
            for optimizer in optimizers:
                keep_ratios(optimizer, self._watch.known_groups(optimizer), self._step.lr)
        if self._step is not None and not self._is_compared and is_distributed():
            self._is_compared = True
            copied = self._watch.broadcasts_buffers
            for text in differences(self.model, are_copied=copied):
                warn_user(text)
        self._watch.attach(self.model, optimizers)
        step = self.schedule.at(iteration)
        self._watch.begin(
            [scaled_rates(optimizer, step) for optimizer in optimizers],
            is_last=iteration + 1 == self.schedule.iterations,
            undivided=self.accumulation_steps if self.accumulation_steps > 1 else 0,
        )
        if self._state is None or self._state.model is not self.model:
            self._state = StepState(self.model)
        self._state.prepare(step, *optimizers)
        self._step = step
        self._set_coverage(batch if isinstance(batch, Mapping) else {})
        self.iteration += 1
        return step

    def skip(self) -> None:
        """Report that the loop skips the optimizer step of the iteration that began last.

        Call this if the state may be saved before the next `begin`. The saved state then counts the
        iteration as trained. You need not call it if gradients are set to None or zero instead of
        being applied, or if torch.amp.GradScaler skips the step.
        """
        self._watch.skip()

    def micro_batches(self, batch: Mapping[str, Any]) -> Iterator[MicroBatch]:
        """Divide the mini-batch into `accumulation_steps` micro-batches. Call this after `begin`.

            training.begin(batch)
            optimizer.zero_grad()
            for micro in training.micro_batches(batch):
                loss = cross_entropy(model(network_input(micro.batch)), micro.batch["labels"])
                (micro.weight * loss).backward()
            optimizer.step()

        Gradients and BN statistics equal those of the whole mini-batch, up to rounding. Each
        micro-batch consists of whole BN groups. Before each micro-batch, the running statistics are
        set to those before the mini-batch. After the last one, they are set to their mean.

        Args:
            batch: The mini-batch. Tensors with one row per clip are divided (`select_clips`).

        Raises:
            ValueError: No iteration has begun. Or a mini-batch of the schedule has fewer BN groups
                than micro-batches, or the model has BN layers that were not converted.
        """
        if self._state is None:
            raise MultigridError("no iteration has begun. Call training.begin(batch) first")
        assert self._step is not None
        count = self._step.shape.batch // _ranks()[1]
        modules = self._state.modules
        norms = [m for m in modules if isinstance(m, _BatchNorm) and m.training]
        has_norms = bool(norms)
        if self.accumulation_steps > 1:
            require(
                all(isinstance(norm, GroupedBatchNorm3d) for norm in norms),
                "micro-batches would change the BN statistics of layers that were not converted. "
                "Call multigrid.convert_batchnorm(model) before you create the optimizer, or leave "
                "accumulation_steps out",
            )
            steps = self.accumulation_steps
            check_accumulation(self.schedule, _ranks()[1], steps, has_norms)
            require(
                any(isinstance(v, Tensor) and len(v) == count for v in batch.values()),
                f"the mini-batch has no tensor of {count} rows, one for each clip of this process, "
                "so it cannot be divided. Pass the mini-batch of the loader",
            )
        size = self._step.bn_group_size if has_norms else None
        for micro in divide(batch, count, size, self.accumulation_steps, modules):
            self._set_coverage(micro.batch)
            if micro.is_last:
                self._watch.undivided = 0
            yield micro

    def _check_parts(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Check that a model and its optimizers suit the schedule."""
        check_cuda_graphs(model)
        check_patches(model, self.schedule.shapes)
        if any(size for phase in self.schedule.phases for size in phase.bn_group_sizes):
            check_converted(model)
        advice = [text for one in optimizers for text in rate_rule_advice(self.schedule, one)]
        for text in (*dict.fromkeys(advice), *untrained(model, optimizers)):
            warn_user(text)

    def _set_coverage(self, batch: Mapping[str, Any]) -> None:
        """Set the coverage of the clips of a mini-batch for the position embeddings.

        Clips of the baseline's shape have a coverage of 1, so the coverage is set to None, which
        skips the interpolation.
        """
        assert self._step is not None
        assert self._state is not None
        base, shape = self.schedule.base, self._step.shape
        is_base = (shape.frames, shape.crop) == (base.frames, base.crop)
        self._state.set_coverage(None if is_base else batch.get("coverage"))

    def state_dict(self) -> dict[str, int | str]:
        """Return the state to resume from.

        Before the optimizer step of an iteration, this is the state after the previous iteration,
        so that a resumed training repeats the iteration.
        """
        trained = self.iteration if self._watch.is_over() else self.iteration - 1
        return {"iteration": trained, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state. Call this before you iterate over the loader.

        Raises:
            ValueError: The state is not from a `Training`, or from a training with another
                schedule, seed or number of videos. The message names what differs.
        """
        self.check_state(state)
        iteration = state.get("iteration")
        require(
            isinstance(iteration, int) and iteration in range(self.schedule.iterations + 1),
            f"the state is at iteration {iteration}, but the schedule has "
            f"{self.schedule.iterations} iterations",
        )
        assert isinstance(iteration, int)
        self.iteration = iteration
        self._watch = LoopWatch()

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError if a state is of another training. The message names what differs."""
        for name, local in self._identity().items():
            require(
                state.get(name) == local,
                f"the state has {name} {state.get(name)}, but this training has {name} {local}. "
                "Resume with the same schedule and seed",
            )

    def _identity(self) -> dict[str, int | str]:
        return {**describe(self.schedule, self.weights), "seed": self.seed}


def iteration_of(batch: Any) -> int:
    """Return the index of the iteration of a mini-batch, which may also be the index itself.

    Raises:
        ValueError: The mini-batch contains no index.
    """
    found: Any = batch.get("iteration") if isinstance(batch, Mapping) else batch
    if isinstance(found, Tensor) and found.ndim == 1 and len(set(found.tolist())) == 1:
        found = found[0]  # torch's default collate function has stacked the samples' numbers
    try:
        return operator.index(found)
    except TypeError:
        kind = "a mini-batch" if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
        raise MultigridError(
            f'begin got {kind} without the key "iteration". Pass it the mini-batch of '
            "training.loader(dataset). A collate_fn must keep the key. If it returns another type "
            "than a dictionary, call training.begin(training.iteration)"
        ) from None


def _ranks() -> tuple[int, int]:
    """Return the rank and the world size."""
    if is_distributed():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
