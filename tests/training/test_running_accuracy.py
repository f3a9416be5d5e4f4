"""Tests of the accuracy of an ensemble that is still growing."""

import numpy as np
import pytest
from helpers import blobs, dense_model, memory_ensemble, round_at
from sklearn.metrics import accuracy_score

from cbnn_keras.models.classifier import Classifier
from cbnn_keras.training.running_accuracy import RunningAccuracy

X, Y = blobs(60)[0] + np.float32(0.3), blobs(60)[1]


def test_growing_ensemble_is_judged_as_the_finished_one():
    ensemble = memory_ensemble(dense_model(), [1.0, 2.0, 4.0])
    accuracy = RunningAccuracy((X, Y), Classifier(3, False, False), 16)
    expected = [
        accuracy_score(Y, stage.argmax(axis=1))
        for stage in ensemble.staged_predict(X, verbose=0)
    ]
    members = list(ensemble.member_probabilities(X, verbose=0))
    blend = members[0] + 2 * members[1] + 2 * members[2]
    with_two = accuracy_score(Y, blend.argmax(axis=1))
    found = []
    for step, vote in zip((1, 2), (1.0, 2.0), strict=True):
        with ensemble.member(step) as model:
            said = accuracy.predict(model)
        accuracy.add_member(said, round_at(step, vote))
        found.append(accuracy.accuracy(list(range(1, step + 1))))
    # The third is asked about and not taken in.
    with ensemble.member(3) as model:
        for _ in range(2):
            # With the vote of the last one.
            assert accuracy.accuracy_with([1, 2], model) == with_two
        assert accuracy.accuracy([1, 2]) == expected[1]
        accuracy.add_member(accuracy.predict(model), round_at(3, 4.0))
    assert [*found, accuracy.accuracy([1, 2, 3])] == expected
    alone = accuracy_score(Y, members[1].argmax(axis=1))
    assert accuracy.accuracy([2]) == alone


def test_outputs_that_are_no_numbers_have_no_loss():
    accuracy = RunningAccuracy((X, Y), Classifier(3, False, False), 16)
    found = np.full((60, 3), 1 / 3)
    assert accuracy.loss(found) == pytest.approx(np.log(3))
    found[7, 1] = np.nan
    with pytest.raises(ValueError, match="validation_data=.*not finite. Look"):
        accuracy.loss(found)


def test_data_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"^Labels must be integers in 0\.\.2"):
        RunningAccuracy((X, Y + 1), Classifier(3, False, False), 16)
