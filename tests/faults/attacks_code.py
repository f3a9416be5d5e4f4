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


def _lambda_layer(place: Place, **more) -> dict:
    function = {"class_name": "__lambda__", "config": _code(place)}
    return keras_layer("Lambda", function=function, **more)


def _code(place: Place) -> dict:
    return {"value": lambda_code(place)}


def _lambda_model(place: Place) -> dict:
    """A model that runs its code while it is deserialised."""
    first = keras_layer("InputLayer", batch_shape=[None, 4], name="inner")
    layers = [first, _lambda_layer(place, name="inner_lambda")]
    return layer(
        "keras",
        "Sequential",
        {"name": "inner_model", "layers": layers},
        build_config={"input_shape": [None, 4]},
    )


def _numpy(value, dtype="object") -> dict:
    return {
        "class_name": "__numpy__",
        "config": {"value": value, "dtype": dtype},
    }


def _hidden(place: Place) -> dict:
    """A model in an array of objects, which the safe mode does not look at."""
    return _numpy(_lambda_model(place))


def _function(module: str, name: str, registered: str | None = None) -> dict:
    return layer(
        module, "function", name, **({"registered_name": registered or name})
    )


def _activation(module: str, name: str):
    def change(config: dict, place: Place) -> None:
        dense = config["config"]["layers"][1]["config"]
        dense["activation"] = _function(module, name)

    return config_change(change)


def _called(module: str, name: str, arguments, class_name="function"):
    """A function that Keras calls with these arguments as it loads."""

    def change(config: dict, place: Place) -> dict:
        node = _function(module, name)
        node["class_name"] = class_name
        given = arguments(place)
        args, kwargs = given if isinstance(given, tuple) else (given, {})
        node["inbound_nodes"] = [{"args": args, "kwargs": kwargs}]
        return functional(node)

    return config_change(change)


def _touch(place: Place) -> list:
    return [f"touch {place.marker}"]


def _python(place: Place) -> list:
    return [f"open({str(place.marker)!r}, 'w')"]


# Module, function, arguments.
_GADGETS = [
    ("os", "system", _touch),
    ("posix", "system", _touch),
    ("subprocess", "getoutput", _touch),
    ("subprocess", "check_output", lambda p: [["touch", str(p.marker)]]),
    ("builtins", "eval", _python),
    ("builtins", "exec", _python),
    ("builtins", "open", lambda p: [str(p.marker), "w"]),
    ("os", "remove", lambda p: [str(p.outside / "secret.txt")]),
    ("shutil", "rmtree", lambda p: [str(p.outside)]),
    ("pathlib", "Path.touch", lambda p: [str(p.marker)]),
    ("runpy", "run_path", lambda p: [str(p.run / "code.py")]),
    ("numpy", "load", lambda p: [str(p.outside / "base.npy")]),
    ("numpy", "fromfile", lambda p: [str(p.outside / "secret.txt"), "uint8"]),
    ("tensorflow", "io.read_file", lambda p: [str(p.outside / "secret.txt")]),
    (
        "tensorflow.python.ops.gen_io_ops",
        "write_file",
        lambda p: [str(p.marker), "x"],
    ),
    (
        "tensorflow.python.lib.io.file_io",
        "delete_file",
        lambda p: [str(p.outside / "secret.txt")],
    ),
    ("keras.utils", "get_file", lambda p: _fetched(p)),
    ("keras.src.utils.file_utils", "get_file", lambda p: _fetched(p)),
    (
        "keras.src.utils.file_utils",
        "remove",
        lambda p: [str(p.outside / "secret.txt")],
    ),
    (
        "keras.src.utils.file_utils",
        "copy",
        lambda p: [str(p.outside / "secret.txt"), str(p.marker)],
    ),
    ("keras.config", "enable_unsafe_deserialization", lambda p: []),
    ("keras.saving", "load_model", lambda p: [str(p.outside / "model.keras")]),
    ("keras.models", "load_model", lambda p: [str(p.outside / "model.keras")]),
    (
        "keras.saving",
        "load_weights",
        lambda p: [history("in"), str(p.outside / "secret.txt")],
    ),
    (
        "keras.utils",
        "save_img",
        lambda p: [str(p.marker), [[[0.0, 0.0, 0.0]]]],
    ),
    (
        "keras.utils",
        "load_img",
        lambda p: [str(p.outside / "secret.txt")],
    ),
    (
        "keras.utils",
        "image_dataset_from_directory",
        lambda p: [str(p.outside)],
    ),
    ("keras.src.utils.python_utils", "func_load", lambda p: [lambda_code(p)]),
    (
        "keras.src.saving.serialization_lib",
        "deserialize_keras_object",
        lambda p: ([_numpy(_lambda_model(p))], {"safe_mode": False}),
    ),
    (
        "keras.src.backend.tensorflow.numpy",
        "np.load",
        lambda p: [str(p.outside / "base.npy")],
    ),
]


def _fetched(place: Place) -> tuple[list, dict]:
    """Arguments of `get_file`, which copy a file to where they say."""
    origin = (place.outside / "secret.txt").as_uri()
    return [], {
        "fname": str(place.marker),
        "origin": origin,
        "cache_dir": str(place.outside),
    }


# Layers and other classes that load or write files by themselves.
_CLASSES = [
    ("keras.layers", "TFSMLayer", lambda p: {"filepath": str(p.outside)}),
    (
        "keras.layers",
        "TorchModuleWrapper",
        lambda p: {"module": {"class_name": "__bytes__", "config": "x"}},
    ),
    ("keras.layers", "JaxLayer", lambda p: {"call_fn": _code(p)}),
    (
        "keras.layers",
        "StringLookup",
        lambda p: {"vocabulary": str(p.outside / "secret.txt")},
    ),
    (
        "keras.layers",
        "IntegerLookup",
        lambda p: {"vocabulary": str(p.outside / "secret.txt")},
    ),
    (
        "keras.layers",
        "TextVectorization",
        lambda p: {"vocabulary": str(p.outside / "secret.txt")},
    ),
    (
        "keras.layers",
        "TextVectorization",
        lambda p: {"vocabulary": "https://localhost:1/vocabulary"},
    ),
    (
        "keras.layers",
        "StringLookup",
        lambda p: {"vocabulary": "gs://bucket/vocabulary"},
    ),
    (
        "keras.layers",
        "TextVectorization",
        lambda p: {"standardize": _function("os", "system")},
    ),
    (
        "keras.layers",
        "Wrapper",
        lambda p: {"layer": _lambda_layer(p)},
    ),
    (
        "keras.layers",
        "TimeDistributed",
        lambda p: {"layer": _lambda_layer(p)},
    ),
    (
        "keras.layers",
        "Bidirectional",
        lambda p: {"layer": _lambda_layer(p)},
    ),
    ("keras.layers", "RNN", lambda p: {"cell": _lambda_layer(p)}),
    (
        "keras.layers",
        "Pipeline",
        lambda p: {"layers": [_lambda_layer(p)]},
    ),
    (
        "keras.callbacks",
        "BackupAndRestore",
        lambda p: {"backup_dir": str(p.marker)},
    ),
    (
        "keras.src.saving.saving_lib",
        "H5IOStore",
        lambda p: {"path_or_io": str(p.marker), "mode": "w"},
    ),
    (
        "keras.src.saving.saving_lib",
        "DiskIOStore",
        lambda p: {"root_path": str(p.marker), "mode": "w"},
    ),
    ("subprocess", "Popen", lambda p: {"args": ["touch", str(p.marker)]}),
    ("tempfile", "NamedTemporaryFile", lambda p: {"dir": str(p.outside)}),
    ("cbnn_keras.runs.directory", "RunDirectory", lambda p: {}),
    ("keras.src.utils.progbar", "Progbar", lambda p: {"target": 3}),
    ("keras.metrics", "MeanMetricWrapper", lambda p: {"fn": _code(p)}),
]


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


def _compile(config: dict, place: Place) -> None:
    config["compile_config"] = {
        "loss": {"class_name": "__lambda__", "config": _code(place)},
        "optimizer": _lambda_model(place),
    }


def _build(config: dict, place: Place) -> None:
    config["config"]["layers"][1]["build_config"] = {
        "input_shape": _hidden(place)
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
    text = keras_layer("TextVectorization", name="text")
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
        Case(kind, "Lambda layer", with_layer(_lambda_layer)),
        Case(kind, "Lambda layer, legacy", with_layer(_legacy_lambda)),
        Case(kind, "model in a model", with_layer(_lambda_model)),
        Case(kind, "object array as seed", _dropout(_hidden)),
        Case(
            kind,
            "object array of arrays",
            _dropout(lambda p: _numpy([_hidden(p), 1])),
        ),
        Case(
            kind,
            "object array, dtype O",
            _dropout(lambda p: _numpy(_lambda_model(p), "O")),
        ),
        Case(
            kind,
            "object array, dtype |O8",
            _dropout(lambda p: _numpy(_lambda_model(p), "|O")),
        ),
        Case(
            kind,
            "object array, structured dtype",
            _dropout(lambda p: _numpy([(_lambda_model(p),)], "O,i4")),
        ),
        Case(
            kind,
            "text array of JSON",
            _dropout(lambda p: _numpy(json.dumps(_lambda_model(p)), "str")),
            HARMLESS,
        ),
        Case(kind, "object array as a name", _in_dense("name", _hidden)),
        Case(
            kind,
            "object array as an initialiser",
            _in_dense(
                "kernel_initializer",
                lambda p: layer(
                    "keras.initializers", "Constant", {"value": _hidden(p)}
                ),
            ),
        ),
        Case(
            kind,
            "lambda as an activation",
            _in_dense(
                "activation",
                lambda p: {"class_name": "__lambda__", "config": _code(p)},
            ),
        ),
        Case(
            kind,
            "lambda as a constraint",
            _in_dense(
                "kernel_constraint",
                lambda p: {"class_name": "__lambda__", "config": _code(p)},
            ),
        ),
        Case(
            kind,
            "model as a regulariser",
            _in_dense("kernel_regularizer", _lambda_model),
        ),
        Case(
            kind,
            "model as a dtype policy",
            _in_dense("dtype", _lambda_model),
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
        for module, name, arguments in _GADGETS
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
        for number, (module, name, config) in enumerate(_CLASSES)
    ]
    return found
