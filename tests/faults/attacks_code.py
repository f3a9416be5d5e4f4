"""Runs that want code to be run, or other files to be loaded."""

import io
import json
import zipfile

import numpy as np
from arena import (
    HARMLESS,
    Case,
    Place,
    config_change,
    functional,
    history,
    keras_layer,
    lambda_code,
    layer,
    pickled,
    put_file,
    with_layer,
)
from gadgets import (
    CLASSES,
    GADGETS,
    TEXT,
    function,
    hidden,
    lambda_layer,
    lambda_model,
    numpy_value,
)


def _activation(module: str, name: str):
    def change(config: dict, place: Place) -> None:
        dense = config["config"]["layers"][1]["config"]
        dense["activation"] = function(module, name)

    return config_change(change)


def _called(module: str, name: str, arguments, class_name="function"):
    """A function that Keras calls with these arguments as it loads."""

    def change(config: dict, place: Place) -> dict:
        node = function(module, name)
        node["class_name"] = class_name
        given = arguments(place)
        args, kwargs = given if isinstance(given, tuple) else (given, {})
        node["inbound_nodes"] = [{"args": args, "kwargs": kwargs}]
        return functional(node)

    return config_change(change)


def _class_layer(module: str, name: str, config):
    return with_layer(
        lambda place: layer(module, name, {"name": "odd", **config(place)})
    )


def _in_dense(field: str, value, **more):
    def change(config: dict, place: Place) -> None:
        dense = config["config"]["layers"][1]["config"]
        dense[field] = value(place)
        dense.update(more)

    return config_change(change)


def _dropout(seed):
    """A value that nothing looks at, as a rate of 0 needs no seed."""
    return with_layer(
        lambda place: keras_layer("Dropout", rate=0, seed=seed(place)), at=2
    )


def _unused(value):
    """An initialiser that is never called, of a layer without weights.

    Keras writes it down again, bare, when it copies the model, and takes it for
    a model then.
    """

    def make_layer(place: Place) -> dict:
        initializer = layer(
            "keras.initializers", "Constant", {"value": value(place)}
        )
        return keras_layer(
            "LayerNormalization",
            center=False,
            scale=False,
            beta_initializer=initializer,
        )

    return with_layer(make_layer, at=2)


def _argument(value):
    """An argument of a call."""

    def change(config: dict, place: Place) -> dict:
        node = keras_layer("Dropout", rate=0, name="node")
        node["inbound_nodes"] = [
            {"args": [history("in")], "kwargs": {"training": value(place)}}
        ]
        return functional(node)

    return config_change(change)


def _compile(config: dict, place: Place) -> None:
    config["compile_config"] = {
        "loss": {"class_name": "__lambda__", "config": lambda_code(place)},
        "optimizer": lambda_model(place),
    }


def _build(config: dict, place: Place) -> None:
    config["config"]["layers"][1]["build_config"] = {
        "input_shape": hidden(place)
    }


def _typespec(config: dict, place: Place) -> None:
    config["config"]["layers"][1]["config"]["name"] = {
        "class_name": "__typespec__",
        "spec_name": "Popen",
        "module": "subprocess",
        "registered_name": None,
        "config": [["touch", str(place.marker)]],
    }


def _registered(config: dict, place: Place) -> None:
    config["config"]["layers"][1]["registered_name"] = "builtins>eval"


def _legacy_lambda(place: Place) -> dict:
    code = lambda_code(place)
    return keras_layer(
        "Lambda",
        function=[code["code"], None, None],
        function_type="lambda",
        module="os",
    )


def _npy(place: Place) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "|O", "fortran_order": False, "shape": (60,)}
    )
    return buffer.getvalue() + pickled(place)


def _state_with_pickle(place: Place) -> None:
    [path] = (place.run / "resume").iterdir()
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes/x.npy", _npy(place))
    put_file(place, f"resume/{path.name}", path.read_bytes())


def _asset(place: Place) -> None:
    from arena import entries_of, put_model

    entries = entries_of(place.run / "model.keras")
    config = json.loads(entries["config.json"])
    text = keras_layer("TextVectorization", name="text", **TEXT)
    config["config"]["layers"].insert(1, text)
    put_model(
        place,
        {
            **entries,
            "config.json": json.dumps(config).encode(),
            "assets/layers/text/vocabulary.txt": pickled(place),
        },
    )


def cases() -> list[Case]:
    kind = "code"
    found = [
        Case(kind, "Lambda layer", with_layer(lambda_layer)),
        Case(kind, "Lambda layer, legacy", with_layer(_legacy_lambda)),
        Case(kind, "model in a model", with_layer(lambda_model)),
        Case(kind, "object array as seed", _dropout(hidden)),
        Case(kind, "object array, unused", _unused(hidden)),
        Case(kind, "object array as an argument", _argument(hidden)),
        Case(
            kind,
            "object array of arrays",
            _unused(lambda p: numpy_value([hidden(p), 1])),
        ),
        Case(
            kind,
            "object array, dtype O",
            _unused(lambda p: numpy_value(lambda_model(p), "O")),
        ),
        Case(
            kind,
            "object array, dtype |O",
            _unused(lambda p: numpy_value(lambda_model(p), "|O")),
        ),
        Case(
            kind,
            "object array, structured dtype",
            _unused(lambda p: numpy_value([(lambda_model(p),)], "O,i4")),
        ),
        Case(
            kind,
            "text array of JSON",
            _dropout(lambda p: numpy_value(json.dumps(lambda_model(p)), "str")),
            HARMLESS,
        ),
        Case(kind, "object array as a name", _in_dense("name", hidden)),
        Case(
            kind,
            "object array as an initialiser",
            _in_dense(
                "kernel_initializer",
                lambda p: layer(
                    "keras.initializers", "Constant", {"value": hidden(p)}
                ),
            ),
        ),
        Case(
            kind,
            "lambda as an activation",
            _in_dense(
                "activation",
                lambda p: {
                    "class_name": "__lambda__",
                    "config": lambda_code(p),
                },
            ),
        ),
        Case(
            kind,
            "lambda as a constraint",
            _in_dense(
                "kernel_constraint",
                lambda p: {
                    "class_name": "__lambda__",
                    "config": lambda_code(p),
                },
            ),
        ),
        Case(
            kind,
            "model as a regulariser",
            _in_dense("kernel_regularizer", lambda_model),
        ),
        Case(
            kind,
            "model as a dtype policy",
            _in_dense("dtype", lambda_model),
        ),
        Case(kind, "compile_config", config_change(_compile), HARMLESS),
        Case(kind, "build_config", config_change(_build), HARMLESS),
        Case(kind, "typespec of a process", config_change(_typespec)),
        Case(kind, "registered name", config_change(_registered)),
        Case(
            kind,
            "pickle as base.npy",
            lambda p: put_file(p, "base.npy", _npy(p)),
        ),
        Case(
            kind,
            "bare pickle as base.npy",
            lambda p: put_file(p, "base.npy", pickled(p)),
        ),
        Case(
            kind,
            "pickle as a round",
            lambda p: put_file(p, "rounds/6.npy", _npy(p)),
        ),
        Case(
            kind,
            "pickle in the state",
            _state_with_pickle,
            HARMLESS,
            "unfinished",
        ),
        Case(kind, "pickle as a vocabulary", _asset),
    ]
    found += [
        Case(kind, f"calls {module}.{name}", _called(module, name, arguments))
        for module, name, arguments in GADGETS
    ]
    found += [
        Case(kind, f"activation {module}.{name}", _activation(module, name))
        for module, name in [
            ("os", "system"),
            ("builtins", "eval"),
            ("builtins", "print"),
            ("subprocess", "call"),
            ("keras.utils", "get_file"),
            ("tensorflow.io", "read_file"),
            ("cbnn_keras.commands.cli", "main"),
        ]
    ]
    found += [
        Case(
            kind,
            f"class {number}, {module}.{name}",
            _class_layer(module, name, config),
        )
        for number, (module, name, config) in enumerate(CLASSES)
    ]
    return found
