"""The methods that CBNN is compared with, on the same data, into the same runs.

Each is a callback that is used as `CBNNCallback` is, and leaves a run directory
that loads, selects, inspects and exports like any other:

    sse = SnapshotEnsemble("runs/sse", num_checkpoints=6)
    train = sse.weighted(x_train, y_train, batch_size=128)
    model.fit(train, epochs=60, callbacks=[sse])
    sse.ensemble().evaluate(x_test, y_test)

Only Snapshot Boosting changes sample weights; with the others they stay 1.
In `fit`'s logs their names begin with `ensemble_`, as in `ensemble_error`.
"""

from cbnn_keras.baselines.fast_geometric import FastGeometricEnsemble
from cbnn_keras.baselines.horizontal_voting import HorizontalVoting
from cbnn_keras.baselines.parallel import parallel_ensemble
from cbnn_keras.baselines.plain import PlainCheckpoints
from cbnn_keras.baselines.snapshot import SnapshotEnsemble
from cbnn_keras.baselines.snapshot_boosting import SnapshotBoosting
from cbnn_keras.baselines.weight_averaging import StochasticWeightAveraging

__all__ = [
    "FastGeometricEnsemble",
    "HorizontalVoting",
    "PlainCheckpoints",
    "SnapshotBoosting",
    "SnapshotEnsemble",
    "StochasticWeightAveraging",
    "parallel_ensemble",
]
