"""Sections of a report that show samples: hard ones, and suspicious labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cbnn_keras.analysis import samples
from cbnn_keras.analysis.findings import Findings, Scrutiny
from cbnn_keras.analysis.report.exhibit import Exhibit
from cbnn_keras.analysis.report.page import (
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
    texts = [_ties(found.weights, hardest.weight[0])]
    if not hardest.num_mistakes.any():
        return Part(found.name, ["No checkpoint was wrong about any sample."])
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
            [*texts, missing("training data")],
            tables=[Table(["sample", "weight", "rounds wrong"], rows)],
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


def _ties(weights: np.ndarray, largest: float) -> str:
    num = int(np.isclose(weights, largest, rtol=1e-9).sum())
    if num == len(weights):
        return (
            "All samples have the same weight; those that more members are "
            "wrong about come first."
        )
    have = "sample has" if num == 1 else "samples have"
    return f"{num:,} {have} the largest weight, {largest:.3f}."


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
    worst = suspects.ranking[suspects.is_suspect[suspects.ranking]]
    worst = worst[:_NUM_SHOWN]
    shown = _Cards(scrutiny, names)
    return Part(
        found.name,
        [
            f"{num:,} of {len(suspects.given):,} labels of "
            f"{scrutiny.data.name} are suspicious: the ensemble takes them for "
            "less likely than a guess. The most suspicious ones are below; "
            "--suspects suspects.csv writes all."
            if num
            else f"None of the {len(suspects.given):,} labels of "
            f"{scrutiny.data.name} is suspicious: the ensemble takes all of "
            "them for more likely than a guess."
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
            for i in worst
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
            Member(self._names[predicted], bool(predicted == label))
            for predicted in self._suspects.member_classes[:, index]
        ]
        together = self._names[self._suspects.predicted[index]]
        says = f"label {self._names[label]}, ensemble says {together}"
        return Sample(
            f"sample {index:,}",
            [says, *lines],
            self._exhibit.show(int(index)),
            members,
        )
