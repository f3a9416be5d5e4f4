"""Cascades in TensorFlow and in ONNX Runtime, against the rule in NumPy."""

import json

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf
from export_helpers import X, opened, run_onnx, serving_graph, tables
from helpers import dense_model, header, memory_ensemble, round_at

from cbnn_keras import CheckpointEnsemble, cascades, metrics
from cbnn_keras.calibration import CalibrationRecord, Scaling
from cbnn_keras.cascades import Cascade
from cbnn_keras.export import (
    export_litert,
    export_onnx,
    export_saved_model,
    export_triton,
    onnx_conversion,
    verify_artefact,
)
from cbnn_keras.export.cascade_parity import clear_exits, members_asked
from cbnn_keras.runs.run import MemoryRun

OUTPUTS = ["probabilities", "class", "members_used"]
VOTES = [1.0, 2.0, 1.5, 0.8, 1.2]
BY_VOTE = [1, 2, 4, 0, 3]


def answers(num_columns, num_samples=60, seed=0):
    """Of five members: easy samples, hard ones, and all between."""
    generator = np.random.default_rng(seed)
    sharpness = np.geomspace(0.3, 8, num_samples)[:, np.newaxis]
    if num_columns == 1:
        logits = generator.normal(size=(num_samples, 1)) + generator.normal(
            0, 0.5, size=(5, num_samples, 1)
        )
        found = 1 / (1 + np.exp(-sharpness * logits))
    else:
        logits = generator.normal(
            size=(num_samples, num_columns)
        ) + generator.normal(0, 0.5, size=(5, num_samples, num_columns))
        exponents = np.exp(sharpness * logits)
        found = exponents / exponents.sum(axis=-1, keepdims=True)
    return found.astype("float32")


def in_tensorflow(graph):
    function = graph.function()

    def run(*arrays):
        found = function(*(tf.constant(array) for array in arrays))
        return {name: tensor.numpy() for name, tensor in found.items()}

    return run


def session(graph, **options):
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    for name, value in options.items():
        setattr(settings, name, value)
    model = onnx_conversion.to_onnx(graph)
    onnx.checker.check_model(model)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )


def in_onnx_runtime(graph):
    opened = session(graph)
    names = [output.name for output in opened.get_outputs()]
    assert sorted(names) == sorted(graph.options.output_names)

    def run(*arrays):
        inputs = dict(zip(graph.input_specs, arrays, strict=True))
        return dict(zip(names, opened.run(names, inputs), strict=True))

    return run


RUNTIMES = [in_tensorflow, in_onnx_runtime]
CASES = {
    "exact": (3, {}, "exact"),
    "confident": (3, {}, 0.8),
    "one for each": (3, {}, Cascade(confidence=(0.9, 0.75, 2.0, 0.6))),
    "hard": (3, {"voting": "hard"}, "exact"),
    "priors": (3, {"priors": [0.7, 0.2, 0.1]}, "exact"),
    "priors and confident": (3, {"priors": [0.7, 0.2, 0.1]}, 0.8),
    "temperature": (3, {"scaling": Scaling(2.0)}, 0.7),
    "temperature, priors": (
        3,
        {"scaling": Scaling(0.8), "priors": [0.5, 0.3, 0.2]},
        0.8,
    ),
    "share": (3, {"scaling": Scaling(1.1, 0.15)}, 0.7),
    "share, priors": (
        3,
        {"scaling": Scaling(1.1, 0.15), "priors": [0.5, 0.3, 0.2]},
        "exact",
    ),
    "one column": (1, {}, "exact"),
    "one column, confident": (1, {}, 0.8),
    "one column, hard": (1, {"voting": "hard"}, "exact"),
    "one column, temperature": (
        1,
        {"scaling": Scaling(1.5), "priors": [0.6, 0.4]},
        0.8,
    ),
    "one column, share": (
        1,
        {"scaling": Scaling(0.8, 0.1), "priors": [0.6, 0.4]},
        0.8,
    ),
}


# All rules, but not each in each runtime: a conversion takes seconds.
ONLY_TENSORFLOW = {"priors", "temperature", "one column, confident", "hard"}
ONLY_TENSORFLOW |= {"share", "one column, share"}


@pytest.mark.parametrize(
    ("case", "runtime"),
    [
        (case, runtime)
        for case in CASES
        for runtime in RUNTIMES
        if runtime is in_tensorflow or case not in ONLY_TENSORFLOW
    ],
)
@pytest.mark.large
def test_graphs_follow_the_rule(case, runtime):
    num_columns, options, cascade = CASES[case]
    members = answers(num_columns)
    ensemble = tables(members, VOTES, is_binary=num_columns == 1)
    options = dict(options)
    scaling = options.pop("scaling", None)
    if scaling is not None:
        ensemble.run.calibration = CalibrationRecord(
            scaling.temperature,
            1,
            [10, 20, 30, 40, 50],
            VOTES,
            share=scaling.share,
        )
    graph = serving_graph(ensemble, cascade=cascade, outputs=OUTPUTS, **options)
    voted = members
    if options.get("voting") == "hard":
        voted = metrics.one_hot_votes(members)
    confidence = None if cascade == "exact" else cascade
    if isinstance(cascade, Cascade):
        confidence = cascade.confidence
    stages = cascades.stages(
        voted[BY_VOTE],
        np.array(VOTES)[BY_VOTE],
        options.get("priors"),
        scaling,
    )
    used = stages.members_used(confidence)
    # Some leave at once, or nearly so, and some not at all.
    assert used.min() < 3 and used.max() == 5
    assert (stages.clearness(confidence) > 2e-6).all()
    run = runtime(graph)
    everything = np.arange(60, dtype="int32")
    for batch in (everything, everything[:1], everything[-1:], everything[:0]):
        found = run(batch)
        assert found["members_used"].dtype == np.int32
        assert found["class"].dtype == np.int64
        np.testing.assert_array_equal(found["members_used"], used[batch])
        expected = stages.probabilities_at(used)[batch]
        np.testing.assert_allclose(
            found["probabilities"], expected, rtol=0, atol=2e-6
        )
        np.testing.assert_array_equal(
            found["class"], metrics.predicted_classes(expected)
        )
    if cascade == "exact":
        found = run(everything)["class"]
        whole = ensemble.predict(everything, verbose=0, **options)
        np.testing.assert_array_equal(found, metrics.predicted_classes(whole))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_chosen_order_is_kept(runtime):
    """Member 30 alone says what the first sample gets, 10 the second."""
    members = np.full((3, 2, 2), 0.5)
    members[2, 0] = [0.9, 0.1]
    members[0, 1] = [0.1, 0.9]
    ensemble = tables(members, [1.0, 1.0, 1.0])
    cascade = Cascade(order=(30, 10, 20), confidence=0.85)
    graph = serving_graph(ensemble, cascade=cascade, outputs=OUTPUTS)
    found = runtime(graph)(np.arange(2, dtype="int32"))
    np.testing.assert_array_equal(found["members_used"], [1, 3])
    np.testing.assert_allclose(
        found["probabilities"], [[0.9, 0.1], [1.1 / 3, 1.9 / 3]], atol=1e-6
    )


def test_one_member_is_a_cascade_too():
    ensemble = tables([[[0.3, 0.7]]], [1.0])
    graph = serving_graph(ensemble, cascade="exact", outputs=OUTPUTS)
    for runtime in RUNTIMES:
        found = runtime(graph)(np.zeros(2, "int32"))
        np.testing.assert_array_equal(found["members_used"], [1, 1])
        np.testing.assert_allclose(found["probabilities"], [[0.3, 0.7]] * 2)


# --- What is not computed ---


def test_onnx_runtime_skips_members(tmp_path):
    """Its profile lists the embeddings (`Gather`) that it looked up."""
    members = np.full((4, 2, 2), 0.5)
    members[:, 0, 0] = [0.5, 0.51, 0.49, 0.505]
    members[:, 1] = [0.99, 0.01]
    graph = serving_graph(tables(members, [1.0] * 4), cascade=0.9)
    for sample, expected in ((0, {0, 1, 2, 3}), (1, {3})):
        runs = session(
            graph,
            enable_profiling=True,
            profile_file_prefix=str(tmp_path / str(sample)),
        )
        runs.run(None, {"sample": np.full(3, sample, "int32")})
        with open(runs.end_profiling()) as file:
            names = [event["name"] for event in json.load(file)]
        ran = {m for m in range(4) if any(f"member_{m}_" in n for n in names)}
        assert ran == expected


class Counted(keras.layers.Layer):
    """Notes how many samples it was given, each time."""

    seen: list = []  # noqa: RUF012

    def build(self, shape):
        self.number = self.add_weight(shape=(), name="number")

    def call(self, x):
        def note(value, number):
            self.seen.append((int(number), len(value)))
            return value

        found = tf.numpy_function(note, [x, self.number], tf.float32)
        return tf.ensure_shape(found, x.shape)


def of_weights(model, weights, **options):
    """An ensemble with members of these weights, all with one vote."""
    run = MemoryRun(header(model, **{"method": "parallel", **options}))
    for step, values in enumerate(weights, start=1):
        model.set_weights(values)
        run.add_round(round_at(step), np.ones(8, dtype=bool), model)
    run.finish()
    return CheckpointEnsemble(run, model)


def test_tensorflow_skips_samples_and_members():
    """Of five samples, two leave after the first member, all after three."""
    inputs = keras.Input((2,))
    model = keras.Model(inputs, Counted()(inputs))
    ensemble = of_weights(model, [[np.float32(i)] for i in range(4)])
    graph = serving_graph(ensemble, cascade=0.9, outputs="members_used")
    x = np.array(
        [[0.95, 0.05]] * 2 + [[0.7, 0.3]] * 2 + [[0.2, 0.8]], "float32"
    )
    Counted.seen.clear()
    found = in_tensorflow(graph)(x)
    # 0.7 and 0.8, three times of four: ahead by 0.3 and 0.45, more than 0.25.
    np.testing.assert_array_equal(found["members_used"], [1, 1, 3, 3, 3])
    # The last first, as all have one vote.
    assert Counted.seen == [(3, 5), (2, 3), (1, 3)]
    Counted.seen.clear()
    in_tensorflow(graph)(x[:2])
    assert Counted.seen == [(3, 2)]


def frozen_backbone():
    """Three members that differ in their last layer only, and inputs."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3, name="backbone"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    kept = model.get_weights()
    generator = np.random.default_rng(2)
    weights = [
        [*kept[:2], generator.normal(0, 3, kept[2].shape), kept[3]]
        for _ in range(3)
    ]
    x = generator.normal(0, 2, size=(40, 8, 8, 3)).astype("float32")
    return of_weights(model, weights), x


def masked_backbone():
    """An embedding with a mask that all members share."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            keras.layers.Embedding(9, 4, mask_zero=True),
            keras.layers.SimpleRNN(5),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    kept = model.get_weights()
    generator = np.random.default_rng(2)
    weights = [
        [10 * kept[0], *(w + generator.normal(size=w.shape) for w in kept[1:])]
        for _ in range(3)
    ]
    x = generator.integers(0, 9, size=(40, 6)).astype("int32")
    x[::2, 3:] = 0
    return of_weights(model, weights), x


@pytest.mark.parametrize("make", [frozen_backbone, masked_backbone])
def test_what_members_share_is_gathered_with_its_mask(make):
    ensemble, x = make()
    graph = serving_graph(ensemble, cascade=0.8, outputs=OUTPUTS)
    members = np.stack(list(ensemble.member_probabilities(x, verbose=0)))[::-1]
    stages = cascades.stages(members, np.ones(3))
    used = stages.members_used(0.8)
    assert {1, 3} <= set(used)
    for runtime in RUNTIMES:
        found = runtime(graph)(x)
        np.testing.assert_array_equal(found["members_used"], used)
        np.testing.assert_allclose(
            found["probabilities"], stages.probabilities_at(used), atol=1e-5
        )


def nodes(graph):
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes(attribute.g)


def test_a_shared_backbone_is_computed_once():
    ensemble, _ = frozen_backbone()
    model = onnx_conversion.to_onnx(serving_graph(ensemble, cascade="exact"))
    operations = [node.op_type for node in nodes(model.graph)]
    assert operations.count("Conv") == 1
    assert operations.count("If") == 2
    assert "Conv" in [node.op_type for node in model.graph.node]


# --- Exports ---


@pytest.fixture(scope="module")
def ensemble():
    keras.utils.set_random_seed(5)
    return memory_ensemble(dense_model(), [1.0, 2.5, 0.7])


@pytest.mark.parametrize("export", [export_onnx, export_saved_model])
def test_exports_are_compared_and_verified(export, ensemble, tmp_path):
    artefact = export(
        ensemble,
        tmp_path / "m",
        cascade=0.9,
        outputs=OUTPUTS,
        sample_data=X,
        verbose=0,
    )
    parity = artefact.parity
    assert parity.max_difference <= 1e-5 and parity.agreement == 1
    assert parity.members_asked == "3 of 3"
    assert str(parity).endswith("samples, which needed up to 3 of 3 members")
    again = verify_artefact(artefact.path, ensemble, sample_data=X, verbose=0)
    assert again == parity
    if export is export_saved_model:
        run = opened(artefact.path)
        assert set(run({"input": X})) == set(OUTPUTS)
        with pytest.raises(KeyError):
            run({"input": X}, "members")


def test_an_artefact_with_a_confidence_for_each_is_verified(ensemble, tmp_path):
    path = tmp_path / "m.onnx"
    cascade = Cascade((1, 2, 3), (0.6, 0.45), votes=(1.0, 2.5, 0.7))
    options = {"cascade": cascade, "outputs": OUTPUTS, "sample_data": X}
    export_onnx(ensemble, path, verbose=0, **options)
    assert verify_artefact(path, ensemble, sample_data=X, verbose=0)
    model = onnx.load(path)
    [entry] = [p for p in model.metadata_props if p.key == "cascade"]
    entry.value = entry.value.replace("[0.6, 0.45]", "[0.6]")
    onnx.save(model, path)
    with pytest.raises(ValueError, match="not those of an export: cascade"):
        verify_artefact(path, ensemble, sample_data=X)


def test_metadata_say_rule_order_and_confidence(ensemble):
    order = [2, 1, 3]
    graph = serving_graph(ensemble, cascade="exact")
    assert graph.metadata()["cascade"] == {
        "rule": "exact",
        "order": order,
        "confidence": None,
    }
    graph = serving_graph(ensemble, cascade=0.75)
    assert graph.metadata()["cascade"] == {
        "rule": "confident",
        "order": order,
        "confidence": 0.75,
    }
    cascade = Cascade(confidence=(0.75, 0.5))
    metadata = serving_graph(ensemble, cascade=cascade).metadata()
    assert metadata["cascade"]["confidence"] == (0.75, 0.5)
    assert json.loads(json.dumps(metadata))["cascade"]["confidence"] == [
        0.75,
        0.5,
    ]
    with pytest.raises(ValueError, match=r"confidences \(0.5,\) for 3 members"):
        serving_graph(ensemble, cascade=Cascade(confidence=(0.5,)))


def test_another_rule_than_the_artefact_says_is_found(ensemble, tmp_path):
    """It leaves at 0.5 and says that it leaves at 0.99."""
    path = tmp_path / "m.onnx"
    export_onnx(ensemble, path, cascade=0.5, outputs=OUTPUTS, verbose=0)
    model = onnx.load(path)
    [entry] = [p for p in model.metadata_props if p.key == "cascade"]
    entry.value = entry.value.replace("0.5", "0.99")
    onnx.save(model, path)
    with pytest.raises(
        ValueError,
        match=r"its cascade used another number of members for \d+ of 40 "
        r"samples, such as 1 instead of [23]\.",
    ):
        verify_artefact(path, ensemble, sample_data=X)


def test_samples_near_the_confidence_are_not_compared():
    expected = {
        "clearness": np.array([1e-6, 1e-3, np.nan]),
        "members_used": np.array([1, 2, 1]),
        "members": np.zeros((3, 4, 2)),
    }
    found = {"members_used": np.array([3, 2, 1])}
    clear, kept = clear_exits(found, expected, 1e-5)
    np.testing.assert_array_equal(clear["members_used"], [2, 1])
    np.testing.assert_array_equal(kept["members_used"], [2, 1])
    assert members_asked(kept) == "2 of 4"
    with pytest.raises(ValueError, match="another number .* for 1 of 3 .*3 in"):
        clear_exits(found, expected, 1e-7)
    few = {name: array[:1] for name, array in expected.items()}
    with pytest.raises(
        ValueError,
        match="Every sample is so near to the confidence .* nothing can be",
    ):
        clear_exits({"members_used": np.array([1])}, few, 1e-5)


def test_triton_knows_the_type_of_members_used(ensemble, tmp_path):
    export_triton(
        ensemble,
        tmp_path / "m",
        cascade="exact",
        outputs=["probabilities", "members_used"],
        verbose=0,
    )
    text = (tmp_path / "m" / "config.pbtxt").read_text()
    assert (
        'name: "members_used"\n  data_type: TYPE_INT32\n  dims: [ 1 ]' in text
    )


# --- What does not go together ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"outputs": "members_used"},
            "outputs='members_used' is for a cascade; without one all",
        ),
        (
            {"outputs": ["class", "members"], "cascade": "exact"},
            "outputs='members' needs the answers of all members, which a",
        ),
        (
            {"outputs": "disagreement", "cascade": 0.5},
            "outputs='disagreement' needs the answers of all members",
        ),
        (
            {"outputs": "set", "cascade": 0.5},
            "outputs='set' needs the answers of all members",
        ),
        (
            {"cascade": Cascade((1, 2, 3), 0.5, scaling=Scaling(2, 0.25))},
            r"chosen with scaling=Scaling\(temperature=2, share=0\.25\), but "
            r"the export has scaling=None\. Calibrate first and then choose",
        ),
        (
            {"cascade": Cascade((3, 2, 1), 0.5, votes=(0.7, 2.5, 9.0))},
            r"chosen with votes=\(0\.7, 2\.5, 9\.0\), but the export has "
            r"\(0\.7, 2\.5, 1\.0\)\. Choose it anew",
        ),
        *(
            (
                {"cascade": value},
                r"cascade must be 'exact', a confidence above 0 and below 1, "
                r"or what ensemble\.cascade\(validation_data\) gives\.",
            )
            for value in ("exactly", 0, 1, 1.5, True, float("nan"))
        ),
        (
            {"cascade": Cascade((1, 2), 0.5, scaling=Scaling(2.0))},
            r"of the steps \[1, 2\], but the ensemble has \[1, 2, 3\]",
        ),
        (
            {"cascade": 0.5, "voting": "hard"},
            r"is for voting='soft': .* Use cascade='exact'\.",
        ),
        (
            {"cascade": Cascade((1, 2, 3), 0.5), "priors": [0.5, 0.3, 0.2]},
            r"chosen with priors=None, but the export has priors=\(0\.5, ",
        ),
        (
            {"cascade": Cascade((1, 2, 3), 0.5, (0.5, 0.3, 0.2))},
            r"chosen with priors=\(0\.5, 0\.3, 0\.2\), but the export has "
            r"priors=None\. Give the same to ensemble\.cascade",
        ),
        ({"cascade": 0.5, "priors": [0, 0, 0]}, "^priors must be positive"),
        (
            {"cascade": 0.5, "inputs": keras.Input(batch_shape=(2, 4))},
            "takes batches of just 2, but later members get fewer samples",
        ),
    ],
)
def test_what_a_cascade_cannot_be(options, message, ensemble):
    with pytest.raises(ValueError, match=message):
        serving_graph(ensemble, **options)


def test_a_cascade_chosen_with_priors_goes_with_them(ensemble):
    shares = (0.5, 0.3, 0.2)
    cascade = Cascade((1, 2, 3), 0.5, priors=shares)
    graph = serving_graph(ensemble, cascade=cascade, priors=[5, 3, 2])
    assert graph.options.cascade is not None


def test_litert_has_no_branches(ensemble, tmp_path):
    with pytest.raises(ValueError, match="cascade is for SavedModel, ONNX and"):
        export_litert(ensemble, tmp_path / "m.tflite", cascade="exact")


def test_half_precision_cannot_decide(ensemble, tmp_path):
    with pytest.raises(
        ValueError,
        match="precision='float16' is for exports without a cascade",
    ):
        export_onnx(
            ensemble,
            tmp_path / "m.onnx",
            precision="float16",
            cascade="exact",
            verbose=0,
        )
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize("cascade", ["exact", 0.6])
def test_branches_in_eight_bits(cascade, tmp_path):
    """Members are within branches, each with weights in eight bits there."""
    keras.utils.set_random_seed(6)
    inputs = keras.Input((4,), name="values")
    hidden = keras.layers.Dense(16, activation="relu")(inputs)
    outputs = keras.layers.Dense(3, activation="softmax")(hidden)
    ensemble = memory_ensemble(keras.Model(inputs, outputs), [1.0, 2.5, 0.7])
    path = tmp_path / "m.onnx"
    x = np.random.default_rng(0).normal(0, 3, (300, 4)).astype("float32")
    artefact = export_onnx(
        ensemble,
        path,
        precision="int8",
        calibration_data=x,
        cascade=cascade,
        outputs=OUTPUTS,
        verbose=0,
    )
    assert artefact.parity.members_asked == "3 of 3"
    assert verify_artefact(path, ensemble, sample_data=x, verbose=0)
    members = np.stack(list(ensemble.member_probabilities(x, verbose=0)))
    confidence = None if cascade == "exact" else cascade
    order = [1, 0, 2]
    stages = cascades.stages(members[order], ensemble.votes[order])
    used = stages.members_used(confidence)
    found = run_onnx(path, {"values": x})
    assert set(used) == {1, 2, 3}
    assert np.mean(found["members_used"] == used) > 0.9
    is_same = found["members_used"] == used
    np.testing.assert_allclose(
        found["probabilities"][is_same],
        stages.probabilities_at(used)[is_same],
        rtol=0,
        atol=0.05,
    )
    # Two kernels of each member, the first at the top and one in each branch.
    bodies, graph = [], onnx.load(path).graph
    while graph is not None:
        weights = [
            tensor
            for tensor in graph.initializer
            if tensor.data_type == onnx.TensorProto.INT8
            and len(tensor.dims) == 2
        ]
        bodies.append(len(weights))
        choices = [node for node in graph.node if node.op_type == "If"]
        graph = None
        for node in choices:
            [graph] = [a.g for a in node.attribute if a.name == "then_branch"]
    assert bodies == [2, 2, 2]
