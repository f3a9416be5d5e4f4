"""Sections of a report that show samples: hard ones, and suspicious labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cbnn_keras.analysis import samples
from cbnn_keras.analysis.findings import Findings, Scrutiny
from cbnn_keras.analysis.page import (
    Exhibit,
    Member,
    Part,
    Sample,
    Section,
    Table,
    missing,
)

_NUM_SHOWN = 24


class ClassNames:
    """What classes are called."""

    def __init__(self, names: Sequence[str] | None) -> None:
        self._names = names

    def __getitem__(self, index: Any) -> str:
        return str(index) if self._names is None else self._names[int(index)]

    @property
    def known(self) -> Sequence[str] | None:
        return self._names


def hardest_section(found: Sequence[Findings], names: ClassNames) -> Section:
    return Section(
        "hardest",
        "Which samples does it fight with?",
        "The training samples with the largest weights in the end, the label "
        "that they were given, and the class that each member says, in the "
        "order of training.",
        [_hardest_part(f, names) for f in found],
    )


def _hardest_part(found: Findings, names: ClassNames) -> Part:
    hardest = samples.hardest_samples(found.run, _NUM_SHOWN)
    scrutiny = found.scrutiny
    if scrutiny is None or not scrutiny.is_training:
        rows = [
            [f"{i:,}", f"{w:.3f}", f"{m} of {hardest.num_rounds}"]
            for i, w, m in zip(
                hardest.index, hardest.weight, hardest.num_mistakes, strict=True
            )
        ]
        return Part(
            found.name,
            [missing("training data")],
            tables=[Table(["sample", "weight", "rounds wrong"], rows)],
        )
    is_largest = np.isclose(found.weights, hardest.weight[0], rtol=1e-9)
    texts = [
        f"{is_largest.sum():,} of {len(found.weights):,} samples have the "
        f"largest weight, {hardest.weight[0]:.3f}."
    ]
    if found.training is not None and not found.training.is_same:
        texts.append(
            f"The labels of {scrutiny.data.name} are those of training, but "
            "the final model is right on other samples than it was then: the "
            "inputs were different, perhaps preprocessed in another way."
        )
    shown = _Cards(scrutiny, names)
    return Part(
        found.name,
        texts,
        samples=[
            shown.card(
                i,
                [
                    f"weight {w:.3f}",
                    f"wrong in {m} of {hardest.num_rounds} rounds",
                ],
            )
            for i, w, m in zip(
                hardest.index, hardest.weight, hardest.num_mistakes, strict=True
            )
        ],
    )


def suspects_section(found: Sequence[Findings], names: ClassNames) -> Section:
    return Section(
        "suspects",
        "Which labels are probably wrong?",
        "Samples whose label the members vote against, each clearly and all "
        "together. Look at them: a hard sample is not always a wrong label.",
        [_suspects_part(f, names) for f in found],
    )


def _suspects_part(found: Findings, names: ClassNames) -> Part:
    scrutiny = found.scrutiny
    if scrutiny is None:
        return Part(found.name, [missing("data")])
    suspects = scrutiny.suspects
    num = int(suspects.is_suspect.sum())
    shown = _Cards(scrutiny, names)
    return Part(
        found.name,
        [
            f"{num:,} of {len(suspects.given):,} labels of "
            f"{scrutiny.data.name} are suspicious: the ensemble takes them for "
            "less likely than a guess. The "
            f"{min(_NUM_SHOWN, len(suspects.given))} most suspicious samples "
            "are below; --suspects suspects.csv writes all."
        ],
        samples=[
            shown.card(
                i,
                [
                    f"quality of the label {suspects.quality[i]:.4f}",
                    f"{suspects.agreement[i]:.0%} of the votes for "
                    f"{names[suspects.predicted[i]]}",
                ],
            )
            for i in suspects.ranking[:_NUM_SHOWN]
        ],
    )


class _Cards:
    """Samples as they are shown, with what is said of them."""

    def __init__(self, scrutiny: Scrutiny, names: ClassNames) -> None:
        self._suspects = scrutiny.suspects
        self._exhibit = Exhibit(scrutiny.data.x)
        self._names = names

    def card(self, index: Any, lines: Sequence[str]) -> Sample:
        label = self._suspects.given[index]
        members = [
            Member(self._names[decision], bool(decision == label))
            for decision in self._suspects.decisions[:, index]
        ]
        predicted = self._names[self._suspects.predicted[index]]
        says = f"label {self._names[label]}, ensemble says {predicted}"
        return Sample(
            f"sample {index:,}",
            [says, *lines],
            self._exhibit.show(int(index)),
            members,
        )
