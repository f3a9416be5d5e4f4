"""Tests that models of this process are copied with their own classes."""

import keras
import numpy as np
import pytest
from helpers import Undescribed, same

from cbnn_keras.models import copying

FACTOR = 3.0
X = np.arange(8, dtype="float32").reshape(2, 4)


class Scaled(keras.layers.Layer):
    def __init__(self, factor=2.0, function=None, **options):
        super().__init__(**options)
        self.factor, self.function = factor, function

    def call(self, x):
        x = x * self.factor
        return x if self.function is None else self.function(x)

    def get_config(self):
        own = {"factor": self.factor, "function": self.function}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config):
        function = keras.saving.deserialize_keras_object(config.pop("function"))
        return cls(function=function, **config)


class Block(keras.layers.Layer):
    """Takes its own arguments only, as those of many tutorials do."""

    def __init__(self, units, rate=0.1):
        super().__init__()
        self.first = keras.layers.Dense(units)
        self.dropout = keras.layers.Dropout(rate)

    def build(self, shape):
        self.first.build(shape)

    def call(self, x, training=None):
        return self.dropout(self.first(x), training=training)


class Unbuilt(Block):
    build = keras.layers.Layer.build


class Constant(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None):
        return keras.ops.ones(shape, dtype) * FACTOR


def tripled(x):
    return FACTOR * x


def local_layer():
    class Local(Scaled):
        pass

    return Local(5.0)


def other(name):
    """Another function of that name."""

    def function(x):
        return -x

    function.__name__ = name
    return function


def chain(*layers):
    model = keras.Sequential(
        [keras.Input((4,)), *layers, keras.layers.Dense(3)]
    )
    return model


MODELS = {
    "class": lambda: chain(Scaled(3.0)),
    "class that takes its own arguments only": lambda: chain(Block(4)),
    "class without a build": lambda: chain(Unbuilt(4)),
    "class in a function": lambda: chain(local_layer()),
    "class in a wrapper": lambda: chain(
        keras.layers.Reshape((2, 2)),
        keras.layers.TimeDistributed(Scaled()),
        keras.layers.Flatten(),
    ),
    "class with a function": lambda: chain(Scaled(1.0, tripled)),
    "lambda that reads a global": lambda: chain(
        keras.layers.Lambda(lambda x: x * FACTOR)
    ),
    "two lambdas": lambda: chain(
        keras.layers.Lambda(lambda x: x + FACTOR),
        keras.layers.Dense(4, activation=lambda x: x * FACTOR),
    ),
    "named function": lambda: chain(keras.layers.Lambda(tripled)),
    "two of one name": lambda: chain(
        keras.layers.Dense(4, activation=tripled),
        keras.layers.Dense(4, activation=other("tripled")),
    ),
    "initializer": lambda: chain(
        keras.layers.Dense(4, kernel_initializer=Constant())
    ),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_copies_compute_the_same(make):
    model = make()
    expected = np.array(model(X))  # before, as Keras builds some only then
    first, second = copying.copies(model, 2)
    for copy in (first, second):
        assert same(copy.get_weights(), model.get_weights())
        np.testing.assert_array_equal(copy(X), expected)
    first.set_weights([0 * weight for weight in first.get_weights()])
    np.testing.assert_array_equal(second(X), expected)


def test_what_a_class_does_not_take_is_kept_all_the_same():
    block = Block(4)
    block.trainable = False
    model = chain(block)
    [copy] = copying.copies(model, 1)
    assert not copy.layers[0].trainable
    assert len(copy.trainable_variables) == 2
    keras.config.set_dtype_policy("mixed_float16")
    model = chain(Block(4))
    keras.config.set_dtype_policy("float32")
    [copy] = copying.copies(model, 1)
    assert copy.layers[0].dtype_policy.name == "mixed_float16"
    [copy] = copying.copies(model, 1, in_float32=True)
    assert copy.layers[0].dtype_policy.name == "float32"


def test_functions_have_their_names_again():
    function = other("mine")
    model = chain(keras.layers.Lambda(function))
    copying.copies(model, 1)
    assert function.__name__ == "mine"
    with pytest.raises(ValueError, match="cannot copy"):
        copying.copies(chain(Scaled(np.nan, function), Undescribed([])), 1)
    assert function.__name__ == "mine"


def test_two_classes_of_one_name_are_refused():
    with pytest.raises(
        ValueError, match="(?s)cannot copy.*two classes that are called 'Local'"
    ):
        copying.copies(chain(local_layer(), local_layer()), 1)


def test_why_a_model_is_not_rebuilt():
    assert copying.why_not_rebuilt(chain()) is None
    assert copying.why_not_rebuilt(chain(Scaled(3.0))) is None
    assert copying.why_not_rebuilt(MODELS["named function"]()) is None
    reason = copying.why_not_rebuilt(MODELS["two lambdas"]())
    assert reason.startswith("It has a lambda, which is code")
    reason = copying.why_not_rebuilt(Undescribed([keras.layers.Dense(3)]))
    assert "Give Undescribed a `get_config` that returns all" in reason


class OwnLambda(keras.layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.function = lambda x: x * FACTOR

    def call(self, x):
        return self.function(x)


def test_which_lambdas_a_file_does_not_give_again():
    assert copying.why_not_rebuilt(chain(OwnLambda())) is None
    inner = chain(Scaled(2.0))
    inner.compile("sgd", lambda y, p: p[:, 0])  # no part of a file
    assert copying.why_not_rebuilt(chain(inner)) is None
    for layer in (
        keras.layers.Lambda(lambda x: x),
        keras.layers.Dense(4, activation=lambda x: x),
        keras.layers.Dense(
            4, kernel_initializer=lambda s, dtype: keras.ops.ones(s, dtype)
        ),
        Scaled(1.0, lambda x: x),
        chain(keras.layers.Lambda(lambda x: x)),
    ):
        assert "It has a lambda" in copying.why_not_rebuilt(chain(layer))


def test_to_find_out_leaves_generators_alone():
    model = chain(Scaled(), keras.layers.Dropout(0.5), keras.layers.Dense(4))
    expected = []
    for finds_out in (False, True):
        keras.utils.set_random_seed(1)
        if finds_out:
            assert copying.why_not_rebuilt(model) is None
        numbers = keras.random.uniform((2,)), np.random.random(2)
        expected.append([np.array(number) for number in numbers])
    assert same(*expected)
