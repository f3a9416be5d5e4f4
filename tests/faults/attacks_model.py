"""Architectures that ask for all memory, or are none."""

import json

from arena import (
    OTHER_RUN,
    Case,
    config_change,
    functional,
    history,
    keras_layer,
    layer,
    with_layer,
)

MODEL = "model.keras"


def _set(index: int, **values):
    def change(config: dict, _) -> None:
        config["config"]["layers"][index]["config"].update(values)

    return config_change(change)


def _top(**values):
    return config_change(lambda config, _: config["config"].update(values))


def _text(text):
    return config_change(lambda config, place: text)


def _inserted(class_name: str, at: int = 1, **config):
    return with_layer(lambda _: keras_layer(class_name, **config), at)


def _several(*layers: dict, at: int = 1):
    def change(config: dict, _) -> None:
        config["config"]["layers"][at:at] = layers

    return config_change(change)


def _many_layers(num: int):
    def change(config: dict, _) -> None:
        config["config"]["layers"][1:1] = [
            keras_layer("Activation", activation="linear", name=f"a{n}")
            for n in range(num)
        ]

    return config_change(change)


def _side_by_side(config: dict, _) -> str:
    """Layers that take much more memory than their text, and no stack."""
    import keras

    given = keras.Input((4,))
    normalised = keras.layers.BatchNormalization(name="n0")(given)
    model = keras.Model(given, normalised)
    text = json.loads(model.to_json())
    layers = text["config"]["layers"]
    first = json.dumps(next(x for x in layers if x["name"] == "n0"))
    layers += [
        json.loads(first.replace('"n0"', f'"n{n}"')) for n in range(1, 1000)
    ]
    return json.dumps(text)


def _nested_models(depth: int):
    """Models in models, deeper than Python's stack."""

    def change(config: dict, _) -> str:
        head = (
            '{"module": "keras", "class_name": "Sequential", '
            '"registered_name": null, "config": {"name": "m", "layers": ['
        )
        return head * depth + "]}}" * depth

    return config_change(change)


def _cycle(config: dict, _) -> dict:
    """A node that waits for its own output."""
    node = keras_layer("Activation", activation="linear")
    node["inbound_nodes"] = [{"args": [history("node")], "kwargs": {}}]
    node["name"] = node["config"]["name"] = "node"
    return functional(node)


def _shared(config: dict, _) -> None:
    """A layer that is its own part."""
    dense = config["config"]["layers"][1]
    dense["shared_object_id"] = 7
    dense["config"]["activation"] = {
        **keras_layer("Dense"),
        "shared_object_id": 7,
    }


def _op(name: str, build):
    """An operation on tensors, saved by Keras itself with a small number."""

    def change(config: dict, _) -> str:
        import keras

        inputs = keras.Input((4,), name="in")
        model = keras.Model(inputs, build(keras.ops, inputs))
        content = keras.saving.serialize_keras_object(model)
        text = json.dumps(content)
        if str(_SMALL) not in text:
            raise AssertionError(f"{name}: the number is not in {text}")
        return text.replace(str(_SMALL), str(10**10))

    return config_change(change)


_SMALL = 7919  # a number that nothing else has


def _initial(class_name: str, **config):
    return _set(
        1, kernel_initializer=layer("keras.initializers", class_name, config)
    )


def _deep_json(depth: int):
    return _text("[" * depth + "]" * depth)


def cases() -> list[Case]:
    kind = "architecture"
    big = 10**12
    wide = [None, 2**31]
    refused = {
        "units of 10**12": _set(1, units=big),
        "units of 2**27": _set(1, units=2**27),
        "negative units": _set(1, units=-8),
        "units as text": _set(1, units="8"),
        "wide input": _set(0, batch_shape=wide),
        "input of 10**12": _set(0, batch_shape=[None, big]),
        "batch of 10**12": _set(0, batch_shape=[big, 4]),
        "negative input": _set(0, batch_shape=[None, -4]),
        "Embedding": _several(
            keras_layer("Embedding", input_dim=big, output_dim=8),
            keras_layer("Flatten"),
        ),
        "Embedding of 1 GB": _several(
            keras_layer("Embedding", input_dim=2**25, output_dim=8),
            keras_layer("Flatten"),
        ),
        "Conv": _several(
            keras_layer("Reshape", target_shape=[4, 1]),
            keras_layer("Conv1D", filters=2**20, kernel_size=2**10),
            keras_layer("Flatten"),
        ),
        "LSTM": _several(
            keras_layer("Reshape", target_shape=[4, 1]),
            keras_layer("LSTM", units=2**16),
        ),
        "RepeatVector": _several(
            keras_layer("RepeatVector", n=10**10), keras_layer("Flatten")
        ),
        "UpSampling": _several(
            keras_layer("Reshape", target_shape=[2, 2, 1]),
            keras_layer("UpSampling2D", size=[2**16, 2**16]),
            keras_layer("GlobalAveragePooling2D"),
        ),
        "ZeroPadding": _several(
            keras_layer("Reshape", target_shape=[4, 1]),
            keras_layer("ZeroPadding1D", padding=2**33),
            keras_layer("GlobalAveragePooling1D"),
        ),
        "CategoryEncoding": _inserted("CategoryEncoding", num_tokens=2**33),
        "Hashing": _inserted("Hashing", num_bins=-1),
        "Normalization": _inserted("Normalization", axis=2**40),
        "BatchNormalization": _inserted("BatchNormalization", axis=9),
        "op tile": _op("tile", lambda ops, x: ops.tile(x, [1, _SMALL])),
        "op repeat": _op("repeat", lambda o, x: o.repeat(x, _SMALL, axis=1)),
        "op pad": _op("pad", lambda o, x: o.pad(x, ((0, 0), (0, _SMALL)))),
        "op one_hot": _op(
            "one_hot", lambda o, x: o.one_hot(o.cast(x, "int32"), _SMALL)
        ),
        "op broadcast_to": _op(
            "broadcast_to", lambda o, x: o.broadcast_to(x, (_SMALL, 4))
        ),
        "Orthogonal": _initial("Orthogonal", gain="x"),
        "Constant of text": _initial("Constant", value="x" * 1000),
        "models in models": _nested_models(5000),
        "deep JSON": _deep_json(200_000),
        "1,000 layers side by side": config_change(_side_by_side),
        "cycle": config_change(_cycle),
        "a layer in itself": config_change(_shared),
        "no layers": _top(layers=[]),
        "layers of numbers": _top(layers=[1, 2]),
        "layers as an object": _top(layers={"a": 1}),
        "layers of null": _top(layers=None),
        "unknown class": _inserted("NoSuchLayer"),
        "two inputs": _several(
            keras_layer("InputLayer", batch_shape=[None, 4], name="again")
        ),
        "other classes": _set(2, units=5),
        "no softmax": _set(2, activation="no such"),
        "unknown option": _set(1, no_such_option=1),
        "dtype unknown": _set(1, dtype="float7"),
        "dtype string": _set(1, dtype="string"),
        "name of a number": _set(1, name=7),
        "name of a list": _set(1, name=["x"]),
        "same names": _set(2, name="dense"),
        "class_name of a number": config_change(
            lambda c, _: c.update(class_name=3)
        ),
        "class_name of a list": config_change(
            lambda c, _: c.update(class_name=[])
        ),
        "module of a number": config_change(lambda c, _: c.update(module=3)),
        "config of a list": config_change(lambda c, _: c.update(config=[])),
        "config of null": config_change(lambda c, _: c.update(config=None)),
        "not a model": _text(json.dumps(keras_layer("Dense", units=3))),
        "a number": _text("3"),
        "long name": _set(1, name="x" * 100_000),
        "NaN as units": _text_change('"units": 8', '"units": NaN'),
        "two units": _text_change('"units": 8', '"units": 8, "units": 9'),
    }
    other = {
        # A model that has an input is not built from it.
        "wide build": _top(build_input_shape=wide),
        "activation": _set(1, activation="tanh"),
        "100 layers": _many_layers(100),
        "200 layers": _many_layers(200),
        "escape in a name": _set(1, name="\x1b[2J"),
        "slash in a name": _set(1, name="a/b"),
        "dots as a name": _set(1, name=".."),
        "no bias": _set(1, use_bias=False),
        "float16": _set(1, dtype="float16"),
    }
    return [
        *(Case(kind, name, make) for name, make in refused.items()),
        *(Case(kind, n, make, OTHER_RUN) for n, make in other.items()),
    ]


def _text_change(old: str, new: str):
    return config_change(lambda c, _: json.dumps(c).replace(old, new, 1))
