"""The method `soup`: one network whose weights are an average."""

import pathlib
from collections.abc import Callable
from typing import Any, Self

import keras
import numpy as np

from cbnn_keras.boosting_policies import EqualVotes
from cbnn_keras.data.labelled import as_pair
from cbnn_keras.data.labelled_samples import LabelledSamples
from cbnn_keras.ensemble.one_network import (
    DEFAULT_BATCH_SIZE,
    Directory,
    Network,
    OneNetwork,
)
from cbnn_keras.ensemble.soup import (
    Tasting,
    Weights,
    averaged,
    greedy,
    why_not_one_cycle,
)
from cbnn_keras.runs.manifest import Settings
from cbnn_keras.runs.saving import check_free
from cbnn_keras.support.console import Reporter


class Souping(OneNetwork):
    """Members that can be averaged in weights."""

    def soup(
        self,
        x: Any = None,
        y: Any = None,
        *,
        validation_data: Any = None,
        directory: Directory = None,
        verbose: int = 1,
    ) -> Self:
        """One network whose weights are the average of the members'.

        It costs what one member costs, and no training. For members of one
        cycle: between members of different restarts, or of networks that were
        trained separately, the loss is high.

        Args:
            x: The training inputs, in any form that `weighted` takes: the soup
                is scored on them, and statistics of BatchNorm are recomputed.
                Defaults to None: the validation data serve for that.
            y: Their labels; left out with a dataset or with `(x, y)`.
            validation_data: `(x, y)` or a dataset that training has not seen,
                to choose by: from the most likely member on, a member joins
                where that makes the labels more likely. Without it, all
                members are averaged. Votes are the shares.
            directory: Where the soup is kept, as a run of one member: a new
                directory, or an empty one. Defaults to None, in memory.
            verbose: 0 for no progress bar.

        Returns:
            An ensemble of one member.

        Raises:
            RunError: If there is something in the directory.
            ValueError: If there are no data, or if members cannot be averaged;
                the message has the losses between two of them.
        """
        if directory is not None:
            check_free(pathlib.Path(directory).absolute())
        judges = None
        if validation_data is not None:
            held_out = as_pair(validation_data)
            judges = self._read(*held_out, "soup(validation_data=...)")
        if x is not None:
            data = self._read(x, y, "soup()")
        elif judges is not None:
            data = judges
        else:
            raise ValueError(
                "soup(): there are no data to score the average on. Give "
                "`validation_data=(x, y)`, to choose by, or the training data: "
                "`soup(x, y)`."
            )
        with self._lent() as load:
            return self._averaged(load, data, judges, directory, verbose)

    def _averaged(
        self,
        load: Callable[[int], keras.Model],
        data: LabelledSamples,
        judges: LabelledSamples | None,
        directory: Directory,
        verbose: int,
    ) -> Self:
        members = [
            [np.array(weight) for weight in load(step).get_weights()]
            for step in self._steps
        ]
        size = self.run.header.settings.batch_size or DEFAULT_BATCH_SIZE
        taste = Tasting(self.model, self.classifier, data, judges or data, size)
        positions = list(range(len(members)))
        reason = why_not_one_cycle(self.run, self._steps)
        if len(members) > 1 and reason is not None:
            raise self._no_soup(reason, members, taste)
        own_losses = [taste.own_loss(weights) for weights in members]
        if judges is not None:
            track = Reporter(verbose).tracker("members are averaged")
            positions = greedy(
                members, self.votes, taste.loss, own_losses, track
            )
        chosen, votes = [members[i] for i in positions], self.votes[positions]
        if len(chosen) == 1:
            self.model.set_weights(chosen[0])
        else:
            mean = averaged(chosen, votes)
            if judges is None and taste.loss(mean) > max(own_losses):
                reason = "the average is worse than its worst member"
                raise self._no_soup(reason, members, taste)
            taste.put(mean)
        own = {
            **self._origin(),
            "soup_members": [self._steps[i] for i in positions],
            "soup_shares": [float(v) for v in votes / votes.sum()],
        }
        network = Network(self.model, self.classifier, self.foreign)
        return self._alone(
            network, "soup", Settings(EqualVotes(), own), data, directory
        )

    def _no_soup(
        self, reason: str, members: list[Weights], taste: Tasting
    ) -> ValueError:
        *_, before, last = self._steps
        way = taste.way(members[-2], members[-1])
        return ValueError(
            f"soup(): the members cannot be averaged in weights, as {reason}. "
            "The negative log-likelihood on the way from the member of step "
            f"{before} to that of step {last}, in quarters, is {way}. "
            "`distil` makes one network of such members; `select` and `take` "
            "choose others."
        )
