"""What an architecture can name to have code run or files loaded."""

from arena import Place, history, keras_layer, lambda_code, layer


def lambda_layer(place: Place, **more) -> dict:
    inner = {"class_name": "__lambda__", "config": lambda_code(place)}
    return keras_layer("Lambda", function=inner, **more)


def lambda_model(place: Place) -> dict:
    """A model that runs its code while it is deserialised."""
    first = keras_layer("InputLayer", batch_shape=[None, 4], name="inner")
    layers = [first, lambda_layer(place, name="inner_lambda")]
    return layer(
        "keras",
        "Sequential",
        {"name": "inner_model", "layers": layers},
        build_config={"input_shape": [None, 4]},
    )


def numpy_value(value, dtype="object") -> dict:
    return {
        "class_name": "__numpy__",
        "config": {"value": value, "dtype": dtype},
    }


def hidden(place: Place) -> dict:
    """A model in an array of objects, which the safe mode does not look at."""
    return numpy_value(lambda_model(place))


def function(module: str, name: str, registered: str | None = None) -> dict:
    return layer(
        module, "function", name, **({"registered_name": registered or name})
    )


def _touch(place: Place) -> list:
    return [f"touch {place.marker}"]


def _python(place: Place) -> list:
    return [f"open({str(place.marker)!r}, 'w')"]


# Module, function, arguments.
GADGETS = [
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
    (
        "keras.src.utils.python_utils",
        "func_load",
        lambda p: [lambda_code(p)["code"]],
    ),
    (
        "keras.src.saving.serialization_lib",
        "deserialize_keras_object",
        lambda p: ([numpy_value(lambda_model(p))], {"safe_mode": False}),
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


TEXT = {
    "max_tokens": None,
    "standardize": "lower_and_strip_punctuation",
    "split": "whitespace",
    "ngrams": None,
    "output_mode": "int",
    "output_sequence_length": 4,
    "pad_to_max_tokens": False,
    "sparse": False,
    "ragged": False,
    "vocabulary": None,
    "idf_weights": None,
    "encoding": "utf-8",
}

# Layers and other classes that load or write files by themselves.
CLASSES = [
    ("keras.layers", "TFSMLayer", lambda p: {"filepath": str(p.outside)}),
    (
        "keras.layers",
        "TorchModuleWrapper",
        lambda p: {"module": {"class_name": "__bytes__", "config": "x"}},
    ),
    ("keras.layers", "JaxLayer", lambda p: {"call_fn": lambda_code(p)}),
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
        lambda p: {**TEXT, "vocabulary": str(p.outside / "secret.txt")},
    ),
    (
        "keras.layers",
        "TextVectorization",
        lambda p: {**TEXT, "vocabulary": "https://localhost:1/vocabulary"},
    ),
    (
        "keras.layers",
        "StringLookup",
        lambda p: {"vocabulary": "gs://bucket/vocabulary"},
    ),
    (
        "keras.layers",
        "TextVectorization",
        lambda p: {**TEXT, "standardize": function("os", "system")},
    ),
    (
        "keras.layers",
        "Wrapper",
        lambda p: {"layer": lambda_layer(p)},
    ),
    (
        "keras.layers",
        "TimeDistributed",
        lambda p: {"layer": lambda_layer(p)},
    ),
    (
        "keras.layers",
        "Bidirectional",
        lambda p: {"layer": lambda_layer(p)},
    ),
    ("keras.layers", "RNN", lambda p: {"cell": lambda_layer(p)}),
    (
        "keras.layers",
        "Pipeline",
        lambda p: {"layers": [lambda_layer(p)]},
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
    ("keras.metrics", "MeanMetricWrapper", lambda p: {"fn": lambda_code(p)}),
]
