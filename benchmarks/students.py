"""What makes a student better: ways of distilling, in a compiled loop.

    python benchmarks/students.py --data-dir DATA
        [--tasks 'satellite,dbpedia,digits/wrong labels'] [--ways 'mixup=1']
        [--judge val|test] [--first-seed 1001] [--seeds 6]

The defaults of `distil` were chosen by this, on validation data of seeds that
are in no table of results. Ensemble and single network are those of `price.py`,
trained as `accuracy.py` does. A way is a number of epochs, as a multiple of the
run, and options of `distil`; views, targets and loss are its own, the order of
the samples and the blends are drawn otherwise. A line of JSON for each task,
seed and way: errors in %, and by how much the student differs from the ensemble
on these inputs, the divergence and the share of other classes in %, which
chance disturbs less than errors.
"""

import argparse
import json
import pathlib

import common  # noqa: F401  (quiets TensorFlow)
import keras
import numpy as np
import tensorflow as tf
from accuracy_methods import Setting, policy_of
from accuracy_tasks import TASKS, Data, Task, split
from accuracy_training import Checkpoint, Course, compiled_loop
from price_rows import RATES, RESTARTS

from cbnn_keras import metrics, schedules
from cbnn_keras.models.fresh import fresh_weights

STEPS_PER_CALL = 500
# Epochs, and options: a of Beta(a, a), the temperature, what the learning rate
# is multiplied by, and whether the last member is where the student starts.
WAYS: dict[str, tuple[int, dict]] = {
    "mixup=0": (1, {}),
    "mixup=0, 4 times": (4, {}),
    "mixup=0.2": (1, {"mixup": 0.2}),
    "mixup=1": (1, {"mixup": 1.0}),
    "mixup=1, twice": (2, {"mixup": 1.0}),
    "mixup=1, 4 times": (4, {"mixup": 1.0}),
    "temperature 2": (1, {"temperature": 2.0, "rate": 0.25}),
    "last member": (1, {"from_last": True, "rate": 0.3}),
    "last member, mixup=1, twice": (
        2,
        {"mixup": 1.0, "from_last": True, "rate": 0.3},
    ),
}


class CompiledStudent:
    """Trains students of one task again and again.

    Args:
        task: What is trained on.
        data: A split of it; those of other seeds have the same shapes.
    """

    def __init__(self, task: Task, data: Data) -> None:
        x = data.train[0]
        self._task = task
        self._x = tf.Variable(x, trainable=False)
        self._has_tokens = x.dtype.kind == "i"
        self._model, *self._teachers = (
            task.make_model(x, data.num_classes) for _ in range(1 + RESTARTS)
        )
        self._optimizer = task.make_optimizer(0.1)
        self._optimizer.build(self._model.trainable_variables)
        self._slots = [np.array(v) for v in self._optimizer.variables]
        self._run = tf.function(self._steps, jit_compile=task.jit_compile)

    def load(self, x: np.ndarray, members: list[list[np.ndarray]]) -> None:
        """Other training inputs, and the weights of other members."""
        self._x.assign(x)
        for teacher, weights in zip(self._teachers, members, strict=True):
            teacher.set_weights(weights)

    def fit(
        self,
        seed: int,
        epochs: int,
        rate: float,
        *,
        mixup: float = 0.0,
        temperature: float = 1.0,
        from_last: bool = False,
    ) -> None:
        start = fresh_weights(self._model, self._x[:1], seed)
        if from_last:
            start = self._teachers[-1].get_weights()
        self._model.set_weights(start)
        for variable, value in zip(
            self._optimizer.variables, self._slots, strict=True
        ):
            variable.assign(value)
        generator = np.random.default_rng([seed, 5])
        size, num = self._task.batch_size, self._x.shape[0]
        total = epochs * (num // size)
        orders = [generator.permutation(num) for _ in range(epochs)]
        order = np.concatenate(orders).reshape(total, size)
        for first in range(0, total, STEPS_PER_CALL):
            count = min(STEPS_PER_CALL, total - first)
            missing = ((0, STEPS_PER_CALL - count), (0, 0))
            part = np.pad(order[first : first + count], missing)
            shares = np.zeros(part.shape)
            if mixup:
                shares = generator.beta(mixup, mixup, part.shape)
            steps = np.arange(first, first + STEPS_PER_CALL)
            rates = rate * (1 + np.cos(np.pi * steps / total)) / 2
            self._run(
                tf.constant(part),
                tf.constant(shares, tf.float32),
                tf.constant(rates, tf.float32),
                tf.constant(temperature, tf.float32),
                tf.constant(int(generator.integers(2**30)), tf.int32),
                tf.constant(count),
            )

    def predict(self, x: np.ndarray) -> np.ndarray:
        return tf.nn.softmax(self._model(x, training=False)).numpy()

    def _steps(self, order, shares, rates, temperature, seed, stop):
        variables = self._model.trainable_variables
        i = tf.constant(0)
        while i < stop:
            x = self._blended(order[i], shares[i], tf.stack([seed, i]))
            said = tf.add_n(
                [tf.nn.softmax(t(x, training=False)) for t in self._teachers]
            )
            logs = tf.math.log(tf.maximum(said / RESTARTS, 1e-7))
            taught = tf.nn.log_softmax(logs / temperature)
            with tf.GradientTape() as tape:
                logits = self._model(x, training=True)
                learnt = tf.nn.log_softmax(logits / temperature)
                apart = tf.reduce_sum(tf.exp(taught) * (taught - learnt), 1)
                loss = temperature**2 * tf.reduce_mean(apart)
            gradients = tape.gradient(loss, [v.value for v in variables])
            gradients = [tf.convert_to_tensor(g) for g in gradients]
            self._optimizer.learning_rate.assign(rates[i])
            self._optimizer.apply(gradients, variables)
            i += 1

    def _blended(self, index, share, seed):
        x = tf.gather(self._x, index)
        other = tf.reverse(x, [0])
        share = tf.reshape(share, [-1] + [1] * (len(x.shape) - 1))
        if not self._has_tokens:
            return x + share * (other - x)
        chance = tf.random.stateless_uniform(tf.shape(x), seed)
        return tf.where(chance < share, other, x)


def teachers(
    task: Task, data: Data, loop, seed: int
) -> tuple[list[Checkpoint], Checkpoint]:
    """The members of restarts, and the single network of the same steps."""
    loop.load(*data.train)
    total = task.num_epochs("converged") * loop.steps_per_epoch
    setting = Setting(task, loop, data, total, RATES[task.name], seed)
    ends = schedules.restart_steps(total, RESTARTS)
    policy = policy_of(setting, RESTARTS, None)
    averages = setting.averages(ends[0])
    course = Course(ends, setting.cosine(ends), policy, keep=0.0, **averages)
    alone = Course([total], setting.cosine([total]))
    return setting.train(course), setting.train(alone)[-1]


def compared(
    p: np.ndarray, ensemble: np.ndarray, labels: np.ndarray
) -> dict[str, float]:
    """The error of a student, and how far it is from the ensemble."""
    logs = [np.log(np.maximum(q, 1e-7)) for q in (ensemble, p)]
    is_other = p.argmax(axis=1) != ensemble.argmax(axis=1)
    return {
        "student": _error(p, labels),
        "divergence": float((ensemble * (logs[0] - logs[1])).sum(1).mean()),
        "other_classes": 100 * float(is_other.mean()),
    }


def _error(p: np.ndarray, labels: np.ndarray) -> float:
    return 100 * (1 - metrics.accuracy(p, labels))


def measure(name: str, options: argparse.Namespace) -> None:
    """Prints the lines of one task."""
    task_name, _, variant = name.partition("/")
    task, loop, student = TASKS[task_name], None, None
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        data = split(task, variant or "clean", seed, options.data_dir)
        if loop is None or student is None:
            loop, student = (
                compiled_loop(task, data),
                CompiledStudent(task, data),
            )
        members, single = teachers(task, data, loop, seed)
        x, labels = getattr(data, options.judge)
        ensemble, alone = (
            np.mean(
                [getattr(c, kind).__dict__[options.judge] for c in found], 0
            )
            for found, kind in ((members, "member"), ([single], "raw"))
        )
        student.load(data.train[0], [c.member.weights for c in members])
        for way in options.ways:
            times, given = WAYS[way]
            rate = RATES[task.name] * given.get("rate", 1.0)
            given = {k: v for k, v in given.items() if k != "rate"}
            epochs = times * task.num_epochs("converged")
            student.fit(seed, epochs, rate, **given)
            line = {
                "task": name,
                "seed": seed,
                "way": way,
                "single": _error(alone, labels),
                "ensemble": _error(ensemble, labels),
                **compared(student.predict(x), ensemble, labels),
            }
            print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data-dir", type=pathlib.Path, required=True)
    parser.add_argument("--tasks", default="satellite,dbpedia")
    parser.add_argument(
        "--ways", type=lambda text: text.split(";"), default=list(WAYS)
    )
    parser.add_argument("--judge", choices=["val", "test"], default="val")
    parser.add_argument("--first-seed", type=int, default=1001)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    for name in options.tasks.split(","):
        measure(name, options)


if __name__ == "__main__":
    main()
