"""The loop behind `benchmarks/students.py` does what `distil` does."""

import dataclasses

import keras
import numpy as np
import pytest
from accuracy_tasks import TASKS, Data
from helpers import blobs
from price_rows import RESTARTS
from students import CompiledStudent

from cbnn_keras import CBNNCallback

pytestmark = pytest.mark.large
SEED, EPOCHS, RATE = 3, 8, 0.05
X, Y = blobs(60)


def model(*_):
    return keras.Sequential(
        [
            keras.Input(X.shape[1:]),
            keras.layers.Dense(8, "relu"),
            keras.layers.Dense(3),
        ]
    )


def optimizer(rate):
    return keras.optimizers.SGD(rate, momentum=0.9)


@pytest.fixture(scope="module")
def ensemble():
    """Members that start anew, and vote alike, as those of the loop."""
    keras.utils.set_random_seed(SEED)
    net = model()
    net.compile(
        optimizer(RATE),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    cbnn = CBNNCallback(restarts=RESTARTS)
    train = cbnn.weighted(X, Y, batch_size=15, seed=SEED)
    net.fit(train, epochs=9, callbacks=[cbnn], verbose=0)
    found = cbnn.ensemble()
    return found.with_votes({r.step: 1.0 for r in found.rounds})


# A batch of all samples has no order, and the two samples of a batch are
# blended with each other; with so large a number in equal shares.
@pytest.mark.parametrize("num, mixup", [(60, 0.0), (2, 1e7)])
def test_a_student_of_the_loop_is_that_of_distil(ensemble, num, mixup):
    task = dataclasses.replace(
        TASKS["digits"],
        make_model=model,
        make_optimizer=optimizer,
        batch_size=num,
        jit_compile=False,
    )
    x, y = X[:num], Y[:num]
    student = CompiledStudent(task, Data((x, y), (x, y), (x, y), 3))
    members = [m.get_weights() for m in ensemble.member_models()]
    student.load(x, members)
    student.fit(SEED, EPOCHS, RATE, mixup=mixup)

    distilled = ensemble.distil(
        x,
        y,
        epochs=EPOCHS,
        batch_size=num,
        mixup=mixup,
        optimizer=optimizer(RATE),
        seed=SEED,
        verbose=0,
    )
    expected = distilled.predict(X, verbose=0)
    np.testing.assert_allclose(student.predict(X), expected, atol=2e-4)
