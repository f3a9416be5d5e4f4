"""What members say together, and the calibration of that."""

from collections.abc import Iterator
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cbnn_keras import calibration, metrics
from cbnn_keras.calibration import CalibrationRecord, Scaling
from cbnn_keras.data.labelled import as_pair, check_same_length
from cbnn_keras.ensemble.adjusting import adjusted_arrays
from cbnn_keras.ensemble.members import Members, readable_inputs
from cbnn_keras.ensemble.voting import checked_priors
from cbnn_keras.support import arguments
from cbnn_keras.support.console import Reporter

# Of a probability: by how much runtimes differ that agree.
_OTHER_BITS = 1e-5


class PredictOptions(TypedDict, total=False):
    """Arguments that `evaluate` shares with `predict`."""

    batch_size: int | None
    voting: str
    priors: ArrayLike | None
    calibrated: bool
    verbose: int


class Predictor(Members):
    """Members that predict together; `CheckpointEnsemble` is one."""

    def predict(
        self,
        x: Any,
        *,
        batch_size: int | None = None,
        voting: str = "soft",
        priors: ArrayLike | None = None,
        calibrated: bool = True,
        verbose: int = 1,
    ) -> np.ndarray:
        """Probabilities of the ensemble.

        Args:
            x: Whatever the model's `predict` accepts; a dataset must give the
                same order in every pass.
            batch_size: As in `keras.Model.predict`.
            voting: `"soft"` averages probabilities, `"hard"` one-hot votes (the
                paper's equation; ties go to the lower class).
            priors: Shares of the classes in training, shape `(num_classes,)`,
                such as `imbalance.class_priors(labels)`: what was averaged is
                divided by them and by its sum, so that rare classes are not
                at a disadvantage. For soft voting only.
            calibrated: Whether what `calibrate` found is applied, where it was
                called for these members and votes. Defaults to True. For soft
                voting only, and before `priors`.
            verbose: 0 for no progress bar.

        Returns:
            Shape `(num_samples, num_classes)`, or `(num_samples, 1)`, the
            probability of class 1, for a model with one sigmoid output.
        """
        priors = checked_priors(voting, priors, self.classifier)
        average = self._average(x, batch_size, voting, verbose)
        scaling = self.scaling(voting, calibrated)
        return adjusted_arrays(average, scaling, priors).astype(np.float32)

    def staged_predict(
        self,
        x: Any,
        *,
        batch_size: int | None = None,
        voting: str = "soft",
        priors: ArrayLike | None = None,
        calibrated: bool = True,
        verbose: int = 1,
    ) -> Iterator[np.ndarray]:
        """Predictions of the first member, the first two, ..., all of them.

        Takes the arguments of `predict`; each member predicts once. What was
        calibrated is the mean of all members, and is applied in every stage.
        """
        checked = checked_priors(voting, priors, self.classifier)
        outputs = self.member_probabilities(x, batch_size, verbose)
        scaling = self.scaling(voting, calibrated)
        return self._stages(outputs, voting, scaling, checked)

    def calibrate(
        self,
        validation_data: Any,
        *,
        coverage: float | None = None,
        batch_size: int | None = None,
        verbose: int = 1,
    ) -> CalibrationRecord:
        """Fits a temperature, so that probabilities mean what they say.

        And a share of 1/k for every class, where the data ask for one, see
        `calibration.fit`. Both are kept in the run, on disk too, in place of
        earlier ones, and are applied from then on wherever these members
        predict with these votes: here, in models and in exports. With other
        members or votes, as after `select`, they are not: calibrate what was
        selected. Predicted classes stay what they are, unless priors are given.

        Args:
            validation_data: `(x, y)` or a dataset of batches that training has
                not seen, a thousand samples or more. Judge the result on
                others.
            coverage: Also finds which classes are likely enough to be in the
                set of a sample, so that the label is in it for this share of
                new samples, such as 0.9; see `prediction_sets`.
            batch_size: As in `predict`.
            verbose: 0 for no output.

        Returns:
            What was found; it is also `ensemble.calibration`.

        Raises:
            ValueError: If the run is not finished, if the data are those of
                training, or too few, or tell no temperature.
            RunError: If the directory holds another run by now, or if another
                process writes to it.
        """
        name = "calibrate()"
        if not self.run.is_finished:
            raise ValueError(
                f"{name}: the run is not finished, and its members may change. "
                "Finish training first."
            )
        if coverage is not None:
            coverage = arguments.number(
                "calibrate",
                "coverage",
                coverage,
                above=0,
                below=1,
                allowed="between 0 and 1, both excluded",
            )
        inputs, labels = self.split_labels(*as_pair(validation_data), name)
        if self.run.is_trained_on(labels):
            raise ValueError(
                f"{name}: these are the training data, or those that a soup "
                "was made with, on which members are surer than on any others. "
                "Give data that they have not seen."
            )
        raw = self._average(inputs, batch_size, "soft", verbose)
        check_same_length(name, len(labels), len(raw))
        scaling = _checked_scaling(raw, labels)
        scaled = scaling(raw).astype(np.float32)
        threshold = None
        if coverage is not None:
            found = calibration.conformal_threshold(scaled, labels, coverage)
            # Many samples may be equally sure. In other runtimes, which have
            # other last bits, they are not to fall out of the sets together.
            threshold = found * (1 - _OTHER_BITS)
        record = CalibrationRecord(
            scaling.temperature,
            len(labels),
            list(self._steps),
            [float(vote) for vote in self.votes],
            coverage,
            threshold,
            scaling.share,
        )
        self.run.keep_calibration(record)
        before, after = (
            metrics.negative_log_likelihood(p, labels) for p in (raw, scaled)
        )
        Reporter(verbose).line(
            f"{scaling} from {len(labels):,} samples, on which the negative "
            f"log-likelihood went from {before:.4f} to {after:.4f}"
        )
        return record

    def prediction_sets(
        self, x: Any, *, batch_size: int | None = None, verbose: int = 1
    ) -> NDArray[np.bool_]:
        """Which classes each sample may well be of, at the chosen coverage.

        See `calibration.conformal_threshold` for what is promised. A set can
        have no class: then none is likely enough.

        Args:
            x: As in `predict`.
            batch_size: As in `predict`.
            verbose: 0 for no progress bar.

        Returns:
            Shape `(num_samples, num_classes)`, also of two.

        Raises:
            ValueError: Unless these members were calibrated with a `coverage`.
        """
        threshold = needed_threshold(self.calibration)
        found = self.predict(x, batch_size=batch_size, verbose=verbose)
        return calibration.prediction_sets(found, threshold)

    def scaling(self, voting: str, calibrated: bool) -> Scaling | None:
        """What averages are scaled by in a way to predict, or None."""
        record = self.calibration
        if record is None or voting != "soft" or not calibrated:
            return None
        return record.scaling

    def _average(
        self, x: Any, batch_size: int | None, voting: str, verbose: int
    ) -> NDArray[np.float64]:
        inputs = readable_inputs(x, batch_size)
        mean = metrics.RunningMean()
        length = None
        with self._lent() as load:
            for step, vote in Reporter(verbose).track(
                zip(self._steps, self.votes, strict=True),
                len(self._steps),
                "members predict",
            ):
                found = self.classifier.predict(load(step), inputs, batch_size)
                length = len(found) if length is None else length
                check_same_length("The inputs", length, len(found))
                if voting == "hard":
                    found = metrics.one_hot_votes(found)
                mean.add(found, vote)
        return mean.value

    def _stages(
        self,
        outputs: Iterator[np.ndarray],
        voting: str,
        scaling: Scaling | None,
        priors: np.ndarray | None,
    ) -> Iterator[np.ndarray]:
        mean = metrics.RunningMean()
        for vote, found in zip(self.votes, outputs, strict=True):
            if voting == "hard":
                found = metrics.one_hot_votes(found)
            average = mean.add(found, vote)
            shown = adjusted_arrays(average, scaling, priors)
            yield shown.astype(np.float32)


def needed_threshold(record: CalibrationRecord | None) -> float:
    """The least probability of a class in a set.

    Raises:
        ValueError: If no coverage was chosen, or nothing calibrated.
    """
    if record is None or record.threshold is None:
        raise ValueError(
            "Sets need a coverage that these members and votes were calibrated "
            "for: ensemble.calibrate((x_val, y_val), coverage=0.9)."
        )
    return record.threshold


def _checked_scaling(probabilities: np.ndarray, labels: np.ndarray) -> Scaling:
    scaling = calibration.fit(probabilities, labels)
    found = scaling.temperature
    low = 1.01 * calibration.SMALLEST_TEMPERATURE
    high = 0.99 * calibration.LARGEST_TEMPERATURE
    if not low < found < high:
        how = "right" if found <= low else "no better than chance"
        raise ValueError(
            f"calibrate(): no temperature can be told from these {len(labels)} "
            f"samples, on which the ensemble is {how}: any that is "
            f"{'lower' if found <= low else 'higher'} would be better. Give "
            "more samples, with labels in their order."
        )
    return scaling
