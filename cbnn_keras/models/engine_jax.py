"""JAX, where `fit` keeps the values of variables to itself.

Between the steps of an epoch the variables of a model are empty, and what is
computed is computed by functions of their values.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.experimental import multihost_utils

from cbnn_keras.models import keras_internals
from cbnn_keras.models.engine_interface import (
    Averages,
    Batch,
    Engine,
    Inference,
    Moments,
    replaced,
)
from cbnn_keras.support.processes import (
    Alone,
    OtherProcessError,
    Processes,
)

T = TypeVar("T")
# Of `model.variables`, by position.
Values = dict[int, Any]
# Bytes that one process tells all others at once.
_PIECE = 2**24


class JaxEngine(Engine):
    """One process, or several that are one to `DataParallel`."""

    NAME = "jax"

    def check(self, model: keras.Model) -> None:
        distribution = keras.distribution.distribution()
        if distribution is None and jax.default_backend() != "cpu":
            raise ValueError(
                f"On {jax.default_backend()!r} without a distribution, Keras "
                "fetches each batch a step ahead, so that it would have old "
                "sample weights. Before the model is made, call "
                "`keras.distribution.set_distribution(keras.distribution."
                "DataParallel(auto_shard_dataset=False))`, also for a single "
                "device."
            )
        if self.processes().count > 1 and distribution is None:
            raise ValueError(
                f"There are {self.processes().count} processes of JAX, but no "
                "distribution. Call `cbnn_keras.launch.join()` before the "
                "model is made."
            )
        if self.processes().count > 1 and distribution.auto_shard_dataset:
            raise ValueError(
                "keras.distribution.DataParallel has auto_shard_dataset=True, "
                "with which batches look their sample weights up too early. "
                "Make it `DataParallel(auto_shard_dataset=False)`: `weighted` "
                "gives each process its own part of a batch."
            )
        whole = keras.distribution.DataParallel
        if distribution is not None and not isinstance(distribution, whole):
            raise ValueError(
                f"The distribution is keras.distribution."
                f"{type(distribution).__name__}, which may divide variables "
                "among devices; a member is whole. Use `DataParallel("
                "auto_shard_dataset=False)`."
            )

    def sync(self, model: keras.Model) -> None:
        model.jax_state_sync()

    def processes(self) -> Processes:
        return JaxProcesses() if jax.process_count() > 1 else _DevicesAlone()

    def divides_batches(self) -> bool:
        return keras.distribution.distribution() is not None

    @contextlib.contextmanager
    def alone(self, model: keras.Model) -> Iterator[None]:
        self.sync(model)
        distribution = keras.distribution.distribution()
        if distribution is None:  # or in here already
            yield
            return
        with self.processes().together():
            with keras_internals.undistributed(model, distribution):
                yield

    def inference(
        self, model: keras.Model, head: Callable[..., Any]
    ) -> Inference:
        def one_batch(values: Values, x: Any, *others: Any) -> Any:
            with _scope(model, values) as scope:
                outputs = model(x, training=False)
            return head(outputs, *others), _changed(model, values, scope)

        step = one_batch if model.run_eagerly else jax.jit(one_batch)

        def run(
            batches: Iterable[Batch], num_samples: int | None = None
        ) -> list[Any]:
            values, results = _values(model), []
            for batch in batches:
                result, changed = step(values, *self.tensors(batch))
                values |= changed
                results.append(result)
            return results

        return run

    def training_pass(
        self,
        model: keras.Model,
        layers: list[keras.layers.BatchNormalization],
    ) -> Callable[[Any], Moments]:
        @jax.jit
        def forward(values: Values, x: Any) -> tuple[Moments, Values]:
            with keras_internals.watched_moments(layers) as noting:
                with _scope(model, values) as scope:
                    found = noting(lambda: model(x, training=True))
            return found, _changed(model, values, scope)

        def training_pass(x: Any) -> Moments:
            found, changed = forward(_values(model), self.tensors(x))
            for i, value in changed.items():
                model.variables[i].assign(value)
            return found

        return training_pass

    def step_gradients(
        self,
        model: keras.Model,
        optimizers: list[keras.optimizers.Optimizer],
        batch: Any,
    ) -> list[np.ndarray]:
        found: list[np.ndarray] = []

        def stateless_apply(
            optimizer_variables: Any, grads: Any, trainable_variables: Any
        ) -> tuple[Any, Any]:
            found.extend(np.array(g) for g in grads if g is not None)
            return trainable_variables, optimizer_variables

        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        state = tuple(
            [variable.value for variable in variables]
            for variables in (
                model.trainable_variables,
                model.non_trainable_variables,
                model.optimizer.variables,
                model.metrics_variables,
            )
        )
        instead: dict[str, Callable[..., Any]] = {
            "stateless_apply": stateless_apply,
            "scale_loss": lambda loss: loss,
        }
        with replaced(optimizers, instead):
            model.train_step(state, self.tensors(batch))
        return found

    def averages(
        self,
        model: keras.Model,
        variables: list[keras.Variable],
        *,
        of_averages: bool = False,
    ) -> Averages:
        return _Averages(model, variables, of_averages)

    def without_memory(self, build: Callable[[], T]) -> T:
        built: list[T] = []
        jax.eval_shape(lambda: built.append(build()))
        return built[0]


class _DevicesAlone(Alone):
    """One process, with all of the devices."""

    @property
    def num_devices(self) -> int:  # type: ignore[override]
        return jax.device_count()


class JaxProcesses(Processes):
    """Processes that `jax.distributed.initialize` has made known."""

    def __init__(self) -> None:
        self.index = jax.process_index()
        self.count = jax.process_count()
        self.num_devices = jax.device_count()

    def _exchange(self, message: bytes, *, has_failed: bool) -> list[bytes]:
        gather = multihost_utils.process_allgather
        # As bytes: JAX makes 32 bits of 64, and a run has more than 2 GB.
        head = np.array([len(message), has_failed], np.int64).view(np.uint8)
        sizes = np.ascontiguousarray(gather(head)).view(np.int64)
        longest = int(sizes[:, 0].max())
        padded = np.zeros(max(longest, 1), np.uint8)
        padded[: len(message)] = np.frombuffer(message, np.uint8)
        rows = gather(padded)
        found = [
            bytes(row[:size].tobytes())
            for row, size in zip(rows, sizes[:, 0], strict=True)
        ]
        failed = [i for i in range(self.count) if sizes[i, 1]]
        if failed and not has_failed:
            raise OtherProcessError(
                f"Process {failed[0]} of {self.count} has failed: "
                f"{found[failed[0]].decode()}"
            )
        return found

    def broadcast(self, message: bytes) -> bytes:
        """In pieces: an exchange would bring as many copies as processes."""
        size = int(self.exchange(b"%d" % len(message))[0])
        found = bytearray()
        for start in range(0, size, _PIECE):
            piece = np.zeros(min(_PIECE, size - start), np.uint8)
            if self.is_first:
                own = message[start : start + _PIECE]
                piece[:] = np.frombuffer(own, np.uint8)
            told = multihost_utils.broadcast_one_to_all(piece)
            found += np.asarray(told).astype(np.uint8).tobytes()
        return bytes(found)


class _Averages(Averages):
    def __init__(
        self,
        model: keras.Model,
        variables: list[keras.Variable],
        of_averages: bool,
    ) -> None:
        self._model = model
        self._variables = variables
        self._means = [
            jnp.array(_local(v.value), "float32")
            for v in variables * (1 + of_averages)
        ]

        # As new arrays: what a step has given away is gone.
        @jax.jit
        def blend(share: Any, means: Any, values: Any) -> Any:
            values, found = list(values), []
            for position, mean in enumerate(means):
                value = values[position].astype("float32")
                found.append(mean + share * (value - mean))
                values.append(found[-1])
            return found

        self._blend = blend

    def blend(self, share: float) -> None:
        self._model.jax_state_sync()
        values = [_local(variable.value) for variable in self._variables]
        self._means = self._blend(np.float32(share), self._means, values)

    def values(self) -> list[Any]:
        # `predict` gives away the arrays that variables have.
        return [jnp.array(mean, copy=True) for mean in self._means]

    def restore(self, values: list[np.ndarray]) -> None:
        self._means = [jnp.array(value, "float32") for value in values]


def _local(value: jax.Array) -> jax.Array:
    """A value that every device has, as the first of this process has it."""
    return value.addressable_data(0)


def _values(model: keras.Model) -> Values:
    return dict(enumerate(v.value for v in model.variables))


def _scope(model: keras.Model, values: Values) -> keras.StatelessScope:
    """Has variables of a model stand for values."""
    pairs = [(v, values[i]) for i, v in enumerate(model.variables)]
    return keras.StatelessScope(pairs)


def _changed(
    model: keras.Model, values: Values, scope: keras.StatelessScope
) -> Values:
    """The values that were assigned in a scope."""
    now = {
        i: scope.get_current_value(variable)
        for i, variable in enumerate(model.variables)
    }
    return {i: v for i, v in now.items() if v is not values[i]}
