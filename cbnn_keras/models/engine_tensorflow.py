"""TensorFlow, on one device or under `tf.distribute.MirroredStrategy`."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.models import keras_internals, replicas
from cbnn_keras.models.engine_interface import (
    Averages,
    Batch,
    CheckVariable,
    Engine,
    Inference,
    Moments,
    replaced,
)

T = TypeVar("T")


class TensorFlowEngine(Engine):
    """Keras' home backend."""

    NAME = "tensorflow"

    def check(self, model: keras.Model) -> None:
        if replicas.is_distributed(model):
            _check_strategy(model)

    def begin_training(self, model: keras.Model) -> None:
        # A step that makes the optimizer's variables is traced a second time.
        if (
            model.optimizer is not None
            and not model.optimizer.built
            and not replicas.is_distributed(model)
            and keras_internals.is_of_keras(type(model).train_step)
            and "train_step" not in vars(model)
        ):
            model.optimizer.build(model.trainable_variables)

    def repeatable(self, x: Any, batch_size: int | None) -> Any:
        return keras_internals.batches_of_arrays(x, batch_size)

    def tensors(self, batch: T) -> T:
        return tf.nest.map_structure(
            lambda part: part if tf.is_tensor(part) else tf.constant(part),
            batch,
        )

    def inference(
        self, model: keras.Model, head: Callable[..., Any]
    ) -> Inference:
        def one_batch(x: Any, *others: Any) -> Any:
            return head(model(x, training=False), *others)

        strategy = model.distribute_strategy
        is_distributed = replicas.is_distributed(model)
        step = (
            (lambda *batch: strategy.run(one_batch, args=batch))
            if is_distributed
            else one_batch
        )
        is_compiled = model.compiled and model.jit_compile  # by XLA
        if not model.run_eagerly:
            step = tf.function(
                step, reduce_retracing=True, jit_compile=is_compiled
            )
        is_traced_once = not (
            model.run_eagerly or is_compiled or is_distributed
        )

        def run(
            batches: Iterable[Batch], num_samples: int | None = None
        ) -> list[Any]:
            if is_distributed:
                return list(_on_replicas(strategy, step, batches))
            results: list[Any] = []
            for batch in batches:
                if is_traced_once and num_samples and not results:
                    _trace_for_all_sizes(step, batch, num_samples)
                results.append(step(*batch))
            return results

        return run

    def training_pass(
        self,
        model: keras.Model,
        layers: list[keras.layers.BatchNormalization],
    ) -> Callable[[Any], Moments]:
        def forward(x: Any) -> Moments:
            with keras_internals.watched_moments(layers) as noting:
                return noting(lambda: model(x, training=True))

        if not replicas.is_distributed(model):
            return tf.function(forward, reduce_retracing=True)
        strategy = model.distribute_strategy

        @tf.function
        def on_first_replica(x: Any) -> Moments:
            # The others get the same batch, and see the same.
            with keras_internals.watched_moments(layers) as noting:
                moments = strategy.run(
                    lambda x: noting(lambda: model(x, training=True)), args=(x,)
                )
            return tf.nest.map_structure(
                lambda value: strategy.experimental_local_results(value)[0],
                moments,
            )

        return on_first_replica

    def step_gradients(
        self,
        model: keras.Model,
        optimizers: list[keras.optimizers.Optimizer],
        batch: Any,
    ) -> list[np.ndarray]:
        found: list[np.ndarray] = []

        def apply(grads: Any, trainable_variables: Any = None) -> None:
            context = tf.distribute.get_replica_context()
            if context.replica_id_in_sync_group:
                return  # the first one tells enough
            for gradient in grads:
                if isinstance(gradient, tf.IndexedSlices):
                    found.append(gradient.values.numpy())
                    found.append(gradient.indices.numpy())
                elif gradient is not None:
                    found.append(gradient.numpy())

        # A scaled loss of mixed precision may overflow, here for nothing.
        instead = {"apply": apply, "scale_loss": lambda loss: loss}
        with replaced(optimizers, instead), _executed_at_once():
            if replicas.is_distributed(model):
                model.distribute_strategy.run(model.train_step, args=(batch,))
            else:
                model.train_step(batch)
        return found

    def averages(
        self,
        model: keras.Model,
        variables: list[keras.Variable],
        *,
        of_averages: bool = False,
    ) -> Averages:
        return _Averages(variables, of_averages)

    def without_memory(self, build: Callable[[], T]) -> T:
        with tf.Graph().as_default():
            return build()

    @contextlib.contextmanager
    def watched_variables(self, check: CheckVariable) -> Iterator[None]:
        def create(next_creator: Callable[..., Any], **options: Any) -> Any:
            value, dtype = options.get("initial_value"), options.get("dtype")
            shape = keras_internals.declared_shape(value)
            if shape is None:  # a variable of TensorFlow's own
                made = (
                    self.without_memory(lambda: tf.convert_to_tensor(value()))
                    if callable(value)
                    else tf.convert_to_tensor(value)
                )
                shape, dtype = tuple(made.shape), dtype or made.dtype
            check(shape, dtype)
            return next_creator(**options)

        with tf.variable_creator_scope(create):
            yield


class _Averages(Averages):
    """In variables on the devices of others, mirrored nowhere."""

    def __init__(
        self, variables: list[keras.Variable], of_averages: bool
    ) -> None:
        def make() -> list[tf.Variable]:
            copies = []
            for variable in variables * (1 + of_averages):
                array = keras.ops.convert_to_numpy(variable)
                with tf.device(variable.value.device):
                    value = tf.cast(array, tf.float32)
                    copies.append(tf.Variable(value, trainable=False))
            return copies

        self._means = replicas.outside_strategies(make)
        values = [v.value for v in variables]
        if of_averages:
            values += self._means[: len(variables)]
        self._blend = _blend(self._means, values)

    def blend(self, share: float) -> None:
        self._blend(tf.constant(share))

    def values(self) -> list[Any]:
        return [mean.value() for mean in self._means]

    def restore(self, values: list[np.ndarray]) -> None:
        for mean, value in zip(self._means, values, strict=True):
            mean.assign(value)


def _blend(
    means: list[tf.Variable], values: list[tf.Variable]
) -> Callable[[tf.Tensor], None]:
    """A function of a share: means += share * (values - means)."""

    @tf.function
    def blend(share: tf.Tensor) -> None:
        for mean, value in zip(means, values, strict=True):
            mean.assign_add(share * (tf.cast(value, tf.float32) - mean))

    # Not looked up by its arguments each time, which takes longer than it does.
    return blend.get_concrete_function(tf.TensorSpec([], tf.float32))


def _trace_for_all_sizes(step: Any, batch: Batch, num_samples: int) -> None:
    """Traces a function once, where it would be again for the last batch."""
    parts = tf.nest.flatten(batch)
    if (
        step.experimental_get_tracing_count()
        or not all(isinstance(p, tf.Tensor) and p.shape.rank for p in parts)
        or not num_samples % parts[0].shape[0]
    ):
        return
    step.get_concrete_function(
        *tf.nest.map_structure(
            lambda part: tf.TensorSpec([None, *part.shape[1:]], part.dtype),
            batch,
        )
    )


def _on_replicas(
    strategy: tf.distribute.Strategy,
    step: Callable[..., Any],
    batches: Iterable[Batch],
) -> Iterator[Any]:
    """Every replica takes its turn at a batch."""
    num, batches = strategy.num_replicas_in_sync, iter(batches)
    while group := list(itertools.islice(batches, num)):
        # Those for whom nothing is left do the last batch once more.
        shares = group + group[-1:] * (num - len(group))
        result = step(
            *(_distributed(strategy, p) for p in zip(*shares, strict=True))
        )
        locally = strategy.experimental_local_results
        flat = [locally(part) for part in tf.nest.flatten(result)]
        for parts in list(zip(*flat, strict=True))[: len(group)]:
            yield tf.nest.pack_sequence_as(result, parts)


def _distributed(
    strategy: tf.distribute.Strategy, shares: tuple[Any, ...]
) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: shares[context.replica_id_in_sync_group]
    )


@contextlib.contextmanager
def _executed_at_once() -> Iterator[None]:
    """Has functions of TensorFlow run as Python, so that none is traced.

    One that was traced here would keep what stands in for the optimizer.
    """
    kept = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(kept)


def _check_strategy(model: keras.Model) -> None:
    """What Keras cannot do, before it says so in its own way."""
    strategy = model.distribute_strategy
    if not isinstance(strategy, _STRATEGIES):
        raise ValueError(
            f"The model was built under {_name(strategy)}, which "
            "is not supported. Build it under `tf.distribute.MirroredStrategy()"
            f"`, for all GPUs of this machine.{_several_machines(strategy)}"
        )
    if model.jit_compile and strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "The model was compiled with jit_compile=True under "
            f"{_name(strategy)}, and Keras cannot compile a step with XLA on "
            "several devices. Leave `jit_compile` out of `compile`."
        )
    if model.steps_per_execution > 1:
        raise ValueError(
            "The model was compiled with steps_per_execution="
            f"{model.steps_per_execution} under {_name(strategy)}. Keras fails "
            "on several steps at once on several devices, and on one of them "
            "their batches would have old weights. Leave `steps_per_execution` "
            "out of `compile`."
        )


_STRATEGIES = (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)


def _several_machines(strategy: tf.distribute.Strategy) -> str:
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return ""
    return (
        " For several machines use Keras on JAX, KERAS_BACKEND=jax with "
        "`keras.distribution.DataParallel(auto_shard_dataset=False)`; see "
        "docs/several_hosts.md."
    )


def _name(strategy: tf.distribute.Strategy) -> str:
    name = type(strategy).__name__
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        name = "MultiWorkerMirroredStrategy"  # its class has an older name
    return f"tf.distribute.{name}"
