"""Keras' own progress bar, without columns that say nothing yet.

Before the first round there is no error and no vote. Logs have their keys from
the first epoch on all the same: `CSVLogger` takes its columns from it.
"""

from collections.abc import Iterable
from typing import Any

import keras

from cbnn_keras.support.aliases import Logs


def hide_empty_columns(
    callbacks: Iterable[keras.callbacks.Callback], prefix: str
) -> None:
    """Lets progress bars of a `fit` pass over what is no number.

    Args:
        callbacks: All callbacks of the `fit`.
        prefix: What the names in the logs begin with that are ours; others are
            shown whatever they are.
    """
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.ProgbarLogger):
            _hide(callback, prefix)


def _hide(bar: keras.callbacks.ProgbarLogger, prefix: str) -> None:
    def on_epoch_end(epoch: int, logs: Logs | None = None) -> None:
        shown = {
            name: value
            for name, value in (logs or {}).items()
            if not (name.startswith(prefix) and _is_nan(value))
        }
        type(bar).on_epoch_end(bar, epoch, shown)

    # On the bar of this `fit` alone, which Keras makes anew for each.
    vars(bar)["on_epoch_end"] = on_epoch_end


def _is_nan(value: Any) -> bool:
    return bool(value != value)
