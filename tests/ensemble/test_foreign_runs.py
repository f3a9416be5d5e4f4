"""Runs from someone else: what is in them is neither run nor trusted."""

import keras
import numpy as np
import pytest
from helpers import blobs, dense_model, memory_ensemble, same
from hostile_architectures import code_writing, edit_config, layer_of, sign

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.baselines import parallel_ensemble
from cbnn_keras.commands.export import export_run
from cbnn_keras.ensemble import ModelNeededError
from cbnn_keras.models import copying
from cbnn_keras.models.foreign import MAX_BYTES, Foreign, RebuildError
from cbnn_keras.support.faults import RunError

layers = keras.layers
X, _ = blobs(10)


def rescaled_model():
    return keras.Sequential(
        [keras.Input((4,)), layers.Rescaling(1.0), layers.Dense(3, "softmax")]
    )


@pytest.fixture
def directory(tmp_path):
    memory_ensemble(rescaled_model(), [1.0, 2.0]).save(tmp_path / "run")
    return tmp_path / "run"


def hide(directory, description):
    array = {
        "class_name": "__numpy__",
        "config": {"value": description, "dtype": "object"},
    }

    def edit(config):
        layer_of(config, "Rescaling")["config"]["scale"] = array

    edit_config(directory / "model.keras", edit)
    sign(directory)


def test_hidden_code_is_neither_loaded_nor_exported(directory, tmp_path):
    hide(directory, code_writing(tmp_path / "marker"))
    with pytest.raises(RunError, match=r"run/model\.keras .*array of objects"):
        CheckpointEnsemble.load(directory).as_model()
    with pytest.raises(RunError, match=r"run/model\.keras .*array of objects"):
        export_run(directory, format="onnx", output=tmp_path / "a.onnx")
    assert not (tmp_path / "marker").exists()


def test_preprocessing_from_a_file_is_judged(directory, tmp_path):
    model = keras.Sequential(
        [keras.Input((4,)), layers.Lambda(lambda x: 2 * x)]
    )
    copying.save_architecture(model, tmp_path / "preprocess.keras")
    with pytest.raises(RunError, match=r"preprocess\.keras .*a layer Lambda"):
        export_run(
            directory,
            format="onnx",
            output=tmp_path / "a.onnx",
            preprocess=tmp_path / "preprocess.keras",
        )


def test_loaded_model_is_copied_as_it_was_loaded(directory, monkeypatch):
    ensemble = CheckpointEnsemble.load(directory, max_bytes=2**24)
    assert ensemble.foreign == Foreign({}, 2**24)
    for other in (
        ensemble.take([1]),
        ensemble.select(num=1),
        ensemble.in_float32(),
        parallel_ensemble([ensemble, ensemble]),
    ):
        assert other.foreign is ensemble.foreign
    modes = []
    load = keras.saving.load_model

    def noted(*args, **options):
        modes.append(options["safe_mode"])
        return load(*args, **options)

    monkeypatch.setattr(keras.saving, "load_model", noted)
    merged = ensemble.as_model()
    assert modes == [True, True]
    np.testing.assert_allclose(
        merged.predict(X, verbose=0), ensemble.predict(X, verbose=0), atol=1e-6
    )


def test_half_precision_stays_foreign(tmp_path):
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(3, dtype="mixed_bfloat16")]
    )
    memory_ensemble(model, [1.0], from_logits=True).save(tmp_path / "run")
    loaded = CheckpointEnsemble.load(tmp_path / "run")
    single = loaded.in_float32()
    assert single is not loaded
    assert single.foreign is loaded.foreign


def test_model_of_the_user_is_the_users(directory):
    model = rescaled_model()
    loaded = CheckpointEnsemble.load(directory, model=model)
    assert loaded.foreign is None
    assert loaded.take([1]).foreign is None
    assert memory_ensemble(model, [1.0]).foreign is None


def test_a_foreign_model_that_got_code_is_not_copied(tmp_path):
    """Even if a file could smuggle it in: the second lock."""
    model = rescaled_model()
    own = memory_ensemble(model, [1.0])
    foreign = CheckpointEnsemble(own.run, model, foreign=Foreign())
    description = code_writing(tmp_path / "marker")
    model.layers[0].scale = np.array(description, dtype=object)
    with pytest.raises(RunError, match="it has a layer Lambda, which is code"):
        foreign.as_model()
    assert not (tmp_path / "marker").exists()
    own.as_model()
    assert (tmp_path / "marker").exists()


class Doubled(layers.Layer):
    def call(self, x):
        return 2 * x


def test_classes_are_opened_by_name_and_stay_so_in_copies(tmp_path):
    model = keras.Sequential([keras.Input((4,)), Doubled(), layers.Dense(3)])
    memory_ensemble(model, [1.0], from_logits=True).save(tmp_path / "run")
    with pytest.raises(ModelNeededError, match=r"Doubled\. Open") as caught:
        CheckpointEnsemble.load(tmp_path / "run")
    assert isinstance(caught.value, RunError)
    mine = {"Doubled": Doubled}
    loaded = CheckpointEnsemble.load(tmp_path / "run", custom_objects=mine)
    np.testing.assert_allclose(
        loaded.as_model().predict(X, verbose=0),
        loaded.predict(X, verbose=0),
        atol=1e-6,
    )


@pytest.mark.parametrize("wrong", [[Doubled], {1: Doubled}, {"a": None}, "a"])
def test_custom_objects_that_are_none_are_refused(directory, wrong):
    with pytest.raises(ValueError, match=r"custom_objects=.*must be a dict of"):
        CheckpointEnsemble.load(directory, custom_objects=wrong)


@pytest.mark.parametrize("wrong", [0, 1.5, None, True])
def test_limit_that_is_none_is_refused(directory, wrong):
    with pytest.raises(ValueError, match=r"max_bytes must be an integer of at"):
        CheckpointEnsemble.load(directory, max_bytes=wrong)


def test_limit(directory):
    assert MAX_BYTES == 4 * 2**30
    files = [*directory.glob("members/*"), directory / "model.keras"]
    size = sum(path.stat().st_size for path in files)
    with pytest.raises(RunError, match=r"run needs [\d,]+ bytes to be loaded"):
        CheckpointEnsemble.load(directory, max_bytes=size - 1)

    def grow(config):
        layer_of(config, "Dense")["config"]["units"] = 10**12

    edit_config(directory / "model.keras", grow)
    sign(directory)
    with pytest.raises(
        RunError, match=r"run/model\.keras .*4,294,967,296 byte"
    ):
        CheckpointEnsemble.load(directory)


@pytest.mark.parametrize("is_binary", [False, True])
def test_outputs_that_are_not_those_of_the_manifest_are_refused(
    directory, tmp_path, is_binary
):
    """The header says three classes, the model has two outputs."""
    num = 3 if is_binary else 2
    model = keras.Sequential([keras.Input((4,)), layers.Dense(num)])
    options = {"is_binary": True} if is_binary else {"num_classes": 3}
    memory_ensemble(model, [1.0], **options).save(tmp_path / "other")
    expected = 1 if is_binary else 3
    with pytest.raises(
        RunError,
        match=rf"other has outputs of shape \(None, {num}\), but the manifest "
        rf"speaks of {expected} for",
    ):
        CheckpointEnsemble.load(tmp_path / "other")


def test_model_that_cannot_compute_is_named(directory):
    """Keras builds it, and finds out what is wrong when it is called."""

    def spoil(config):
        layer_of(config, "Rescaling")["config"]["scale"] = "text"

    edit_config(directory / "model.keras", spoil)
    sign(directory)
    loaded = CheckpointEnsemble.load(directory)
    message = r"run/model\.keras describes a model that cannot compute \(.+\)\."
    for compute in (
        lambda: loaded.predict(X, verbose=0),
        lambda: list(loaded.staged_predict(X, verbose=0)),
    ):
        with pytest.raises(RunError, match=message):
            compute()


def test_inputs_that_do_not_fit_are_no_fault_of_the_file(directory):
    loaded = CheckpointEnsemble.load(directory)
    with pytest.raises(ValueError, match="have value 4") as caught:
        loaded.predict(X[:, :2], verbose=0)
    assert not isinstance(caught.value, RunError)


def test_binary_run_is_loaded(tmp_path):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, "sigmoid")])
    memory_ensemble(model, [1.0], is_binary=True).save(tmp_path / "run")
    loaded = CheckpointEnsemble.load(tmp_path / "run")
    assert loaded.predict(X, verbose=0).shape == (10, 1)


def test_what_keras_cannot_rebuild_asks_for_a_model(directory):
    def spoil(config):
        layer_of(config, "Dense")["config"]["units"] = "many"

    edit_config(directory / "model.keras", spoil)
    sign(directory)
    with pytest.raises(
        ModelNeededError,
        match=r"^The architecture in .*run cannot be rebuilt here\. Keras "
        r"cannot make a model of .*many.*Or pass a model that you built",
    ) as caught:
        CheckpointEnsemble.load(directory)
    assert isinstance(caught.value.__cause__, RebuildError)


def test_registered_models_that_say_no_outputs_are_loaded(tmp_path):
    model = Registered()
    model(X)
    ensemble = memory_ensemble(model, [1.0], num_classes=3)
    ensemble.save(tmp_path / "run")
    loaded = CheckpointEnsemble.load(tmp_path / "run")
    with ensemble.member(ensemble.rounds[0].step) as member:
        assert same(loaded.model.get_weights(), member.get_weights())
    assert loaded.predict(X, verbose=0).shape == (10, 3)


@keras.saving.register_keras_serializable("test_foreign_runs")
class Registered(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.dense = layers.Dense(3, "softmax")

    def call(self, x):
        return self.dense(x)


def test_own_ensembles_are_still_merged_with_their_lambdas():
    model = dense_model()
    doubled = keras.Sequential(
        [keras.Input((4,)), layers.Lambda(lambda x: 2 * x), *model.layers]
    )
    ensemble = memory_ensemble(doubled, [1.0, 1.0])
    np.testing.assert_allclose(
        ensemble.as_model().predict(X, verbose=0),
        ensemble.predict(X, verbose=0),
        atol=1e-6,
    )
