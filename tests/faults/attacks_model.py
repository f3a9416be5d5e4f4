"""Architectures: archives that lie, and layers that ask for all memory."""

import io
import json
import zipfile

import h5py
import numpy as np
from arena import (
    HARMLESS,
    OTHER_RUN,
    Case,
    Place,
    archive_of,
    config_change,
    entries_of,
    functional,
    history,
    keras_layer,
    layer,
    put_file,
    put_model,
    with_layer,
)
from attacks_arrays import bomb, lying_zip

MODEL = "model.keras"


def _entries(change):
    """Changes the entries of the archive."""

    def make(place: Place) -> None:
        entries = entries_of(place.run / MODEL)
        change(entries, place)
        put_model(place, entries)

    return make


def _bytes(change):
    def make(place: Place) -> None:
        put_file(place, MODEL, change((place.run / MODEL).read_bytes()))

    return make


def _added(name: str, data: bytes = b"x"):
    return _entries(lambda entries, _: entries.update({name: data}))


def _escaping(name: str):
    """An entry that an unpacking archive would put outside."""

    def make(place: Place) -> None:
        entries = entries_of(place.run / MODEL)
        entries[name.format(outside=place.outside)] = b"x"
        put_model(place, entries)

    return make


def _duplicate(name: str, data: bytes):
    def make(place: Place) -> None:
        path = place.run / MODEL
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with zipfile.ZipFile(path, "a") as archive:
                archive.writestr(name, data)
        put_file(place, MODEL, path.read_bytes())

    return make


def _link_entry(place: Place) -> None:
    """An entry that unpacks to a symbolic link."""
    entries = entries_of(place.run / MODEL)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
        link = zipfile.ZipInfo("assets/layers/dense")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, str(place.outside))
    put_file(place, MODEL, buffer.getvalue())


def _bomb_as(name: str, claimed: int):
    """An entry of 2 GB that takes 2 MB."""

    def make(place: Place) -> None:
        entries = entries_of(place.run / MODEL)
        entries.pop(name, None)
        packed = [
            (n, 0, data, len(data), _crc(data), 0)
            for n, data in entries.items()
        ]
        packed.append((name, 8, bomb(2**30), claimed, 0, 0))
        put_file(place, MODEL, lying_zip(packed))

    return make


def _crc(data: bytes) -> int:
    import zlib

    return zlib.crc32(data)


def _encrypted(place: Place) -> None:
    entries = entries_of(place.run / MODEL)
    packed = [(n, 0, d, len(d), _crc(d), 1) for n, d in entries.items()]
    put_file(place, MODEL, lying_zip(packed))


def _overlapping(place: Place) -> None:
    """A thousand names for the same megabyte of packed zeros."""
    data = lying_zip([("config.json", 8, bomb(2**26), 2**26, 0, 0)])
    start = data.index(b"PK\1\2")
    end = data.index(b"PK\5\6")
    entry = data[start:end]
    names = [f"e{n:09d}".encode() for n in range(1000)]
    directory = b"".join(entry[:-11] + name[:11].ljust(11) for name in names)
    tail = bytearray(data[end:])
    tail[8:12] = (1000).to_bytes(2, "little") * 2
    tail[12:16] = len(directory).to_bytes(4, "little")
    put_file(place, MODEL, data[:start] + directory + bytes(tail))


def _many_entries(place: Place) -> None:
    entries = entries_of(place.run / MODEL)
    entries.update({f"assets/{n}": b"" for n in range(20_000)})
    put_model(place, entries)


def _weights(change):
    """Changes the weights within the archive, which Keras reads too."""

    def make(place: Place) -> None:
        entries = entries_of(place.run / MODEL)
        buffer = io.BytesIO(entries["model.weights.h5"])
        with h5py.File(buffer, "r+") as file:
            change(file, place)
        put_model(place, {**entries, "model.weights.h5": buffer.getvalue()})

    return make


def _external(file: h5py.File, place: Place) -> None:
    name = "layers/dense/vars/0"
    del file[name]
    target = place.outside / "secret.txt"
    file.create_dataset(
        name, (4, 8), "float32", external=[(str(target), 0, 128)]
    )


def _huge(file: h5py.File, _) -> None:
    name = "layers/dense/vars/0"
    del file[name]
    file.create_dataset(name, (2**20, 2**20), "float32", chunks=(1024, 1024))


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


def _op(name: str, *args, shape=(None, 4)):
    """An operation on tensors as a layer of a Functional model."""

    def change(config: dict, _) -> dict:
        node = layer("keras.ops", "function", name, registered_name=name)
        node["inbound_nodes"] = [
            {"args": [history("in", list(shape)), *args], "kwargs": {}}
        ]
        return functional(node, list(shape))

    return config_change(change)


def _initial(class_name: str, **config):
    return _set(
        1, kernel_initializer=layer("keras.initializers", class_name, config)
    )


def _deep_json(depth: int):
    return _text("[" * depth + "]" * depth)


def _archives() -> list[Case]:
    kind = "archive"
    refused = {
        "2 GB as config.json": _bomb_as("config.json", 2**30),
        "2 GB as the weights": _bomb_as("model.weights.h5", 2**30),
        "2 GB that claim 99 bytes": _bomb_as("config.json", 99),
        "2 GB as an asset": _bomb_as("assets/x", 2**30),
        "encrypted": _encrypted,
        "overlapping": _overlapping,
        "no config": _entries(lambda e, _: e.pop("config.json")),
        "no entries": _entries(lambda e, _: e.clear()),
        "metadata of a list": _added("metadata.json", b"[]"),
        "config of a list": _added("config.json", b"[]"),
        "config of null": _added("config.json", b"null"),
        "config of bytes": _added("config.json", b"\xff\xfe"),
        "config of NaN": _added("config.json", b"NaN"),
        "weights of text": _added("model.weights.h5", b"text"),
        "weights with external storage": _weights(_external),
        "weights of 4 TB": _weights(_huge),
        "an archive in it": _entries(
            lambda e, _: e.update({"config.json": archive_of(e)})
        ),
        "empty": _bytes(lambda _: b""),
        "text": _bytes(lambda _: b"not a zip"),
        "cut": _bytes(lambda data: data[: len(data) // 2]),
        "end cut": _bytes(lambda data: data[:-10]),
        "tar": _bytes(lambda _: b"\0" * 10240),
        "HDF5, the legacy format": _bytes(lambda _: _legacy()),
        "pickle": _bytes(lambda _: b"\x80\4."),
        "two configs": _duplicate("config.json", b"{}"),
        "two weights": _duplicate("model.weights.h5", b"x"),
        "link": _link_entry,
    }
    harmless = {
        "no metadata": _entries(lambda e, _: e.pop("metadata.json")),
        "no weights": _entries(lambda e, _: e.pop("model.weights.h5")),
        "weights as npz": _entries(
            lambda e, _: e.update({"model.weights.npz": b"PK"})
        ),
        "a prefix": _bytes(lambda data: b"#!/bin/sh\n" + data),
        "20,000 entries": _many_entries,
        "an unknown entry": _added("unknown", b"x"),
        "a weight map": _added("model.weights.json", b'{"weight_map": {}}'),
    }
    names = [
        *("../../outside/EXECUTED", "{outside}/EXECUTED", "..\\..\\EXECUTED"),
        *("assets/../../../outside/EXECUTED", "assets/layers/../../../x"),
        *("/etc/cbnn", "assets/nul\0byte", "assets//x", "assets/" + "x" * 9999),
    ]
    return [
        *(Case(kind, name, make) for name, make in refused.items()),
        *(Case(kind, n, make, HARMLESS) for n, make in harmless.items()),
        *(
            Case(kind, f"entry {name[:30]!r}", _escaping(name), HARMLESS)
            for name in names
        ),
    ]


def _legacy() -> bytes:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.attrs["model_config"] = json.dumps({"class_name": "Sequential"})
        file.attrs["keras_version"] = np.bytes_("2.9.0")
    return buffer.getvalue()


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
        "wide build": _top(build_input_shape=wide),
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
        "op broadcast_to": _op("broadcast_to", [2**20, 2**20]),
        "op ones": _op("ones", [2**20, 2**20]),
        "op eye": _op("eye", 2**20),
        "op repeat": _op("repeat", 10**10),
        "op tile": _op("tile", [1, 10**10]),
        "op one_hot": _op("one_hot", 10**10),
        "Orthogonal": _initial("Orthogonal", gain="x"),
        "Constant of text": _initial("Constant", value="x" * 1000),
        "models in models": _nested_models(5000),
        "deep JSON": _deep_json(200_000),
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
        "NaN as units": _text_change('"units": 8', '"units": NaN'),
        "two units": _text_change('"units": 8', '"units": 8, "units": 9'),
    }
    other = {
        "activation": _set(1, activation="tanh"),
        "600 layers": _many_layers(600),
        "escape in a name": _set(1, name="\x1b[2J"),
        "slash in a name": _set(1, name="a/b"),
        "dots as a name": _set(1, name=".."),
        "long name": _set(1, name="x" * 100_000),
        "no bias": _set(1, use_bias=False),
        "float16": _set(1, dtype="float16"),
    }
    return [
        *_archives(),
        *(Case(kind, name, make) for name, make in refused.items()),
        *(Case(kind, n, make, OTHER_RUN) for n, make in other.items()),
    ]


def _text_change(old: str, new: str):
    return config_change(lambda c, _: json.dumps(c).replace(old, new, 1))
