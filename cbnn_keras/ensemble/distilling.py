"""The method `distil`: one network that learns what an ensemble says."""

import dataclasses
import math
import pathlib
import random
from typing import Any, Self

import keras
import numpy as np

from cbnn_keras import metrics
from cbnn_keras.boosting_policies import EqualVotes
from cbnn_keras.data.indexed import Augment
from cbnn_keras.data.labelled import as_pair
from cbnn_keras.data.labelled_samples import (
    LabelledSamples,
    inputs_in_order,
    read_unlabelled,
)
from cbnn_keras.ensemble import soft_targets
from cbnn_keras.ensemble.distillation import (
    Lesson,
    Material,
    check_can_be_blended,
    epoch_counter,
    usual_mixup,
)
from cbnn_keras.ensemble.one_network import (
    DEFAULT_BATCH_SIZE,
    Directory,
    Network,
    OneNetwork,
)
from cbnn_keras.models import copying
from cbnn_keras.models.classifier import describe_classifier
from cbnn_keras.models.fresh import fresh_weights, starts_anew
from cbnn_keras.models.state import process_generators_kept
from cbnn_keras.runs.manifest import Settings
from cbnn_keras.runs.saving import check_free

# As long as the run, students keep 74 to 100 % of what the ensemble gains over
# a single network; twice as long, 78 to 99 % (docs/one_network.md).
TIMES_THE_RUN = 2
DEFAULT_EPOCHS = 30  # for a run that was put together


class Distilling(OneNetwork):
    """Members that can teach one network."""

    def distil(
        self,
        x: Any,
        y: Any = None,
        *,
        student: keras.Model | None = None,
        directory: Directory = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        unlabelled: Any = None,
        augment: Augment | None = None,
        mixup: float | None = None,
        temperature: float = 1.0,
        alpha: float = 0.0,
        optimizer: Any = None,
        from_logits: bool | None = None,
        seed: int | None = None,
        verbose: int = 1,
    ) -> Self:
        """One network that has learnt what the ensemble says.

        It costs what one member costs. `ensemble.distil(student, (x, y))` and
        `ensemble.distil(student, dataset)` are understood too.

        Args:
            x: The training inputs, in any form that `weighted` takes.
            y: Their labels; left out with a dataset or with `(x, y)`.
            student: The model to train, in place; what it is compiled with
                stays. Defaults to a copy of the members' architecture with
                fresh weights; `ensemble.member_models()[-1]` goes on from the
                last member.
            directory: Where the student is kept, as a run of one member: a new
                directory, or an empty one. Defaults to None, in memory.
            epochs: Passes over the samples. Defaults to None: as many as take
                twice the steps of the run, or 30 if it was put together.
            batch_size: Defaults to that of the run, or else of the dataset, or
                else 32.
            unlabelled: More inputs, without labels: arrays like `x`, or a
                dataset of batches of inputs. A batch then has as many of them
                beside those with labels.
            augment: `augment(x, seed)` of one sample, as in `weighted`. The
                ensemble sees what the student sees, so that it predicts every
                batch, which takes longer.
            mixup: a of Beta(a, a): blends each sample with another one, so
                that the ensemble says something new in every batch, which it
                predicts as with `augment`. Of integers, such as tokens, each
                entry is that of one sample or of the other. Defaults to None:
                1, or 0 if inputs are texts or Keras cannot copy the members'
                class. 0 is none: the ensemble predicts
                each sample once, and training is faster and the student worse.
            temperature: What logits are divided by, those of the student and,
                as far as probabilities have them, those of the ensemble: above
                1, classes that are not predicted count for more. Gradients
                grow with it: take a smaller learning rate along.
            alpha: The share of the labels in the loss, beside what the
                ensemble says.
            optimizer: A name or an optimizer of Keras. Defaults to that of
                a student that is compiled, or else Adam. Its learning rate
                falls to zero along a cosine, unless it is a schedule.
            from_logits: Whether a student of your own gives logits. Defaults
                to None: read from its loss and its last activation.
            seed: Integer: equal ones give equal students. Defaults to one
                drawn from Python's generator.
            verbose: As in `fit`; 0 for no progress bar.

        Returns:
            An ensemble of one member.

        Raises:
            RunError: If there is something in the directory.
            ValueError: For arguments that do not fit.
        """
        if isinstance(x, keras.Model) or x is None:
            student, (x, y) = x, as_pair(y, "distil(student, data): data")
        if directory is not None:
            check_free(pathlib.Path(directory).absolute())
        data = self._read(x, y, "distil()")
        if mixup is None:
            mixup = usual_mixup(data.first) if self._can_be_asked() else 0.0
        lesson = Lesson(
            batch_size=self._batch_size(batch_size, data),
            seed=random.randrange(2**31) if seed is None else seed,
            epochs=1 if epochs is None else epochs,
            temperature=temperature,
            alpha=alpha,
            mixup=mixup,
            augment=augment,
        )
        others = None if unlabelled is None else read_unlabelled(unlabelled)
        material = Material(data, others)
        if epochs is None:
            usual = self._usual_epochs(material.num_steps(lesson))
            lesson = dataclasses.replace(lesson, epochs=usual)
        if lesson.mixup:
            check_can_be_blended(data.first)
        network = self._student(student, data, from_logits, lesson.seed)
        made = soft_targets.fresh_optimizer(
            optimizer,
            network.model,
            lesson.epochs * material.num_steps(lesson),
        )
        self._teach(network, material, lesson, made, verbose)
        return self._alone(
            network,
            "distilled",
            self._settings(lesson, material, made),
            data,
            directory,
        )

    def _can_be_asked(self) -> bool:
        """Whether members can be put together, to be asked in every step."""
        try:
            copying.copies(self.model, 1, foreign=self.foreign)
        except ValueError:  # of a class without a config
            return False
        return True

    def _usual_epochs(self, steps_per_epoch: int) -> int:
        """Those of twice the steps of the run, as far as it has any."""
        if self.run.header.settings.total_steps is None:
            return DEFAULT_EPOCHS
        # Not the total: it may have been stopped early.
        num_steps = TIMES_THE_RUN * self.run.rounds[-1].step
        return math.ceil(num_steps / steps_per_epoch)

    def _batch_size(self, given: int | None, data: LabelledSamples) -> int:
        if given is not None:
            return given
        own = self.run.header.settings.batch_size
        return own or data.batch_size or DEFAULT_BATCH_SIZE

    def _student(
        self,
        given: keras.Model | None,
        data: LabelledSamples,
        from_logits: bool | None,
        seed: int,
    ) -> Network:
        """The model to train: the user's, or a copy with fresh weights."""
        if given is None:
            with process_generators_kept():
                random.seed(seed)  # of Dropout and its kin
                [model] = copying.copies(self.model, 1, foreign=self.foreign)
            # What is frozen is as the members have it.
            self.run.load_member(self._steps[-1], model)
            drawn = fresh_weights(model, data.first, seed)
            for variable, value, is_anew in zip(
                model.weights, drawn, starts_anew(model), strict=True
            ):
                if is_anew:
                    variable.assign(value)
            return Network(model, self.classifier, self.foreign)
        classifier = describe_classifier(given, data.first, from_logits)
        if classifier.num_classes != self.classifier.num_classes:
            raise ValueError(
                "distil(student=...): the student has "
                f"{classifier.num_classes} classes and the ensemble "
                f"{self.classifier.num_classes}. Give it as many outputs."
            )
        return Network(given, classifier, None)

    def _teach(
        self,
        network: Network,
        material: Material,
        lesson: Lesson,
        optimizer: keras.optimizers.Optimizer,
        verbose: int,
    ) -> None:
        teacher = None
        if lesson.has_views:
            inputs = None
            if not getattr(self.model, "inputs", None):  # subclassed
                inputs = keras.tree.map_structure(
                    lambda part: keras.Input(
                        part.shape[1:], dtype=part.dtype.name
                    ),
                    material.labelled.first,
                )
            teacher = self.as_model(inputs=inputs)
        else:
            said = [
                self.predict(inputs_in_order(samples), verbose=verbose)
                for samples in material.parts
            ]
            soft = metrics.class_columns(np.concatenate(said))
            material = dataclasses.replace(
                material, soft=soft.astype(np.float32)
            )
        num_classes = network.classifier.num_classes
        epoch = epoch_counter()
        soft_targets.teach(
            network.model,
            network.classifier,
            material.batches(lesson, num_classes, epoch),
            epoch,
            optimizer,
            epochs=lesson.epochs,
            temperature=lesson.temperature,
            alpha=lesson.alpha,
            teacher=teacher,
            verbose=verbose,
        )

    def _settings(
        self,
        lesson: Lesson,
        material: Material,
        optimizer: keras.optimizers.Optimizer,
    ) -> Settings:
        others = material.unlabelled
        return Settings(
            EqualVotes(),
            {
                **self._origin(),
                "epochs": lesson.epochs,
                "temperature": lesson.temperature,
                "alpha": lesson.alpha,
                "mixup": lesson.mixup,
                "is_augmented": lesson.augment is not None,
                "num_unlabelled": others.num_samples if others else 0,
            },
            total_steps=lesson.epochs * material.num_steps(lesson),
            first_epoch=0,
            optimizer=type(optimizer).__name__,
            seed=lesson.seed,
            batch_size=lesson.batch_size,
            shuffle=True,
        )
