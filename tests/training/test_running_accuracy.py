"""Tests of the accuracy of an ensemble that is still growing."""

import numpy as np
import pytest
from helpers import blobs, dense_model, memory_ensemble
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
    found = []
    for step, vote in zip((1, 2), (1.0, 2.0), strict=True):
        with ensemble.member(step) as model:
            accuracy.add_member(model, vote)
        found.append(accuracy.accuracy())
    # The third is asked about and not taken in.
    with ensemble.member(3) as model:
        for _ in range(2):
            assert accuracy.accuracy_with(model, 4.0) == expected[2]
        assert accuracy.accuracy() == expected[1]
        accuracy.add_member(model, 4.0)
    assert [*found, accuracy.accuracy()] == expected


def test_data_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"^Labels must be integers in 0\.\.2"):
        RunningAccuracy((X, Y + 1), Classifier(3, False, False), 16)
