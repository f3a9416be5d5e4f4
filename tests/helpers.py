"""Small data and models that many tests share."""

import hashlib
import json

import keras
import numpy as np

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.boosting_policies import Boosting
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.manifest import Header, Round, Settings
from cbnn_keras.runs.run import MemoryRun

# Of a report, in their order on the page.
SECTIONS = [
    "summary",
    "rounds",
    "budget",
    "growth",
    "diversity",
    "weights",
    "calibration",
    "hardest",
    "suspects",
    "settings",
]


def blobs(num_samples=120, num_classes=3, num_features=4, seed=0):
    """Clusters that overlap a little: learnable, not at once."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(num_classes, num_features))
    y = np.arange(num_samples) % num_classes
    x = centres[y] + generator.normal(
        scale=0.6, size=(num_samples, num_features)
    )
    return x.astype("float32"), y


def dense_model(num_classes=3, num_features=4, *, optimizer=None, **compile):
    """A Sequential softmax classifier, compiled for integer labels."""
    model = keras.Sequential(
        [
            keras.Input((num_features,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(num_classes, activation="softmax"),
        ]
    )
    compile.setdefault("loss", "sparse_categorical_crossentropy")
    # Fast enough to be better than chance after a few steps.
    model.compile(optimizer or keras.optimizers.Adam(0.05), **compile)
    build_optimizer(model)
    return model


def build_optimizer(model):
    """Before `fit`, which traces a step again that has made variables."""
    if model.built and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def trained(
    directory=None,
    *,
    data=None,
    epochs=4,
    batch_size=20,
    model=None,
    sample_weight=None,
    **options,
):
    """Trains, on `blobs` if not on `data`: `(callback, model, x, y)`.

    As the paper does, unless options are given that it does not have.
    """
    x, y = data or blobs()
    model = model or dense_model()
    is_paper = not options.keys() & {"average", "members", "largest_ratio"}
    make = CBNNCallback.paper if is_paper else CBNNCallback
    callback = make(directory, **options)
    train = callback.weighted(
        x, y, sample_weight=sample_weight, batch_size=batch_size, seed=1
    )
    model.fit(train, epochs=epochs, callbacks=[callback], verbose=0)
    return callback, model, x, y


def one_step(model, num_features=64, num_classes=10):
    """Trains on one batch, so that the optimizer has its slots."""
    x, y = blobs(20, num_classes, num_features)
    build_optimizer(model)
    model.fit(x, y, batch_size=20, verbose=0, shuffle=False)


def same(arrays, others):
    return len(arrays) == len(others) and all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes()
        for a, b in zip(arrays, others, strict=True)
    )


def text_model(num_classes=3):
    """Strings in; its vocabulary is adapted and in no config."""
    vectorize = keras.layers.TextVectorization(output_sequence_length=3)
    vectorize.adapt(["red green blue", "red green", "red"])
    return keras.Sequential(
        [
            keras.Input((), dtype="string"),
            vectorize,
            keras.layers.Embedding(vectorize.vocabulary_size(), 4),
            keras.layers.Flatten(),
            keras.layers.Dense(num_classes, activation="softmax"),
        ]
    )


def fake_onnxruntime_web(directory):
    """Files where npm would put them, to be copied and not to be run."""
    directory.mkdir(parents=True)
    (directory / "ort.wasm.bundle.min.mjs").write_text("// the script\n")
    (directory / "ort-wasm-simd-threaded.wasm").write_bytes(b"\0asm")
    (directory / "ort.all.js").write_text("// not needed\n")
    return directory


def change_manifest(directory, change):
    """Changes a run's manifest as somebody can who reads the documentation."""
    path = directory / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    if content.pop("sha256", None):
        text = json.dumps(
            dict(sorted(content.items())),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
        )
        content["sha256"] = hashlib.sha256(text.encode("utf-8")).hexdigest()
    path.write_text(json.dumps(content))


def list_file(directory, name):
    """Puts a file into a run's manifest as it is, as an attacker could."""
    content = (directory / name).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    found = {"bytes": len(content), "sha256": digest}
    change_manifest(directory, lambda m: m["files"].update({name: found}))


class Undescribed(keras.Model):
    """Takes an argument that Keras cannot write down."""

    def __init__(self, layers):
        super().__init__()
        self.chain = layers

    def call(self, x):
        for layer in self.chain:
            x = layer(x)
        return x


def header(model, *, is_binary=False, from_logits=False, **changes):
    """What a run of eight samples says about itself."""
    if "num_classes" not in changes:
        num_classes = 2 if is_binary else model.output_shape[-1]
        changes["num_classes"] = num_classes
    return Header(
        **{
            "method": "cbnn",
            "package_version": "0",
            "num_samples": 8,
            "is_binary": is_binary,
            "from_logits": from_logits,
            "num_parameters": model.count_params(),
            "architecture": "none",
            "labels": "none",
            "settings": Settings(Boosting()),
            **changes,
        }
    )


def round_at(step, vote=1.0, **changes):
    """What a round could have left."""
    return Round(
        **{
            "step": step,
            "epoch": 0,
            "error": 0.25,
            "vote": vote,
            "normaliser": 1.0,
            "bound": 1.0,
            "exponential_loss": 1.0,
            "is_member": True,
            "within_budget": True,
            "is_final": False,
            **changes,
        }
    )


def memory_ensemble(model, votes, **options):
    """An ensemble of an untrained model: members of really other weights."""
    # Put together, as the votes are made up.
    run = MemoryRun(header(model, **{"method": "parallel", **options}))
    generator = np.random.default_rng(1)
    kept = model.get_weights()
    for step, vote in enumerate(votes, start=1):
        # Variances stay positive, and what was zero does not stay zero.
        model.set_weights([_moved(weight, generator) for weight in kept])
        run.add_round(round_at(step, vote), np.ones(8, dtype=bool), model)
    model.set_weights(kept)
    run.finish()
    return CheckpointEnsemble(run, model)


def scored_run(
    directory,
    *,
    num_rounds=3,
    own_distribution=None,
    is_finished=True,
    **changes,
):
    """A run that was never trained, but whose votes are earned."""
    model = dense_model()
    changes.setdefault("num_samples", 21)
    run = RunDirectory.create(
        directory,
        header(model, **changes),
        model,
        own_distribution=own_distribution,
    )
    generator = np.random.default_rng(3)
    booster = run.replay()
    for number in range(1, num_rounds + 1):
        correct = generator.random(changes["num_samples"]) < 0.7
        is_final = is_finished and number == num_rounds
        stage = booster.add(correct, is_final=is_final)
        record = Round(step=4 * number, epoch=number, **vars(stage))
        run.add_round(record, correct, model if stage.is_member else None)
    if is_finished:
        run.finish()
    return run


def _moved(weight, generator):
    if weight.dtype.kind != "f":
        return weight
    factors = np.exp(generator.normal(0, 0.2, weight.shape))
    return weight * factors + np.abs(generator.normal(0, 0.02, weight.shape))
