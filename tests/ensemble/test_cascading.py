import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs, header, round_at, trained

from cbnn_keras import CheckpointEnsemble, cascades, imbalance
from cbnn_keras.export import export_onnx
from cbnn_keras.runs.run import MemoryRun

NUM = 3000


@pytest.fixture(scope="module")
def problem():
    """Three members that look samples up, and labels: the second is best."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, NUM)
    inputs = keras.Input((), dtype="int32")
    outputs = keras.layers.Embedding(NUM, 3)(inputs)
    model = keras.Model(inputs, outputs)
    run = MemoryRun(header(model))
    members = []
    for number, skill in enumerate((0.5, 5.0, 4.5)):
        logits = skill * np.eye(3)[labels] + generator.normal(0, 1.5, (NUM, 3))
        found = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        members.append(found.astype("float32"))
        model.set_weights([members[-1]])
        record = round_at(10 * number + 10, vote=1.0 + number)
        run.add_round(record, np.ones(8, dtype=bool), model)
    run.finish()
    ensemble = CheckpointEnsemble(run, model)
    return ensemble, np.arange(NUM, dtype="int32"), labels, np.stack(members)


def test_order_and_confidence_are_chosen(problem, capsys):
    ensemble, x, y, members = problem
    cascade = ensemble.cascade((x, y), loss=0.005)
    assert cascade.order == (20, 30, 10)
    assert cascade.priors is None
    assert cascade.votes == (2.0, 3.0, 1.0)
    order = [1, 2, 0]
    stages = cascades.stages(members[order], ensemble.votes[order])
    used = stages.members_used(cascade.confidence)
    assert cascade.mean_members == pytest.approx(used.mean())
    right = stages.probabilities_at(used).argmax(axis=1) == y
    whole = ensemble.evaluate(x, y, verbose=0)["accuracy"]
    assert cascade.loss == pytest.approx(whole - right.mean())
    assert cascade.loss <= 0.005 and 1 < cascade.mean_members < 1.5
    assert f"{cascade}." in " ".join(capsys.readouterr().out.split())
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(500)
    assert ensemble.cascade(data, loss=0.005, verbose=0) == cascade


def test_priors_are_those_of_the_export(problem):
    ensemble, x, y, members = problem
    cascade = ensemble.cascade((x, y), priors=[5, 3, 2], verbose=0)
    assert cascade.priors == (0.5, 0.3, 0.2)
    order = [ensemble.rounds[i].step for i in range(3)]
    positions = [order.index(step) for step in cascade.order]
    stages = cascades.stages(
        imbalance.threshold(members[positions[:1]], [5, 3, 2]), [1.0]
    )
    is_sure = stages.confidences[0] >= cascade.confidence[0]
    assert cascade.mean_members == pytest.approx(1 + (~is_sure).mean(), abs=1)


def test_the_first_can_be_chosen(problem):
    ensemble, x, y, members = problem
    cascade = ensemble.cascade((x, y), loss=0.005, first=30, verbose=0)
    assert cascade.order == (30, 20, 10)
    with pytest.raises(
        ValueError, match=r"first=31\): must be the step .* \[10, 20, 30\]"
    ):
        ensemble.cascade((x, y), first=31, verbose=0)


def test_few_samples_make_it_exact(problem):
    ensemble, x, y, _ = problem
    cascade = ensemble.cascade((x[:500], y[:500]), verbose=0)
    assert cascade.confidence is None and cascade.loss == 0
    assert cascade.mean_members > 1.5


def test_a_student_is_asked_first(tmp_path):
    """It votes with the mean of the members' votes, behind them."""
    x, y = blobs()
    made = trained(data=(x, y))[0].ensemble()
    student = made.distil(x, y, epochs=1, verbose=0)
    joined = made.with_student(student)
    [record] = student.rounds
    step = made.rounds[-1].step + record.step
    assert [r.step for r in joined.rounds] == [
        *(r.step for r in made.rounds),
        step,
    ]
    np.testing.assert_allclose(joined.votes, [*made.votes, made.votes.mean()])
    said = made.predict(x, verbose=0) * made.votes.sum()
    said += made.votes.mean() * student.predict(x, verbose=0)
    np.testing.assert_allclose(
        joined.predict(x, verbose=0),
        said / (made.votes.sum() + made.votes.mean()),
        atol=1e-6,
    )
    joined.save(tmp_path / "joined")
    loaded = CheckpointEnsemble.load(tmp_path / "joined")
    np.testing.assert_array_equal(
        loaded.predict(x, verbose=0), joined.predict(x, verbose=0)
    )
    cascade = joined.cascade((x, y), loss=0.2, first=step, verbose=0)
    assert cascade.order[0] == step
    artefact = export_onnx(
        joined, tmp_path / "m.onnx", cascade=cascade, sample_data=x, verbose=0
    )
    assert artefact.parity.max_difference <= 1e-5


def test_who_is_no_student():
    x, y = blobs()
    made = trained(data=(x, y))[0].ensemble()
    with pytest.raises(ValueError, match="must be one network, .* not 2 memb"):
        made.with_student(made.take([m["step"] for m in made.members[-2:]]))
    small = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, activation="softmax")]
    )
    other = made.distil(x, y, student=small, epochs=1, verbose=0)
    with pytest.raises(ValueError, match="must have the members' architecture"):
        made.with_student(other)
    few = made.distil(x[:-2], y[:-2], epochs=1, verbose=0)
    with pytest.raises(
        ValueError, match=f"made from {len(x) - 2} samples .* from {len(x)}"
    ):
        made.with_student(few)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": 0}, r"cascade\(loss=0\): loss must be a share .*'exact'\.$"),
        ({"loss": 1}, "loss must be a share of the samples above 0 and below"),
        (
            {"standard_errors": -1},
            r"cascade\(standard_errors=-1\): .* a number of at least 0\.$",
        ),
        ({"priors": [0.5, 0.5]}, "priors have the shape"),
    ],
)
def test_what_cannot_be_right_is_refused(options, message, problem):
    ensemble, x, y, _ = problem
    with pytest.raises(ValueError, match=message):
        ensemble.cascade((x, y), verbose=0, **options)


def test_data_must_have_labels(problem):
    ensemble, x, y, _ = problem
    with pytest.raises(ValueError, match=r"must be `\(x, y\)` or a tf.data"):
        ensemble.cascade(x, verbose=0)
    with pytest.raises(ValueError, match="2999 labels for inputs of length"):
        ensemble.cascade((x, y[:-1]), verbose=0)
