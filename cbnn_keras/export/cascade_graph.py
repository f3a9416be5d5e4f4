"""A cascade as a graph: members that a sample does not need are not computed.

The rule is that of `cbnn_keras.cascades`. After each member, the samples that
stay are gathered, and the next member computes only these; where none stays,
nothing more is computed. What members share is computed once: the next one gets
whatever it has in common with earlier ones, gathered.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from cbnn_keras import cascades
from cbnn_keras.calibration import Scaling
from cbnn_keras.cascades import Cascade, Ranks
from cbnn_keras.ensemble import merging
from cbnn_keras.ensemble.adjusting import adjusted_tensors
from cbnn_keras.models import keras_internals

# What is known of samples: the sums of what members said, and their number.
State = tuple[tf.Tensor, tf.Tensor]
# What the names of marks begin with.
MARK = "cascade_branch_"
# (whether a sample stays, the state, a function for another state) -> state
Branch = Callable[[tf.Tensor, State, Callable[[], State]], State]


def skip_if_decided(
    stays: tf.Tensor, state: State, next_state: Callable[[], State]
) -> State:
    """TensorFlow's own branch."""
    return tf.cond(stays, next_state, lambda: state)


class Marks:
    """Branches that are none: all is computed, and marked by outputs.

    tf2onnx does not convert convolutions within branches as it should. So it
    converts a graph without any, in which `onnx_branches` then finds what
    belongs into one.

    Attributes:
        tensors: By name. Of branch n there are its condition, `n_stays`; what
            it gives if that is false, `n_otherwise_0` and `n_otherwise_1`; and
            what it gives if it is true, `n_result_0` and `n_result_1`.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, tf.Tensor] = {}
        self._num = 0

    def __call__(
        self, stays: tf.Tensor, state: State, next_state: Callable[[], State]
    ) -> State:
        name = f"{MARK}{self._num}"
        self._num += 1  # branches within this one come next
        found = next_state()
        self.tensors[f"{name}_stays"] = stays
        for number, (otherwise, result) in enumerate(
            zip(state, found, strict=True)
        ):
            self.tensors[f"{name}_otherwise_{number}"] = otherwise
            self.tensors[f"{name}_result_{number}"] = result
        return found


class CascadeGraph:
    """Members in an order, on fewer and fewer samples.

    Args:
        model: The merged model, with outputs `members`.
        cascade: The order and the confidence.
        steps: The steps of the members, in the order of the merged model.
        votes: Theirs.
        priors: What means are divided by, or None.
        scaling: What they are scaled by before, or None.
        voting: `"soft"` or `"hard"`.

    Raises:
        ValueError: If the model takes only batches of one size.
    """

    def __init__(
        self,
        model: keras.Model,
        cascade: Cascade,
        steps: Sequence[int],
        votes: np.ndarray,
        *,
        priors: ArrayLike | None,
        scaling: Scaling | None,
        voting: str,
    ) -> None:
        for tensor in keras.tree.flatten(model.inputs):
            if tensor.shape[0] is not None:
                raise ValueError(
                    "cascade: the model takes batches of just "
                    f"{tensor.shape[0]}, but later members get fewer samples. "
                    "Leave the size open: inputs=keras.Input(shape)."
                )
        order = cascade.positions(steps)
        members = model.output["members"]
        self._inputs = model.inputs
        self._parts = _parts(model.inputs, [members[i] for i in order])
        # What is the same for all samples, such as a table of positions.
        self._fixed = {
            key
            for part in self._parts
            for key, tensor in part.sources.items()
            if tensor.shape[0] is not None
        }
        self._shares = votes[order] / votes.sum()
        self._totals = np.cumsum(self._shares)
        self._confidences = cascade.confidences(len(order))
        self._priors, self._scaling = priors, scaling
        self._is_hard = voting == "hard"

    def __call__(
        self, inputs: Sequence[tf.Tensor], branch: Branch
    ) -> dict[str, tf.Tensor]:
        """Probabilities, and how many members they are the mean of.

        Args:
            inputs: Tensors, one for each input of the merged model.
            branch: How to skip what is not needed.
        """
        known = {
            id(symbol): tensor
            for symbol, tensor in zip(self._inputs, inputs, strict=True)
        }
        sums, used = self._ask(0, known, None, branch)
        # By the number of members, with a row for none.
        totals = np.concatenate([[1], self._totals])[:, np.newaxis]
        mean = sums / tf.gather(totals.astype(np.float32), used)
        return {
            "probabilities": self._adjusted(mean),
            "members_used": used,
        }

    def _ask(
        self,
        number: int,
        known: dict[int, tf.Tensor],
        earlier: State | None,
        branch: Branch,
    ) -> State:
        """The state of samples after the members from this one on.

        Args:
            number: Of the member, in their order.
            known: What it can make use of.
            earlier: The state so far, with this member counted already.
            branch: How to skip what is not needed.
        """
        probabilities, known = self._parts[number](known)
        if self._is_hard:
            probabilities = merging.one_hot_votes(probabilities)
        sums = probabilities * np.float32(self._shares[number])
        used = tf.fill(tf.shape(sums)[:1], np.int32(1))
        if earlier is not None:
            sums, used = earlier[0] + sums, earlier[1]
        if number + 1 == len(self._parts):
            return sums, used
        stays = self._stays(sums, number)
        rows = tf.where(stays)
        state = sums, tf.cast(stays, tf.int32) + np.int32(number + 1)

        def next_state() -> State:
            indices = tf.squeeze(rows, axis=1)
            kept = {
                key: tensor if key in self._fixed else _gather(tensor, indices)
                for key, tensor in known.items()
            }
            sums, used = (tf.gather(part, indices) for part in state)
            results = self._ask(number + 1, kept, (sums, used), branch)
            return tuple(
                tf.tensor_scatter_nd_update(part, rows, result)
                for part, result in zip(state, results, strict=True)
            )

        is_any = tf.size(rows, out_type=tf.int64) > 0
        return branch(is_any, state, next_state)

    def _stays(self, sums: tf.Tensor, number: int) -> tf.Tensor:
        """Whether each sample needs another member, after so many.

        In few operations: in small models they take longer than the members.
        """
        total = float(self._totals[number])
        columns, rest = _of_classes(sums, total), 1 - total
        ranks = cascades.ranks(sums.shape[-1], self._priors, self._scaling)
        if ranks is None:
            values = tf.math.top_k(columns, 2).values
            least, most = tf.reduce_max(values, 1), tf.reduce_min(values, 1)
            needed = rest + cascades.MARGIN
        else:
            least = tf.reduce_max(_ranked(columns, ranks), axis=1)
            largest = tf.maximum(columns + rest, ranks.floor)
            values = tf.math.top_k(_ranked(largest, ranks), 2).values
            most, needed = tf.reduce_min(values, axis=1), ranks.margin
        is_open = least - most < needed
        confidence = self._confidences[number]
        if confidence > 1:
            return is_open
        if ranks is None and self._scaling is None:
            is_unsure = least < total * confidence
        else:
            given = _of_classes(self._adjusted(sums / total), 1.0)
            is_unsure = tf.reduce_max(given, axis=1) < confidence
        return tf.logical_and(is_open, is_unsure)

    def _adjusted(self, mean: tf.Tensor) -> tf.Tensor:
        return adjusted_tensors(mean, self._scaling, self._priors)


def _ranked(means: tf.Tensor, ranks: Ranks) -> tf.Tensor:
    """What classes are ordered by, of the least or the most of their means."""
    if ranks.offset:
        means = tf.maximum(means, ranks.floor)
        means = tf.pow(means, ranks.power) + ranks.offset
    return means * ranks.factors.astype(np.float32)


def _of_classes(sums: tf.Tensor, total: float) -> tf.Tensor:
    """A column for each class, where binary sums have just one."""
    if sums.shape[-1] > 1:
        return sums
    return tf.concat([total - sums, sums], axis=1)


class _Part:
    """What one member computes that no earlier one has.

    Args:
        sources: Symbolic tensors that are known before, by id.
        output: The member's probabilities.
        given: Symbolic tensors that later members need of it.
        kept: Ids of all that later members need.
    """

    def __init__(
        self,
        sources: dict[int, Any],
        output: Any,
        given: list[Any],
        kept: set[int],
    ) -> None:
        self.sources = sources
        self._given = [id(tensor) for tensor in given]
        self._kept = kept
        self._model = keras.Model(list(sources.values()), [output, *given])

    def __call__(
        self, known: dict[int, tf.Tensor]
    ) -> tuple[tf.Tensor, dict[int, tf.Tensor]]:
        """The member's probabilities, and what later members need."""
        sources = [known[key] for key in self.sources]
        # Not `__call__`, which warns of masks that do reach the layers.
        results = self._model.call(sources, training=False)
        output, *given = keras.tree.flatten(results)  # one comes without a list
        found = {**known, **dict(zip(self._given, given, strict=True))}
        return output, {key: found[key] for key in found if key in self._kept}


def _parts(inputs: list[Any], outputs: list[Any]) -> list[_Part]:
    """The parts of a merged model, one for each member in order."""
    known = {id(tensor) for tensor in inputs}
    sources, made = [], []
    for output in outputs:
        read: dict[int, Any] = {}
        new: dict[int, Any] = {}
        waiting = [output]
        while waiting:
            tensor = waiting.pop()
            if id(tensor) in known:
                read[id(tensor)] = tensor
            elif id(tensor) not in new:
                new[id(tensor)] = tensor
                waiting += keras_internals.tensors_before(tensor)
        known |= set(new)
        sources.append(read)
        made.append(new)
    parts = []
    for number, output in enumerate(outputs):
        later = {
            k: v for read in sources[number + 1 :] for k, v in read.items()
        }
        given = [tensor for k, tensor in later.items() if k in made[number]]
        parts.append(_Part(sources[number], output, given, set(later)))
    return parts


def _gather(tensor: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """The rows of a tensor, with those of its mask."""
    found = tf.gather(tensor, indices)
    mask = keras_internals.mask_of(tensor)
    if mask is not None:
        keras_internals.set_mask(found, tf.gather(mask, indices))
    return found
