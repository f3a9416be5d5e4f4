"""Exports of a calibrated ensemble: what the artefact says in its runtime."""

import json

import keras
import numpy as np
import onnx
import pytest
from ai_edge_litert.interpreter import Interpreter
from export_helpers import X, opened, run_onnx, serving_graph, tables
from helpers import memory_ensemble

from cbnn_keras.calibration import CalibrationRecord
from cbnn_keras.export import (
    export_litert,
    export_onnx,
    export_saved_model,
    export_triton,
)
from cbnn_keras.export.metadata import check_metadata
from cbnn_keras.export.runtimes import METADATA, OnnxRuntime
from cbnn_keras.export.verify import TOLERANCES, compare, verify_artefact
from cbnn_keras.support.faults import RunError

OUTPUTS = ["probabilities", "class", "top_k", "set", "members", "disagreement"]


def calibrated(ensemble, temperature, threshold=None, share=0.0):
    """The ensemble as if it had been calibrated so, for a test."""
    coverage = None if threshold is None else 0.9
    ensemble.run.calibration = CalibrationRecord(
        temperature,
        1000,
        [record.step for record in ensemble.rounds],
        [float(vote) for vote in ensemble.votes],
        coverage,
        threshold,
        share,
    )
    return ensemble


def extreme(num_classes):
    """Probabilities of two members down to 0, in float32."""
    generator = np.random.default_rng(num_classes)
    exponents = generator.uniform(-30, 0, (2, 60, num_classes))
    p = np.exp(exponents)
    p /= p.sum(axis=2, keepdims=True)
    p[:, 0] = np.eye(num_classes)[0]
    p[0, 1], p[1, 1] = np.eye(num_classes)[:2]
    return p.astype("float32")


def expected_of(p, votes, temperature, share=0.0):
    """The definition, by loops, in float64."""
    shares = np.array(votes) / np.sum(votes)
    rows = []
    for i in range(p.shape[1]):
        mean = sum(s * p[m, i].astype("float64") for m, s in enumerate(shares))
        power = np.maximum(mean, 1e-7) ** (1 / temperature)
        one = power / power.sum()
        rows.append([(1 - share) * c + share / len(one) for c in one])
    return np.array(rows)


@pytest.mark.parametrize(
    ("temperature", "share"), [(0.4, 0.0), (1.7, 0.0), (6.0, 0.0), (1.2, 0.15)]
)
def test_parity_where_probabilities_are_nearly_0(temperature, share, tmp_path):
    p = extreme(4)
    ensemble = calibrated(tables(p, [1.0, 2.0]), temperature, 0.3, share)
    numbers = np.arange(60, dtype="int32")
    expected = expected_of(p, [1.0, 2.0], temperature, share)
    options = {"outputs": ["probabilities", "set"], "sample_data": numbers}
    export_onnx(ensemble, tmp_path / "m.onnx", verbose=0, **options)
    found = run_onnx(tmp_path / "m.onnx", {"sample": numbers})
    assert np.abs(found["probabilities"] - expected).max() <= 1e-5
    assert found["set"].dtype == bool
    np.testing.assert_array_equal(found["set"], expected >= 0.3)
    by_keras = ensemble.predict(numbers, verbose=0)
    assert np.abs(by_keras - expected).max() <= 1e-5
    np.testing.assert_array_equal(
        ensemble.prediction_sets(numbers, verbose=0), expected >= 0.3
    )
    if temperature in (1.7, 1.2):
        place = export_saved_model(
            ensemble, tmp_path / "saved", verbose=0, **options
        ).path
        path = tmp_path / "m.tflite"
        export_litert(ensemble, path, verbose=0, **options)
        run = Interpreter(str(path)).get_signature_runner()
        for said in opened(place)({"sample": numbers}), run(sample=numbers):
            assert np.abs(said["probabilities"] - expected).max() <= 1e-5
            np.testing.assert_array_equal(said["set"], expected >= 0.3)


@pytest.mark.parametrize(
    ("temperature", "share", "from_logits"),
    [(0.5, 0.0, False), (2.0, 0.1, True), (5.0, 0.0, False)],
)
def test_parity_of_one_column_that_is_nearly_1(
    temperature, share, from_logits, tmp_path
):
    """Sigmoids of 10 to 17, where two runtimes differ in the last bits."""
    activation = None if from_logits else "sigmoid"
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(1, activation)]
    )
    ensemble = calibrated(
        memory_ensemble(
            model, [1.0, 2.0, 0.5], is_binary=True, from_logits=from_logits
        ),
        temperature,
        0.2,
        share,
    )
    factors = np.linspace(0.1, 12, 20, dtype="float32")
    x = np.concatenate([factor * X for factor in factors])
    raw = ensemble.predict(x, calibrated=False, verbose=0)
    assert ((raw > 1 - 1e-4) & (raw < 1)).sum() > 20
    export_onnx(
        ensemble,
        tmp_path / "m.onnx",
        outputs=["probabilities", "set"],
        sample_data=x,
        verbose=0,
    )
    [name] = OnnxRuntime(tmp_path / "m.onnx").input_names
    found = run_onnx(tmp_path / "m.onnx", {name: x})
    expected = ensemble.predict(x, verbose=0)
    assert np.abs(found["probabilities"] - expected).max() <= 1e-5
    assert found["set"].shape == (len(x), 2)
    if share:  # none is surer than 1 - s/2, and some nearly are
        limit = 1 - share / 2
        assert limit - 0.01 < found["probabilities"].max() <= limit


def test_sets_of_samples_that_are_equally_sure(tmp_path):
    """That is the threshold, and has another last bit in the graph."""
    p = np.array([[0.7, 0.2, 0.1]] * 100 + [[1, 0, 0]] * 300, "float32")
    labels = np.repeat([0, 1, 2, 0, 1], [70, 20, 10, 274, 26])
    ensemble, numbers = tables([p], [1.0]), np.arange(400, dtype="int32")
    record = ensemble.calibrate((numbers, labels), coverage=0.6, verbose=0)
    assert record.share > 0.1
    export_onnx(
        ensemble,
        tmp_path / "m.onnx",
        outputs=["probabilities", "set"],
        sample_data=numbers,
        verbose=0,
    )
    found = run_onnx(tmp_path / "m.onnx", {"sample": numbers})
    expected = np.arange(3) == np.where(numbers < 100, -1, 0)[:, np.newaxis]
    np.testing.assert_array_equal(found["set"], expected)
    np.testing.assert_array_equal(
        ensemble.prediction_sets(numbers, verbose=0), expected
    )


@pytest.fixture(scope="module")
def ensemble():
    """Of extremes; sample 2 is the first that members disagree about."""
    return calibrated(tables(extreme(3), [1.0, 2.0]), 2.5, 0.4)


NUMBERS = np.arange(60, dtype="int32")


@pytest.fixture(scope="module")
def artefact(ensemble, tmp_path_factory):
    path = tmp_path_factory.mktemp("calibrated") / "m.onnx"
    export_onnx(ensemble, path, outputs=OUTPUTS, sample_data=NUMBERS, verbose=0)
    return path


def test_all_outputs_follow_but_those_of_members(ensemble, artefact):
    found = run_onnx(artefact, {"sample": NUMBERS})
    expected = expected_of(extreme(3), [1.0, 2.0], 2.5)
    np.testing.assert_array_equal(found["class"], expected.argmax(axis=1))
    np.testing.assert_allclose(
        found["top_k_probabilities"], -np.sort(-expected, axis=1), atol=1e-5
    )
    np.testing.assert_array_equal(
        found["members"], extreme(3).transpose(1, 0, 2)
    )
    differs = extreme(3).argmax(axis=2) != expected.argmax(axis=1)
    np.testing.assert_allclose(
        found["disagreement"], np.array([1, 2]) / 3 @ differs, atol=1e-6
    )


def test_the_artefact_says_so_and_verifies(ensemble, artefact):
    said = OnnxRuntime(artefact).metadata["calibration"]
    assert said == {
        "temperature": 2.5,
        "num_samples": 1000,
        "coverage": 0.9,
        "threshold": 0.4,
    }
    verify_artefact(artefact, ensemble, sample_data=NUMBERS, verbose=0)
    # Also if the run was calibrated anew, as with members and votes.
    other = calibrated(tables(extreme(3), [1.0, 2.0]), 1.1)
    verify_artefact(artefact, other, sample_data=NUMBERS, verbose=0)


@pytest.mark.parametrize(("temperature", "share"), [(2.4, 0.0), (2.5, 0.01)])
def test_an_artefact_of_another_scaling_is_found_out(
    artefact, temperature, share
):
    graph = serving_graph(
        calibrated(
            tables(extreme(3), [1.0, 2.0]), temperature, 0.4, share=share
        ),
        outputs=OUTPUTS,
        sample_data=NUMBERS,
    )
    with pytest.raises(ValueError, match="does not match the Keras ensemble"):
        compare(OnnxRuntime(artefact), graph, TOLERANCES["float32"])


def test_an_artefact_of_another_threshold_is_found_out(artefact, tmp_path):
    model = onnx.load_model(str(artefact))
    [entry] = [p for p in model.metadata_props if p.key == "calibration"]
    entry.value = json.dumps({**json.loads(entry.value), "threshold": 0.6})
    onnx.save_model(model, str(tmp_path / "changed.onnx"))
    run = tables(extreme(3), [1.0, 2.0])
    with pytest.raises(ValueError, match="does not match the Keras ensemble"):
        verify_artefact(
            tmp_path / "changed.onnx", run, sample_data=NUMBERS, verbose=0
        )


class OtherSets:
    """A runtime that is right about probabilities and wrong about sets."""

    def __init__(self, graph):
        self.graph = graph

    def run(self, inputs):
        found = self.graph.reference(inputs)
        p = found["probabilities"].astype("float32")
        return {"probabilities": p, "set": ~found["set"]}


@pytest.mark.parametrize("precision", TOLERANCES)
def test_wrong_sets_are_found_out_in_all_precisions(ensemble, precision):
    outputs = ["probabilities", "set"]
    graph = serving_graph(ensemble, outputs=outputs, sample_data=NUMBERS)
    with pytest.raises(ValueError, match="does not match the Keras ensemble"):
        compare(OtherSets(graph), graph, TOLERANCES[precision])


def test_raw_and_hard_are_exported_as_before(ensemble):
    raw = tables(extreme(3), [1.0, 2.0])
    for options in ({"calibrated": False}, {"voting": "hard"}):
        graph = serving_graph(ensemble, **options)
        before = serving_graph(raw, **{**options, "calibrated": True})
        assert graph.calibration is None
        assert graph.metadata() == before.metadata()
        assert "calibration" not in graph.metadata()
        np.testing.assert_array_equal(
            graph.model([NUMBERS])["probabilities"],
            before.model([NUMBERS])["probabilities"],
        )


def test_other_members_are_exported_as_they_are(ensemble):
    assert serving_graph(ensemble.take([10])).calibration is None


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_priors_come_after_temperature_and_share(share):
    priors = np.array([0.5, 0.3, 0.2])
    ensemble = calibrated(tables(extreme(3), [1.0, 2.0]), 2.5, 0.4, share=share)
    graph = serving_graph(ensemble, priors=priors, sample_data=NUMBERS)
    expected = expected_of(extreme(3), [1.0, 2.0], 2.5, share) / priors
    expected /= expected.sum(axis=1, keepdims=True)
    found = graph.reference({"sample": NUMBERS})["probabilities"]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(
        graph.model([NUMBERS])["probabilities"], expected, atol=1e-5
    )


def test_saved_model_and_triton_say_so_too(ensemble, tmp_path):
    options = {"outputs": ["set"], "sample_data": NUMBERS, "verbose": 0}
    place = export_saved_model(ensemble, tmp_path / "saved", **options).path
    said = json.loads((place / METADATA).read_text())
    assert said["calibration"]["temperature"] == 2.5
    place = export_triton(ensemble, tmp_path / "triton", **options).path
    config = (place / "config.pbtxt").read_text()
    assert 'name: "set"\n  data_type: TYPE_BOOL\n  dims: [ 3 ]' in config


def test_a_cascade_of_members_that_have_sets(ensemble, tmp_path):
    """The cascade has none, and its probabilities are scaled all the same."""
    options = {"cascade": "exact", "sample_data": NUMBERS, "verbose": 0}
    export_onnx(ensemble, tmp_path / "m.onnx", **options)
    found = run_onnx(tmp_path / "m.onnx", {"sample": NUMBERS})["probabilities"]
    first = extreme(3)[1].astype("float64")  # its vote is the larger
    power = np.maximum(first, 1e-7) ** (1 / 2.5)
    alone = power / power.sum(axis=1, keepdims=True)
    both = expected_of(extreme(3), [1.0, 2.0], 2.5)
    off = [np.abs(found - e).max(axis=1) for e in (alone, both)]
    assert (np.min(off, axis=0) <= 1e-5).all()
    assert (off[0] <= 1e-5).any() and (off[1] <= 1e-5).any()
    verify_artefact(
        tmp_path / "m.onnx", ensemble, sample_data=NUMBERS, verbose=0
    )


@pytest.mark.parametrize("priors", [None, [0.5, 0.3, 0.2]])
def test_an_exact_cascade_with_a_share(priors, tmp_path):
    """All predicted classes are those of the ensemble, priors or not."""
    p = extreme(3)
    ensemble = calibrated(tables(p, [1.0, 2.0]), 1.1, share=0.15)
    export_onnx(
        ensemble,
        tmp_path / "m.onnx",
        cascade="exact",
        priors=priors,
        outputs=["probabilities", "class", "members_used"],
        sample_data=NUMBERS,
        verbose=0,
    )
    found = run_onnx(tmp_path / "m.onnx", {"sample": NUMBERS})
    of_both, alone = (
        expected_of(members, votes, 1.1, 0.15)
        for members, votes in ((p, [1.0, 2.0]), (p[1:], [1.0]))
    )
    if priors is not None:
        of_both, alone = of_both / priors, alone / priors
        of_both /= of_both.sum(axis=1, keepdims=True)
        alone /= alone.sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(found["class"], of_both.argmax(axis=1))
    used = found["members_used"]
    assert set(used) == {1, 2}
    expected = np.where(used[:, np.newaxis] == 2, of_both, alone)
    assert np.abs(found["probabilities"] - expected).max() <= 1e-5
    said = OnnxRuntime(tmp_path / "m.onnx").metadata["calibration"]
    assert said["share"] == 0.15
    # Verified by what the artefact says, whatever the run says by now.
    raw = tables(p, [1.0, 2.0])
    verify_artefact(tmp_path / "m.onnx", raw, sample_data=NUMBERS, verbose=0)


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_smaller_precisions(precision, tmp_path):
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, "softmax")]
    )
    ensemble = calibrated(memory_ensemble(model, [1.0, 2.0]), 1.8, 0.3, 0.1)
    export_onnx(
        ensemble,
        tmp_path / "m.onnx",
        precision=precision,
        calibration_data=X if precision == "int8" else None,
        outputs=["probabilities", "set"],
        sample_data=X,
        verbose=0,
    )
    found = run_onnx(str(tmp_path / "m.onnx"), {"input": X})
    off = np.abs(found["probabilities"] - ensemble.predict(X, verbose=0)).max()
    assert off < (0.01 if precision == "float16" else 0.1)


@pytest.mark.parametrize(
    "options",
    [{"calibrated": False}, {"voting": "hard"}, {"priors": [1, 2, 3]}],
)
def test_sets_are_of_calibrated_probabilities(ensemble, options):
    with pytest.raises(
        ValueError,
        match="outputs='set' is of calibrated probabilities: it goes with "
        "voting='soft', and neither with priors nor calibrated=False",
    ):
        serving_graph(ensemble, outputs=["set"], **options)


def test_a_record_is_for_its_members_and_votes_and_soft_voting(ensemble):
    given = {"calibrated": ensemble.calibration}
    assert serving_graph(ensemble, **given).calibration == given["calibrated"]
    for other in (ensemble.take([10]), ensemble.with_votes({10: 1, 20: 3})):
        with pytest.raises(
            ValueError,
            match="calibrated=...: this was found for other members or votes",
        ):
            serving_graph(other, **given)
    with pytest.raises(ValueError, match="calibration is for voting='soft'"):
        serving_graph(ensemble, voting="hard", **given)


def test_sets_need_a_coverage():
    for ensemble in (
        tables(extreme(3), [1.0, 2.0]),
        calibrated(tables(extreme(3), [1.0, 2.0]), 2.5),
    ):
        with pytest.raises(ValueError, match="Sets need a coverage"):
            serving_graph(ensemble, outputs=["set"])


@pytest.mark.parametrize(
    "change",
    [
        {"calibration": 2.5},
        {"calibration": {"temperature": 2.5}},
        {"temperature": 0},
        {"temperature": -1.0},
        {"temperature": 1e9},
        {"temperature": True},
        {"share": 0.0},
        {"share": -0.1},
        {"share": 0.95},
        {"share": True},
        {"share": None},
        {"num_samples": 0},
        {"coverage": 1.0},
        {"coverage": None},
        {"threshold": 1.5},
        {"threshold": None, "coverage": None},  # but outputs has a set
        {"further": 1},
    ],
)
def test_metadata_that_no_export_writes(ensemble, tmp_path, change):
    metadata = serving_graph(ensemble, outputs=["set"]).metadata()
    check_metadata(tmp_path, metadata)
    said = metadata["calibration"]
    shared = {**metadata, "calibration": {**said, "share": 0.1}}
    check_metadata(tmp_path, shared)
    metadata["calibration"] = change.get("calibration", {**said, **change})
    with pytest.raises(RunError, match="calibration missing or of the wrong"):
        check_metadata(tmp_path, metadata)
