"""Tests of the paper's networks: their size, their layers, their files."""

import keras
import numpy as np
import pytest
from recipes import models

# Recipes are no part of the package.
pytestmark = pytest.mark.large

RESNETS = ("resnet8", "resnet14", "resnet20")


def images(size, num=3):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (num, size, size, 3), dtype=np.uint8)


def num_trainable(model):
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


def layers_of(model, kind):
    return [layer for layer in model.layers if isinstance(layer, kind)]


def num_weights_of_resnet(depth, num_classes=10):
    """By hand: kernels, then scale and shift of each BatchNorm, then the head.

    A stage of 2n convolutions from c to f filters has 9 c f in the first one
    and 9 f f in the others.
    """
    per_stage = (depth - 2) // 3
    kernels = 9 * 3 * 16
    for before, filters in ((16, 16), (16, 32), (32, 64)):
        kernels += 9 * before * filters + 9 * filters**2 * (per_stage - 1)
    batch_norms = 2 * (16 + per_stage * (16 + 32 + 64))
    return kernels + batch_norms + 64 * num_classes + num_classes


def num_weights_of_densenet(num_classes=10):
    """By hand: twelve layers a block; layer i sees 16 + 12 i channels.

    36 layers see 16, 28, ..., 436 channels, in sum (16 + 436) / 2 * 36 = 8136:
    a transition keeps the number of channels. A layer has 9 * 12 kernels and 2
    numbers of BatchNorm a channel. Transitions are at 160 and 304 channels,
    the head at 448.
    """
    dense = (9 * 12 + 2) * 8136
    transitions = sum(c * c + 2 * c for c in (160, 304))
    head = 2 * 448 + 448 * num_classes + num_classes
    return 9 * 3 * 16 + dense + transitions + head


# Sizes. The literature counts what is trained: 1.73 M for ResNet-110. With
# 1x1 convolutions in the two shortcuts that shrink (option B), it would be
# 16 * 32 + 32 * 64 + 2 * 96 = 2,752 more: 1,730,714.


@pytest.mark.parametrize(
    ("name", "literature", "exact"),
    [
        ("resnet8", 0.08, 75_290),
        ("resnet14", 0.17, 172_506),
        ("resnet20", 0.27, 269_722),
    ],
)
def test_small_resnets_have_the_size_of_the_paper(name, literature, exact):
    model = models.build(name, 10, 32)
    depth = int(name.removeprefix("resnet"))
    assert num_trainable(model) == num_weights_of_resnet(depth) == exact
    assert round(exact / 1e6, 2) == literature


def test_resnet110_has_the_size_and_depth_of_the_paper():
    model = models.build("resnet110", 10, 32)
    assert num_trainable(model) == num_weights_of_resnet(110) == 1_727_962
    # Mean and variance of 109 BatchNorms: 16 + 36 * (16 + 32 + 64) channels.
    assert model.count_params() == 1_727_962 + 2 * 4_048
    kinds = (keras.layers.Conv2D, keras.layers.Dense)
    assert len(layers_of(model, kinds)) == 110
    (dropout,) = layers_of(model, keras.layers.Dropout)
    assert dropout.rate == 0.2
    assert model.layers[-2] is dropout


def test_densenet40_has_the_size_and_depth_of_the_paper():
    model = models.build("densenet40", 10, 32)
    assert num_trainable(model) == num_weights_of_densenet() == 1_019_722
    kinds = (keras.layers.Conv2D, keras.layers.Dense)
    assert len(layers_of(model, kinds)) == 40
    rates = [d.rate for d in layers_of(model, keras.layers.Dropout)]
    assert rates == [0.2] * 38  # each convolution but the first


@pytest.mark.parametrize(
    ("name", "millions", "dropout"),
    [("efficientnet-b0", 5.3, 0.2), ("efficientnet-b3", 12, 0.3)],
)
def test_efficientnets_have_the_size_of_the_paper(name, millions, dropout):
    model = models.build(name, 1000, 64)
    found = num_trainable(model) / 1e6
    assert round(found, 1 if millions < 10 else None) == millions
    variant = models.EFFICIENTNETS[name.removeprefix("efficientnet-")][0]
    whole = variant(weights=None)  # 1000 classes, Keras' own head
    assert model.count_params() == whole.count_params()
    assert model.layers[-2].rate == dropout
    assert model.input_shape == (None, 64, 64, 3)
    stem = model.get_layer("stem_conv_pad")
    assert stem.input.shape == (None, 224, 224, 3)


def test_efficientnet_sees_standardised_images():
    model = models.efficientnet("b0", 10, dropout=0.5)
    assert not layers_of(model, keras.layers.Resizing)
    assert model.layers[-2].rate == 0.5
    start = keras.Model(model.input, model.get_layer("stem_conv_pad").input)
    x = images(224, num=1)
    expected = (x / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(start(x), expected, atol=1e-5)


# What they compute.


@pytest.mark.parametrize("name", RESNETS)
def test_depth_counts_the_layers_with_kernels(name):
    model = models.build(name, 7, 32)
    kinds = (keras.layers.Conv2D, keras.layers.Dense)
    assert f"resnet{len(layers_of(model, kinds))}" == name == model.name
    assert not layers_of(model, keras.layers.Dropout)


@pytest.mark.parametrize("size", [16, 32, 33, 64])
def test_probabilities_at_any_size(size):
    model = models.build("resnet8", 7, size)
    assert model.input.dtype == "uint8"
    probabilities = model.predict(images(size), verbose=0)
    assert probabilities.shape == (3, 7)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("name", [*RESNETS, "densenet"])
def test_file_gives_the_same_outputs(name, tmp_path):
    if name == "densenet":
        model = models.densenet(7, depth=10, size=16)
    else:
        model = models.build(name, 7, 16)
    expected = model.predict(images(16), verbose=0)
    np.testing.assert_allclose(expected.sum(axis=1), 1, atol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        loaded.predict(images(16), verbose=0), expected
    )


def test_efficientnet_can_be_made_from_its_configuration():
    model = models.build("efficientnet-b0", 7, 32)
    copy = keras.Model.from_config(model.get_config())
    assert copy.count_params() == model.count_params()
    assert copy.output_shape == (None, 7)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_keeps_probabilities_in_float32(policy):
    keras.config.set_dtype_policy(policy)
    for model in (models.build("resnet8", 7, 16), models.densenet(7, depth=10)):
        assert layers_of(model, keras.layers.Conv2D)[0].compute_dtype != (
            "float32"
        )
        probabilities = model(images(model.input_shape[1]))
        assert probabilities.dtype == "float32"
        np.testing.assert_allclose(np.sum(probabilities, 1), 1, atol=1e-6)


def test_efficientnet_in_mixed_precision():
    keras.config.set_dtype_policy("mixed_float16")
    model = models.build("efficientnet-b0", 7, 32)
    assert model.get_layer("stem_conv").compute_dtype == "float16"
    assert model.output.dtype == "float32"


def test_shortcut_takes_every_other_pixel_and_appends_zeros():
    inputs = keras.Input((5, 5, 2))
    shrink = keras.Model(inputs, models._shrink(inputs))
    x = np.random.default_rng(0).normal(size=(1, 5, 5, 2)).astype("float32")
    found = shrink(x).numpy()
    np.testing.assert_array_equal(found[..., :2], x[:, ::2, ::2])
    np.testing.assert_array_equal(found[..., 2:], 0)


def test_weight_decay_is_that_of_kernels():
    model = models.resnet(8, 3, size=8, weight_decay=0.01)
    kernels = [v for v in model.trainable_variables if v.name == "kernel"]
    assert len(kernels) == 8
    expected = sum(0.01 * np.sum(np.square(kernel)) for kernel in kernels)
    np.testing.assert_allclose(sum(model.losses), expected, rtol=1e-5)


def test_training_lowers_the_loss():
    model = models.resnet(8, 2, size=8, width=8, weight_decay=0.0)
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    x = np.concatenate([images(8, 16) // 2, 127 + images(8, 16) // 2])
    y = np.repeat([0, 1], 16)
    losses = model.fit(x, y, batch_size=32, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 2


# What is refused.


@pytest.mark.parametrize("depth", [2, 18, 0, -4])
def test_depth_of_resnet(depth):
    with pytest.raises(
        ValueError, match=rf"depth={depth} is not 6n \+ 2. Use 8, 14, 20"
    ):
        models.resnet(depth, 10)


@pytest.mark.parametrize("depth", [4, 39, 1])
def test_depth_of_densenet(depth):
    with pytest.raises(
        ValueError, match=rf"depth={depth} is not 3n \+ 4. Use 22, 40, 100"
    ):
        models.densenet(10, depth=depth)


def test_variant_of_efficientnet():
    with pytest.raises(ValueError, match="variant='b7'. Use 'b0' or 'b3'"):
        models.efficientnet("b7", 10)


def test_names():
    with pytest.raises(
        ValueError,
        match="no model 'resnet9'. Use one of: resnet8, resnet14, resnet20, "
        "resnet110, densenet40, efficientnet-b0, efficientnet-b3",
    ):
        models.build("resnet9", 10, 32)
