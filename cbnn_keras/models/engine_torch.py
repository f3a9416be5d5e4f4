"""torch, which computes at once and draws from a generator of the process."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import keras
import numpy as np
import torch

from cbnn_keras.models import keras_internals
from cbnn_keras.models.engine_interface import (
    Averages,
    Batch,
    Engine,
    Inference,
    Moments,
    replaced,
)

T = TypeVar("T")


class TorchEngine(Engine):
    """One process and one device."""

    NAME = "torch"

    def inference(
        self, model: keras.Model, head: Callable[..., Any]
    ) -> Inference:
        @torch.no_grad()
        def run(
            batches: Iterable[Batch], num_samples: int | None = None
        ) -> list[Any]:
            results = []
            for batch in batches:
                x, *others = self.tensors(batch)
                results.append(head(model(x, training=False), *others))
            return results

        return run

    def training_pass(
        self,
        model: keras.Model,
        layers: list[keras.layers.BatchNormalization],
    ) -> Callable[[Any], Moments]:
        @torch.no_grad()
        def forward(x: Any) -> Moments:
            with keras_internals.watched_moments(layers) as noting:
                return noting(lambda: model(self.tensors(x), training=True))

        return forward

    def step_gradients(
        self,
        model: keras.Model,
        optimizers: list[keras.optimizers.Optimizer],
        batch: Any,
    ) -> list[np.ndarray]:
        found: list[np.ndarray] = []

        def apply(grads: Any, trainable_variables: Any = None) -> None:
            found.extend(
                np.array(keras.ops.convert_to_numpy(gradient))
                for gradient in grads
                if gradient is not None
            )

        instead = {"apply": apply, "scale_loss": lambda loss: loss}
        with replaced(optimizers, instead):
            model.train_step(self.tensors(batch))
        model.zero_grad()
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
        with keras.device("meta"):
            return build()

    def random_state(self) -> dict[str, np.ndarray]:
        state = {"torch": torch.get_rng_state().numpy().copy()}
        if torch.cuda.is_available():
            for i, part in enumerate(torch.cuda.get_rng_state_all()):
                state[f"cuda{i}"] = part.numpy().copy()
        return state

    def set_random_state(self, state: dict[str, np.ndarray]) -> None:
        for name, array in state.items():
            part = torch.from_numpy(array.copy())
            if name == "torch":
                torch.set_rng_state(part)
                continue
            # A run may be resumed where there are fewer devices, or none.
            number = int(name.removeprefix("cuda"))
            if number < torch.cuda.device_count():
                torch.cuda.set_rng_state(part, number)


class _Averages(Averages):
    def __init__(
        self, variables: list[keras.Variable], of_averages: bool
    ) -> None:
        self._variables = variables
        self._means = [
            v.value.detach().to(torch.float32, copy=True)
            for v in variables * (1 + of_averages)
        ]

    @torch.no_grad()
    def blend(self, share: float) -> None:
        # In float32 as on the other backends.
        factor = float(np.float32(share))
        values = [v.value.to(torch.float32) for v in self._variables]
        # Behind the averages come averages of them, if there are any.
        values += self._means[: len(self._means) - len(values)]
        for mean, value in zip(self._means, values, strict=True):
            mean += factor * (value - mean)

    def values(self) -> list[Any]:
        return self._means

    def restore(self, values: list[np.ndarray]) -> None:
        for mean, value in zip(self._means, values, strict=True):
            mean.copy_(torch.from_numpy(np.asarray(value, np.float32)))
