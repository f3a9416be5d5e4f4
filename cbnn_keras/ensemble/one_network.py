"""A network that is a run of its own: what members have become."""

import abc
import dataclasses
import os
import pathlib
from typing import Any, Self

import keras
import numpy as np

from cbnn_keras import metrics
from cbnn_keras.data.labelled import as_pair
from cbnn_keras.data.labelled_samples import LabelledSamples
from cbnn_keras.ensemble.predicting import Predictor
from cbnn_keras.models import copying
from cbnn_keras.models.classifier import Classifier
from cbnn_keras.models.foreign import Foreign
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.manifest import Header, Round, Settings
from cbnn_keras.runs.run import MemoryRun, labels_id
from cbnn_keras.support.aliases import Json
from cbnn_keras.version import __version__

DEFAULT_BATCH_SIZE = 32
Directory = str | os.PathLike[str] | None


@dataclasses.dataclass(frozen=True)
class Network:
    """A model, how it is read, and how it was read from a file, if it was."""

    model: keras.Model
    classifier: Classifier
    foreign: Foreign | None


class OneNetwork(Predictor):
    """Members that can become one network."""

    @abc.abstractmethod
    def as_model(self, *, inputs: Any = None) -> keras.Model: ...

    def _read(self, x: Any, y: Any, name: str) -> LabelledSamples:
        names = self.run.header.class_names
        if y is None and isinstance(x, tuple):  # as `calibrate` takes them
            x, y = as_pair(x, f"{name}: the data")
        return LabelledSamples.read(x, y, self.classifier, names, name)

    def _origin(self) -> Json:
        """Which members a network was made of, for its manifest."""
        return {
            "made_of": self.run.header.method,
            "made_of_members": list(self._steps),
            "made_of_votes": [float(vote) for vote in self.votes],
        }

    def _alone(
        self,
        network: Network,
        method: str,
        settings: Settings,
        data: LabelledSamples,
        directory: Directory,
    ) -> Self:
        """A run whose only member is a network, scored on its samples."""
        model, classifier = network.model, network.classifier
        num_samples = len(data.labels)
        header = Header(
            method=method,
            package_version=__version__,
            num_classes=classifier.num_classes,
            num_samples=num_samples,
            is_binary=classifier.is_binary,
            from_logits=classifier.from_logits,
            num_parameters=model.count_params(),
            architecture=copying.architecture_id(model),
            labels=labels_id(
                data.labels, np.full(num_samples, 1 / num_samples)
            ),
            settings=settings,
            class_names=self.run.header.class_names,
        )
        found = classifier.predict(model, data.inputs)
        correct = metrics.strictly_right(found, data.labels)
        run = MemoryRun(header)
        last = self.run.round_at(self._steps[-1])
        step, epoch = last.step, last.epoch
        if settings.total_steps is not None:
            step, epoch = settings.total_steps, settings.own["epochs"] - 1
        record = Round(
            step=step,
            epoch=epoch,
            negative_log_likelihood=metrics.negative_log_likelihood(
                found, data.labels
            ),
            class_error=metrics.class_error(
                correct, data.labels, run.first_distribution
            ),
            **dataclasses.asdict(run.replay().add(correct, is_final=True)),
        )
        run.add_round(record, correct, model)
        run.finish()
        alone = type(self)(run, model, foreign=network.foreign)
        if directory is None:
            return alone
        path = pathlib.Path(directory).absolute()
        alone.save(path)
        return type(self)(
            RunDirectory.open(path), model, foreign=network.foreign
        )
