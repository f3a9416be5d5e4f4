"""`fit` without its overhead: the steps of epochs in one compiled function.

A small network takes 0.05 ms a step here and 3 ms inside `model.fit`, which is
what makes hundreds of cells of `accuracy.py` affordable. Model, optimizer,
loss, order of the samples and sample weights are those of `model.fit` with
`weighted`; `tests/benchmarks/test_compiled_loop.py` compares both.
"""

import functools

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.models.batch_norm import StatisticsRecomputer
from cbnn_keras.models.fresh import fresh_weights

_STEPS_PER_CALL = 500


class CompiledLoop:
    """Trains one model again and again on the same samples.

    Args:
        model: Built, ends in logits.
        optimizer: Of Keras, with a number as learning rate.
        x: Inputs, shape `(num_samples, ...)`, a multiple of the batch size.
        y: Class indices, shape `(num_samples,)`.
        batch_size: Samples per step.
        jit_compile: Whether XLA compiles it: fast for dense layers, and slow
            for convolutions on a CPU.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        x: np.ndarray,
        y: np.ndarray,
        batch_size: int,
        *,
        jit_compile: bool = True,
    ) -> None:
        if len(x) % batch_size:
            raise ValueError(f"{len(x)} samples in batches of {batch_size}")
        self.model = model
        self.steps_per_epoch = len(x) // batch_size
        # Several epochs in one call: each call costs a few milliseconds.
        self.epochs_per_call = max(_STEPS_PER_CALL // self.steps_per_epoch, 1)
        self._batch_size = batch_size
        self._x = tf.Variable(x, trainable=False)
        self._y = tf.Variable(y, trainable=False, dtype=tf.int32)
        self.load(x, y)
        self._optimizer = optimizer
        optimizer.build(model.trainable_variables)
        self._slots = [np.array(v) for v in optimizer.variables]
        self._means, self._means_of_means = (
            [
                tf.Variable(tf.zeros_like(v.value), trainable=False)
                for v in model.trainable_variables
            ]
            for _ in range(2)
        )
        self._recompute = StatisticsRecomputer(model)
        self._run = {
            is_lag_free: tf.function(
                functools.partial(self._steps, is_lag_free=is_lag_free),
                jit_compile=jit_compile,
            )
            for is_lag_free in (False, True)
        }
        self._logits = tf.function(
            lambda inputs: tf.nn.softmax(model(inputs, training=False)),
            jit_compile=jit_compile,
        )

    def load(self, x: np.ndarray, y: np.ndarray) -> None:
        """Other samples, as many: what is compiled serves them, too."""
        self._x.assign(x)
        self._y.assign(y)
        self.labels = y

    def begin(self, seed: int, keep: float = 0.0) -> None:
        """Starts anew: weights drawn by the model's layers, empty slots.

        Args:
            seed: Equal seeds give equal weights.
            keep: The share of the present weights that stays.
        """
        drawn = fresh_weights(self.model, self._x[:1], seed)
        trained = {id(v) for v in self.model.trainable_variables}
        for variable, start in zip(self.model.weights, drawn, strict=True):
            if id(variable) in trained and keep:
                start = keep * np.array(variable) + (1 - keep) * start
            variable.assign(start)
        for variable, value in zip(
            self._optimizer.variables, self._slots, strict=True
        ):
            variable.assign(value)

    @property
    def steps_per_call(self) -> int:
        return self.epochs_per_call * self.steps_per_epoch

    def order(self, seed: int, first_epoch: int) -> tf.Tensor:
        """The samples of each step of a call, as `weighted` gives them."""
        samples = tf.range(len(self.labels), dtype=tf.int64)
        orders = [
            tf.random.experimental.stateless_shuffle(
                samples, tf.constant([seed, epoch], tf.int64)
            )
            for epoch in range(first_epoch, first_epoch + self.epochs_per_call)
        ]
        return tf.reshape(tf.concat(orders, 0), (-1, self._batch_size))

    def run(
        self,
        order: tf.Tensor,
        rates: np.ndarray,
        shares: np.ndarray,
        weights: np.ndarray,
        start: int,
        stop: int,
        *,
        is_lag_free: bool = False,
    ) -> None:
        """Makes the steps from `start` to `stop` of some epochs.

        Args:
            order: From `order`.
            rates: The learning rate of each step.
            shares: What part of the average each step's weights replace.
            weights: n * omega.
            start: From 0.
            stop: Not included.
            is_lag_free: Whether averages are averaged, too.
        """
        # Of one length, so that it is compiled once.
        missing = (0, self.steps_per_call - len(rates))
        self._run[is_lag_free](
            order,
            tf.constant(np.pad(rates, missing), tf.float32),
            tf.constant(np.pad(shares, missing), tf.float32),
            tf.constant(weights, tf.float32),
            tf.constant(start),
            tf.constant(stop),
        )

    def _steps(self, order, rates, shares, weights, start, stop, is_lag_free):
        variables = self.model.trainable_variables
        # A range would be compiled anew for every `start` and `stop`.
        i = start
        while i < stop:
            index = order[i]
            with tf.GradientTape() as tape:
                logits = self.model(tf.gather(self._x, index), training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                    tf.gather(self._y, index), logits
                )
                loss = tf.reduce_mean(losses * tf.gather(weights, index))
            gradients = tape.gradient(loss, [v.value for v in variables])
            gradients = [tf.convert_to_tensor(g) for g in gradients]
            self._optimizer.learning_rate.assign(rates[i])
            self._optimizer.apply(gradients, variables)
            for mean, variable in zip(self._means, variables, strict=True):
                mean.assign_add(shares[i] * (variable.value - mean))
            if is_lag_free:
                for mean, variable in zip(
                    self._means_of_means, self._means, strict=True
                ):
                    mean.assign_add(shares[i] * (variable - mean))
            i += 1

    def averaged(self, *, is_lag_free: bool = False) -> "_Swap":
        """Has the averaged weights in the model, statistics recomputed."""
        means = [mean.numpy() for mean in self._means]
        if is_lag_free:
            behind = [mean.numpy() for mean in self._means_of_means]
            means = [2 * m - b for m, b in zip(means, behind, strict=True)]
        return _Swap(self.model, means, self)

    def with_weights(self, trainable: list[np.ndarray]) -> "_Swap":
        """Has these weights in the model, statistics recomputed."""
        return _Swap(self.model, trainable, self)

    def recompute(self) -> None:
        order = self.order(0, 0)[: self.steps_per_epoch]
        self._recompute(tf.gather(self._x, index) for index in order)

    def trainable(self) -> list[np.ndarray]:
        """The weights that are trained, as they are now."""
        return [np.array(v) for v in self.model.trainable_variables]

    def predict(self, x: np.ndarray | None = None) -> np.ndarray:
        """Probabilities, of the training samples by default."""
        inputs = tf.convert_to_tensor(self._x if x is None else x)
        return self._logits(inputs).numpy()


class _Swap:
    """Other trainable weights in a model, for a while."""

    def __init__(self, model, trainable, loop):
        self._model, self._trainable, self._loop = model, trainable, loop

    def __enter__(self) -> None:
        self._kept = [np.array(w) for w in self._model.get_weights()]
        for variable, value in zip(
            self._model.trainable_variables, self._trainable, strict=True
        ):
            variable.assign(value)
        self._loop.recompute()

    def __exit__(self, *_: object) -> None:
        self._model.set_weights(self._kept)
