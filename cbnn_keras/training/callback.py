"""CBNN: the method as a callback of `model.fit`."""

import os
from collections.abc import Sequence
from typing import Any, ClassVar

from cbnn_keras import boosting, schedules
from cbnn_keras.auto_restarts import AUTO
from cbnn_keras.data.labelled import as_pair
from cbnn_keras.runs.manifest import Settings
from cbnn_keras.support import arguments
from cbnn_keras.training import intervals
from cbnn_keras.training.boosting_options import (
    Averaging,
    BoostingOptions,
    averaging_of,
)
from cbnn_keras.training.checkpointing import CheckpointCallback
from cbnn_keras.training.plan import (
    DEFAULT_NUM_CHECKPOINTS,
    Plan,
    compiled_rate,
    known_steps,
)
from cbnn_keras.training.restart_options import RestartOptions, cosine
from cbnn_keras.training.restarts import NewStarts
from cbnn_keras.training.run_arguments import checked_flag
from cbnn_keras.training.task import Task

_PAPERS_RATE = 0.01  # eta


class CBNNCallback(CheckpointCallback):
    """Turns one training run into an ensemble of its checkpoints.

    Every so many iterations the training set is scored, the checkpoint gets a
    vote, and training goes on, bit for bit as it would without. A member is
    the average of the weights over the last steps before its checkpoint, and
    those vote whose training error is near that of the last one. Boosting is
    asked for: with `largest_ratio` above 1 the samples that a checkpoint got
    wrong gain weight, and `CBNNCallback.paper` is the method as it was
    published. The model itself, its loss and its optimizer are left as they
    are, with one exception: under `tf.distribute.MirroredStrategy` the
    statistics that each device collects for itself, those of BatchNorm, are
    averaged over the devices at every checkpoint and after every epoch.
    Without that, the member that is saved would be another than the one that
    is scored.

    Each round is a record in `history`, a line on the screen and part of
    `fit`'s logs (`cbnn_error`, `cbnn_vote`, `cbnn_members`, `cbnn_bound`, and
    `val_ensemble_accuracy` with `validation_data`): list this callback before
    those that read them, such as `CSVLogger` or `EarlyStopping(
    "val_ensemble_accuracy", mode="max")`.

    Reference: Wang et al., "Boost Neural Networks by Checkpoints", NeurIPS
    2021, algorithm 1.

    Args:
        directory: Where the run is kept, crash-safe. Left out, members stay in
            memory until `ensemble().save(directory)`.
        num_checkpoints: M, at most so many members, the final model included.
            Defaults to 6.
        interval: t, iterations between checkpoints, instead of
            `num_checkpoints`; or epochs as a text, such as `"1ep"`.
        stops_early: Whether training may end before T. Checkpoints then come by
            the time trained so far, an epoch apart and then less and less
            often, and the latest M are kept: wherever training stops there are
            several. Defaults to None: if `EarlyStopping` is among the callbacks
            and neither `interval` nor `restarts` is given.
        phases: How many fits the run has: 2 where a new head is trained and
            then, with layers unfrozen and the model compiled anew, all of it.
            Sample weights and members go on from one to the next, each with
            its own M checkpoints, and the last ends the run. Defaults to 1.
        total_steps: T, needed only where `fit` cannot know its steps.
        deviation_rate: eta, how fast weights change; 0 leaves training as it
            would be without, and the paper's choice is 0.01. Defaults to None:
            as `largest_ratio` says.
        largest_ratio: R instead of eta: about how many times the weight of an
            easy sample a hard one can have in the end, if checkpoints are as
            good as `expected_error` says. Defaults to 1, which leaves training
            as it would be without. More harms where labels are wrong; compare
            on held-out data.
        expected_error: Training error expected of the final model, below
            1 - 1/k: with eta it limits the number of checkpoints (the stop rule
            of the paper). Defaults to 0.05.
        average: Whether a member is an exponential average of the weights, with
            statistics of BatchNorm recomputed for it, and not the model at its
            checkpoint; or the horizon of the average as a share of the run (of
            a cycle, with `restarts`). Training is the same, bit for bit.
            True, the default, stands for 0.05, and for averages that do not
            lag behind the weights in two cases: over 0.1 of a run of fewer
            than 20 epochs, and over 0.15 where a class has a fifth of the
            samples of the most frequent one, or less.
        members: Which members vote unless asked otherwise: `"all"`, as in the
            paper and the default with `restarts`, or `"trusted"`, the default
            without: those whose training error, over all samples and averaged
            over the classes, is at most half a point above that of the last
            one (see `trust.Trust`).
        restarts: K, from 2: the run becomes K cycles, and the model starts anew
            in each. For runs that are several times longer than the model
            needs to fit its training set; in shorter ones it does harm.
            `"auto"` sees by itself: the run is one cosine until twice the steps
            no longer help on `validation_data`, and then starts anew in cycles
            as long as what was enough, two epochs or more (see
            `auto_restarts`).
        keep: The share of the weights that a restart keeps, from 0 to 1.
            Defaults to 0.
        restart_from: `"fresh"` draws weights from the layers' initializers,
            `"start"` goes back to those that `fit` began with and draws only
            the head anew, for fine-tuning. Defaults to `"fresh"`.
        head: With `restart_from="start"`, the names of the layers that are
            drawn anew. Defaults to None: the last one that has weights.
        learning_rate: `"cosine"` lets the rate fall from the compiled number
            towards zero, in every cycle; `"compiled"` leaves it alone. Defaults
            to None: a cosine with `restarts`, and left alone without.
        from_logits: Whether the model ends in logits. Defaults to None: read
            from the loss and the last activation.
        validation_data: `(x, y)` or a dataset of batches, to log the accuracy
            of the ensemble so far, and for `restarts="auto"` to decide by;
            callbacks never see `model.fit`'s. For `"auto"`, `callback.fit`
            passes its own on.
        score_data: The training samples in the order of their index, as
            `(x, y)` or a dataset of single samples: only for a pipeline made
            with `attach_index`.
        resume: Resume the run in `directory` if there is one. The same
            script then serves first start and restart; what it does not say
            is as it was when the run began.
        overwrite: Replace the run in `directory` if there is one.

    Raises:
        ValueError: For arguments outside their range, and, when `fit` begins,
            for data or a model that cannot be boosted.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> x, y = np.eye(3).repeat(20, axis=0), np.arange(3).repeat(20)
    >>> model = keras.Sequential([keras.layers.Dense(3, "softmax")])
    >>> adam = keras.optimizers.Adam(0.1)
    >>> model.compile(adam, "sparse_categorical_crossentropy")
    >>> cbnn = CBNNCallback(num_checkpoints=2)
    >>> train = cbnn.weighted(x, y, batch_size=20)
    >>> _ = model.fit(train, epochs=4, callbacks=[cbnn], verbose=0)
    >>> [record["step"] for record in cbnn.history]
    [6, 12]
    """

    METHOD: ClassVar[str] = "cbnn"
    LOG_PREFIX: ClassVar[str] = "cbnn"

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        num_checkpoints: int | None = None,
        interval: int | str | None = None,
        stops_early: bool | None = None,
        phases: int = 1,
        total_steps: int | None = None,
        deviation_rate: float | None = None,
        largest_ratio: float | None = None,
        expected_error: float = 0.05,
        average: bool | float | None = None,
        members: str | None = None,
        restarts: int | str | None = None,
        keep: float = 0.0,
        restart_from: str = "fresh",
        head: str | Sequence[str] | None = None,
        learning_rate: str | None = None,
        from_logits: bool | None = None,
        validation_data: Any = None,
        score_data: Any = None,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        _check_alone(
            num_checkpoints=num_checkpoints,
            interval=interval,
            restarts=restarts,
        )
        if stops_early:
            _check_alone(stops_early=True, interval=interval)
            _check_alone(stops_early=True, restarts=restarts)
        num_phases = arguments.integer("CBNNCallback", "phases", phases)
        if num_phases > 1:
            _check_alone(phases=phases, restarts=restarts)
        _check_alone(deviation_rate=deviation_rate, largest_ratio=largest_ratio)
        super().__init__(
            directory,
            num_checkpoints=num_checkpoints,
            total_steps=total_steps,
            from_logits=from_logits,
            validation_data=validation_data,
            score_data=score_data,
            resume=resume,
            overwrite=overwrite,
        )
        self._has_own_validation_data = validation_data is not None
        self._num_phases = num_phases
        self.interval = intervals.checked_interval("CBNNCallback", interval)
        self.stops_early = checked_flag(
            "CBNNCallback", "stops_early", stops_early
        )
        self.restarting = RestartOptions.checked(
            "CBNNCallback",
            restarts,
            NewStarts.checked("CBNNCallback", keep, restart_from, head),
            learning_rate,
        )
        self.boosting = self._asked = BoostingOptions.checked(
            "CBNNCallback",
            deviation_rate=deviation_rate,
            largest_ratio=largest_ratio,
            expected_error=expected_error,
            average=average,
            members=members,
            has_restarts=restarts not in (None, AUTO),  # may never restart
        )
        self._num_classes = 2  # how many there are is known when `fit` begins

    @classmethod
    def paper(
        cls, directory: str | os.PathLike[str] | None = None, **options: Any
    ) -> "CBNNCallback":
        """Algorithm 1 and the final classifier of the paper, exactly.

        Members are the model at its checkpoints, all of them vote by lambda,
        and eta is 0.01 unless another `deviation_rate` is given. Takes the
        arguments of the class but `average`, `members`, `largest_ratio`,
        `stops_early` and those of restarts.
        """
        for name in ("average", "members", "largest_ratio", "restarts"):
            if name in options:
                raise ValueError(
                    f"CBNNCallback.paper({name}=...): the paper has no such "
                    "thing. Write CBNNCallback(...) for it."
                )
        if options.get("deviation_rate") is None:
            options["deviation_rate"] = _PAPERS_RATE
        return cls(
            directory,
            average=False,
            members="all",
            stops_early=False,
            **options,
        )

    def _check_task(self, task: Task) -> None:
        self.restarting.check(task.model, self.validation_data)
        self.restarting.warn_of_stopping(self._others)
        num_classes = task.classifier.num_classes
        error = self.boosting.expected_error
        if not boosting.is_better_than_chance(error, num_classes):
            raise ValueError(
                f"CBNNCallback(expected_error={error}): must be "
                f"below {1 - 1 / num_classes:.4g}, the error of guessing one "
                f"of {num_classes} classes."
            )
        self._num_classes = num_classes

    def _see_validation_data(self, data: Any) -> None:
        if not self.restarting.are_auto or self._has_own_validation_data:
            return
        if data is not None:
            as_pair(data, f"{self._name}(restarts='auto'): validation_data")
        self.validation_data = data

    @property
    def _is_boosted(self) -> bool:
        return self.boosting.may_reweight

    def _adopt(self, settings: Settings | None) -> None:
        super()._adopt(settings)
        self.boosting = self._asked
        if settings is None and self._earlier is not None:
            settings = self._earlier.settings_of(0)  # as the run began
        if settings is not None:
            self.boosting = self._asked.adopted(settings)

    def _make_plan(self, total_steps: int, steps_per_epoch: int | None) -> Plan:
        held_out = None if self._fit is None else self._fit.accuracy
        length = (total_steps, steps_per_epoch)
        actions = self.restarting.actions(*length, held_out)
        if actions is None:
            checkpoints = self._checkpoints(*length)
            num_rounds = self._num_phases * len(checkpoints.steps)
        else:
            checkpoints = actions.checkpoints
            num_rounds = actions.most_checkpoints
        settings = dict(checkpoints.settings)
        if self._num_phases > 1:
            settings["phases"] = self._num_phases
        averaging, horizon = self._averaging(*length), None
        if averaging is not None:
            settings |= averaging.settings
            horizon = max(round(averaging.horizon * checkpoints.length), 1)
        rate = highest = None
        if self.restarting.set_the_rate:
            highest = compiled_rate("CBNNCallback", self.model)
            settings["highest_rate"] = highest
            rate = cosine(actions, total_steps, highest)
        return Plan(
            checkpoints.steps,
            self.boosting.policy(num_rounds, self._num_classes),
            settings,
            rate,
            actions,
            horizon,
            highest,
            checkpoints.num_kept,
            averaging is not None and averaging.is_lag_free,
        )

    def _averaging(
        self, total_steps: int, steps_per_epoch: int | None
    ) -> Averaging | None:
        task = None if self._fit is None else self._fit.task
        if task is None or not self.boosting.asks_for_data:
            return self.boosting.averaging
        # An epoch of `fit` may be a part of a pass.
        num_batches = task.weights.num_batches or steps_per_epoch
        num_epochs = self.params["epochs"]
        if num_batches:
            num_epochs = total_steps / num_batches
        return averaging_of(task.class_sums(), num_epochs)

    def _checkpoints(
        self, total_steps: int, steps_per_epoch: int | None
    ) -> intervals.Checkpoints:
        num = self.num_checkpoints or DEFAULT_NUM_CHECKPOINTS
        if self._has_growing_intervals(steps_per_epoch):
            first = known_steps("CBNNCallback", steps_per_epoch)
            return intervals.growing(total_steps, first, num)
        if self.interval is None:
            interval = schedules.checkpoint_interval(total_steps, num)
        else:
            interval = intervals.in_steps(
                "CBNNCallback", self.interval, steps_per_epoch
            )
        return intervals.at_intervals(total_steps, interval)

    def _has_growing_intervals(self, steps_per_epoch: int | None) -> bool:
        if self.stops_early is not None:
            return self.stops_early
        if self._resumed is not None:  # which began before we were asked
            return self.interval is None and intervals.has_growing(
                self._resumed
            )
        return (
            self.interval is None
            and bool(steps_per_epoch)
            and intervals.may_stop_early(self._others)
        )


def _check_alone(**options: Any) -> None:
    """Raises a `ValueError` for options that exclude each other."""
    given = [f"{k}={v}" for k, v in options.items() if v is not None]
    if len(given) > 1:
        raise ValueError(
            f"CBNNCallback({', '.join(given)}): give one of them, not several."
        )
