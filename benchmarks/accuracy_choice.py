"""Which defaults? By held-out data, of seeds that no table reports.

    python benchmarks/accuracy_choice.py run --data-dir DATA [--tasks digits]
        [--candidates ratios] [--budgets short,converged] [--seeds 8]
        [--first-seed 1001]
    python benchmarks/accuracy_choice.py tables

Candidates are the largest ratio of two sample weights, rules of trust (another
reading of the same runs), and what a restart keeps. Nothing is computed from
test data. docs/defaults.md says what decides; it was written before the first
line was there. `run` continues where it stopped.
"""

import argparse
import collections
import dataclasses
import functools
import itertools
import json
import pathlib
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from accuracy import RESULTS, TUNING_SEED, Cell, Lines, one_of
from accuracy_lines import interval, markdown, mean_and_half
from accuracy_methods import (
    AUTO,
    NUM_CHECKPOINTS,
    Outcome,
    Setting,
    auto_restarts,
    policy_of,
    single,
    voted,
)
from accuracy_tasks import BUDGETS, TASKS, VARIANTS
from accuracy_training import Course

from cbnn_keras import imbalance, metrics, schedules
from cbnn_keras.analysis.calibration import fit_temperature, scale
from cbnn_keras.training.boosting_options import (
    AVERAGES,
    Averaging,
    averaging_of,
)
from cbnn_keras.trust import ALL, Trust, near_last

CHOICE = RESULTS.with_name("choice.jsonl")
RATIOS = (1.0, 1.1, 1.3)
IMBALANCED_RATIOS = (*RATIOS, 2.0)
OF_ERROR = Trust(margin=0.005)
OF_BOTH = Trust(margin=0.005, class_margin=0.005)
RULES = {
    "the last": Trust(margin=0.0),
    "margin 0.02": Trust(margin=0.02),
    "all": ALL,
}
KEEPS = (0.0, 0.3, 0.6)
# By the error of all samples, and by that averaged over classes.
OF_CLASSES = {
    "error margin": OF_ERROR,
    "class margin": Trust(class_margin=0.005),
    "both margins": OF_BOTH,
}
OF_AVERAGES = {
    "average 0.05": AVERAGES,
    "lag-free 0.1": Averaging(0.1, is_lag_free=True),
    "lag-free 0.15": Averaging(0.15, is_lag_free=True),
}
_NOW, _FIFTH, _BEFORE = "now", "a fifth", "a fifth and before"
_FIT, _SHORT = "fit", "short lag-free 0.1"
_SLOW = ", a tenth of the rate"
FEWEST_EPOCHS = 20


class SinceItWasFit(Trust):
    """And within 25 points where at most 5 % are wrong in the end."""

    def voters(
        self,
        errors: Sequence[float],
        class_errors: Sequence[float],
        likelihoods: Sequence[float],
    ) -> list[bool]:
        if errors[-1] <= 0.05:
            return near_last(errors, 0.25)
        return super().voters(errors, class_errors, likelihoods)


def ratios(cell: Cell, variant: str, budget: str, seed: int) -> Iterator:
    """How far sample weights part, on both scripts and with restarts."""
    tested = IMBALANCED_RATIOS if variant == "imbalanced" else RATIOS
    for script in ("plain", "cosine"):
        setting = _setting(cell, budget, script, seed)
        rate: Callable[[int], float] = setting.cosine([setting.total_steps])
        if script == "plain":
            rate = functools.partial(_constant, value=setting.rate)
        for ratio in tested:
            policy = policy_of(setting, NUM_CHECKPOINTS, OF_ERROR, ratio)
            averages = setting.averages(setting.total_steps, AVERAGES)
            course = Course(setting.checkpoints, rate, policy, **averages)
            found = setting.train(course)
            yield script, f"ratio {ratio}", setting, voted(found, policy)
            for name, trust in RULES.items() if ratio == 1 else ():
                rule = policy_of(setting, NUM_CHECKPOINTS, trust, ratio)
                yield script, name, setting, voted(found, rule)
    if budget != "short":
        setting = _setting(cell, budget, "restarts=3", seed)
        for ratio in tested:
            outcome = _restarted(setting, 3, ratio, 0.0)
            yield "restarts=3", f"ratio {ratio}", setting, outcome


def classes(cell: Cell, variant: str, budget: str, seed: int) -> Iterator:
    """Whether trust asks for the error of each class."""
    for script in ("plain", "cosine"):
        setting = _setting(cell, budget, script, seed)
        rate: Callable[[int], float] = setting.cosine([setting.total_steps])
        if script == "plain":
            rate = functools.partial(_constant, value=setting.rate)
        policy = policy_of(setting, NUM_CHECKPOINTS, ALL)
        averages = setting.averages(setting.total_steps, AVERAGES)
        found = setting.train(
            Course(setting.checkpoints, rate, policy, **averages)
        )
        for name, trust in OF_CLASSES.items():
            rule = policy_of(setting, NUM_CHECKPOINTS, trust)
            yield script, name, setting, voted(found, rule)


def averages(cell: Cell, variant: str, budget: str, seed: int) -> Iterator:
    """Averages that keep up with the weights; made for imbalanced data."""
    for script in ("plain", "cosine", "restarts=3", "restarts=6"):
        num = {"restarts=3": 3, "restarts=6": 6}.get(script)
        if num and budget == "short":
            continue
        setting = _setting(cell, budget, script, seed)
        ends = [setting.total_steps]
        checkpoints, trust, keep = setting.checkpoints, OF_BOTH, None
        if num:
            checkpoints = ends = schedules.restart_steps(ends[0], num)
            trust, keep = ALL, 0.0
        rate: Callable[[int], float] = setting.cosine(ends)
        if script == "plain":
            rate = functools.partial(_constant, value=setting.rate)
        policy = policy_of(setting, len(checkpoints), trust)
        for name, averaging in OF_AVERAGES.items():
            averages = setting.averages(ends[0], averaging)
            course = Course(checkpoints, rate, policy, keep=keep, **averages)
            outcome = voted(setting.train(course), policy)
            yield script, name, setting, outcome
            divided = _by_priors(setting, outcome)
            yield script, f"{name}, priors", setting, divided


def fifths(cell: Cell, variant: str, budget: str, seed: int) -> Iterator:
    """Averages over a fifth, and votes of what came before it was fit."""
    for script in ("plain", "cosine"):
        setting = _setting(cell, budget, script, seed)
        total = setting.total_steps
        rate: Callable[[int], float] = setting.cosine([total])
        if script == "plain":
            rate = functools.partial(_constant, value=setting.rate)
        policy = policy_of(setting, NUM_CHECKPOINTS, OF_BOTH)
        fifth, trust = _fifth(setting, total), OF_BOTH
        if not fifth.is_lag_free:
            trust = SinceItWasFit(**vars(OF_BOTH))
        wide = policy_of(setting, NUM_CHECKPOINTS, trust)
        for averaging, policies in (
            (_now(setting), {_NOW: policy}),
            (fifth, {_FIFTH: policy, _BEFORE: wide}),
        ):
            course = Course(
                setting.checkpoints,
                rate,
                policy,
                **setting.averages(total, averaging),
            )
            found = setting.train(course)
            for name, rule in policies.items():
                outcome = voted(found, rule)
                yield script, name, setting, outcome
                if variant == "imbalanced":
                    divided = _by_priors(setting, outcome)
                    yield script, f"{name}, priors", setting, divided
    if setting.task.name == "cifar100":
        return  # only scripts are asked about it
    for num in () if budget == "short" else (3, 6, 12):
        script = f"restarts={num}"
        if num == 12 and budget != "long":
            continue
        setting = _setting(cell, budget, script, seed)
        ends = schedules.restart_steps(setting.total_steps, num)
        policy = policy_of(setting, num, ALL)
        for name, averaging in (
            (_NOW, _now(setting)),
            (_FIFTH, _fifth(setting, ends[0])),
        ):
            averages = setting.averages(ends[0], averaging)
            course = Course(
                ends, setting.cosine(ends), policy, keep=0.0, **averages
            )
            yield script, name, setting, voted(setting.train(course), policy)
    setting = _setting(cell, budget, AUTO, seed)
    for name, averaging in (
        (_NOW, _now(setting)),
        (_FIFTH, _fifth(setting, setting.total_steps)),
    ):
        [outcome] = auto_restarts(setting, averaging).values()
        yield AUTO, name, setting, outcome


def shorts(cell: Cell, variant: str, budget: str, seed: int) -> Iterator:
    """Averages without lag in short runs, also where the rate is too low."""
    for script, share in itertools.product(("plain", "cosine"), (1.0, 0.1)):
        setting = _setting(cell, budget, script, seed)
        setting = dataclasses.replace(setting, rate=share * setting.rate)
        total = setting.total_steps
        rate: Callable[[int], float] = setting.cosine([total])
        if script == "plain":
            rate = functools.partial(_constant, value=setting.rate)
        policy = policy_of(setting, NUM_CHECKPOINTS, OF_BOTH)
        outcomes = {}
        for name, averaging in (
            (_NOW, _now(setting)),
            (_SHORT, OF_AVERAGES["lag-free 0.1"]),
        ):
            averages = setting.averages(total, averaging)
            course = Course(setting.checkpoints, rate, policy, **averages)
            found = setting.train(course)
            outcomes |= {
                _FIT: single(found[-1].raw),
                name: voted(found, policy),
            }
        for name, outcome in outcomes.items():
            label = script if share == 1 else f"{script}{_SLOW}"
            yield label, name, setting, outcome
            if variant == "imbalanced":
                divided = _by_priors(setting, outcome)
                yield label, f"{name}, priors", setting, divided


def _fifth(setting: Setting, num_steps: int) -> Averaging:
    """Without lag where a class is rare, or each sample is seen rarely."""
    num_epochs = num_steps / setting.loop.steps_per_epoch
    has_lag = _now(setting) == AVERAGES and num_epochs >= FEWEST_EPOCHS
    return Averaging(0.2, is_lag_free=not has_lag)


def _now(setting: Setting) -> Averaging:
    """As it was when others were compared with it."""
    sums = np.bincount(setting.data.train[1])
    is_rare = averaging_of(sums, FEWEST_EPOCHS).is_lag_free
    return OF_AVERAGES["lag-free 0.15"] if is_rare else AVERAGES


def _by_priors(setting: Setting, outcome: Outcome) -> Outcome:
    data = setting.data
    priors = imbalance.class_priors(data.train[1], data.num_classes)
    # One seed's training data may not have every class of Shuttle.
    if not priors.all():
        return outcome
    return dataclasses.replace(
        outcome, val=imbalance.threshold(outcome.val, priors)
    )


def keeps(cell: Cell, variant: str, budget: str, seed: int) -> Iterator:
    """What a restart keeps."""
    for num in (3, 6):
        script = f"restarts={num}"
        setting = _setting(cell, budget, script, seed)
        for keep in KEEPS:
            outcome = _restarted(setting, num, 1.0, keep)
            yield script, f"keep {keep}", setting, outcome


CANDIDATES = {
    "ratios": ratios,
    "keeps": keeps,
    "classes": classes,
    "averages": averages,
    "fifths": fifths,
    "shorts": shorts,
}
# What the others are compared with, by how they begin.
_BASES = {
    "keep": "keep 0.0",
    "class": "error margin",
    "both": "error margin",
    "lag-free": "average 0.05",
    "a": _NOW,
    "short": _NOW,
}


def _setting(cell: Cell, budget: str, script: str, seed: int) -> Setting:
    """With the script's tuned rate, and without test data."""
    found = cell.setting(budget, cell.best_rate(budget, script), seed)
    blind = dataclasses.replace(found.data, test=found.data.val)
    return dataclasses.replace(found, data=blind)


def _constant(step: int, value: float) -> float:
    return value


def _restarted(
    setting: Setting, num: int, ratio: float, keep: float
) -> Outcome:
    policy = policy_of(setting, num, ALL, ratio)
    ends = schedules.restart_steps(setting.total_steps, num)
    averages = setting.averages(ends[0], AVERAGES)
    course = Course(ends, setting.cosine(ends), policy, keep=keep, **averages)
    return voted(setting.train(course), policy)


def run(options: argparse.Namespace) -> None:
    tuned, lines = Lines(options.tuned), Lines(options.output)
    cells = {
        (task, variant): Cell(TASKS[task], variant, tuned, options.data_dir)
        for task in options.tasks
        for variant in options.variants
    }
    first = options.first_seed
    for seed in range(first, first + options.seeds):
        for (task, variant), cell in cells.items():
            for budget in options.budgets:
                place = {"task": task, "variant": variant, "budget": budget}
                for name in options.candidates:
                    _run(lines, cell, name, place, seed)


def _run(lines: Lines, cell: Cell, name: str, place: dict, seed: int) -> None:
    job = {**place, "rate": name, "seed": seed}
    done = {**job, "method": "done"}
    if Lines.key(done) in lines.found:
        return
    make = CANDIDATES[name]
    for script, candidate, setting, outcome in make(
        cell, place["variant"], place["budget"], seed
    ):
        lines.add(
            {**job, "method": f"{script}; {candidate}"}
            | _held_out(setting, outcome)
        )
    lines.add(done)


def _held_out(setting: Setting, outcome: Outcome) -> dict[str, float]:
    val, labels = outcome.val, setting.data.val[1]
    # At the best temperature of each: ensembles would be flattered.
    scaled = scale(val, fit_temperature(val, labels))
    return {
        "error": round(100 * (1 - metrics.accuracy(val, labels)), 5),
        "likelihood": round(metrics.negative_log_likelihood(scaled, labels), 6),
    }


def tables(options: argparse.Namespace) -> None:
    """Differences to the first candidate, by script and variant."""
    found: dict = collections.defaultdict(dict)
    for text in options.output.read_text().splitlines():
        line = json.loads(text)
        if line["method"] != "done":
            script, candidate = line["method"].split("; ")
            place = (line["task"], line["budget"], script, line["variant"])
            found[candidate][(*place, line["seed"])] = line
    rows = []
    for candidate, theirs in found.items():
        for label, base in _comparisons(candidate).items():
            known = theirs.keys() & found[base].keys()
            is_newer = candidate.startswith((_NOW, _FIFTH, _SHORT))
            parts = _parts if is_newer else _older_parts
            for script, part, keys in parts(candidate, known):
                if keys:
                    row = _differences(theirs, found[base], keys)
                    rows.append([label, script, part, *row])
    head = ["candidate", "script", "part", "seeds", "error", "likelihood"]
    text = (
        "# Candidates for defaults, on held-out data\n\nMade by `python "
        "benchmarks/accuracy_choice.py tables`: differences to a ratio of 1 "
        "(rules of trust, also by classes: to a margin of 0.005; averages: to "
        "those of before) and to `keep=0`, means over cells with 95 % "
        "intervals over seeds.\n\n"
    )
    target = options.output.with_suffix(".md")
    target.write_text(f"{text}{markdown(head, rows)}\n")
    print(target)


def _comparisons(candidate: str) -> dict[str, str]:
    """What a candidate is compared with, by what the rows are called."""
    name, *priors = candidate.split(", ")
    base = _BASES.get(name.split()[0], "ratio 1.0")
    bases = {candidate: base}
    if name in _BASES.values() or name in ("ratio 1.0", _FIT):
        bases = {}
    if name in (_NOW, _SHORT):
        bases[f"{candidate}, against {_FIT}"] = _FIT
    if name == _BEFORE and not priors:
        bases[f"{name}, against {_FIFTH}"] = _FIFTH
    return {label: ", ".join([base, *priors]) for label, base in bases.items()}


def _parts(candidate: str, known: Iterable[tuple]) -> Iterator:
    """Keys of lines: of five tasks, and of each task, with fewer seeds of one.

    By kind of script, and then by variant, budget and task.
    """
    kinds = {
        "scripts": ("plain", "cosine"),
        "restarts": ("restarts=3", "restarts=6", "restarts=12"),
        AUTO: (AUTO,),
        "scripts, a tenth of the rate": (f"plain{_SLOW}", f"cosine{_SLOW}"),
    }
    for kind, scripts in kinds.items():
        keys = [key for key in known if key[2] in scripts]
        usual = [key for key in keys if key[0] != "cifar100"]
        yield kind, "all", usual
        balanced = [key for key in usual if "imbalanced" not in key]
        yield kind, "balanced", balanced
        for part in (*VARIANTS, *BUDGETS):
            yield kind, part, [key for key in usual if part in key]
        for task in TASKS:
            yield kind, task, [key for key in keys if task in key]


def _older_parts(candidate: str, known: Iterable[tuple]) -> Iterator:
    tasks = TASKS if candidate.startswith("lag-free") else ()
    scripts = sorted({key[2] for key in known})
    for script, part in [
        *itertools.product(("all", *scripts), ("all", *VARIANTS)),
        *itertools.product(("all",), tasks),
    ]:
        yield (
            script,
            part,
            [
                key
                for key in known
                if script in ("all", key[2]) and part in ("all", key[3], key[0])
            ],
        )


def _differences(theirs: dict, base: dict, keys: list[tuple]) -> list:
    row: list = []
    for quantity, digits in (("error", 3), ("likelihood", 4)):
        by_seed = collections.defaultdict(list)
        for key in keys:
            by_seed[key[-1]].append(theirs[key][quantity] - base[key][quantity])
        means = [statistics.mean(values) for values in by_seed.values()]
        row = row or [len(means)]
        row.append(interval(*mean_and_half(means), digits))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    training = commands.add_parser("run", help="train what is not there yet")
    training.set_defaults(function=run)
    choices = {
        "tasks": list(TASKS),
        "variants": list(VARIANTS),
        "budgets": list(BUDGETS),
        "candidates": list(CANDIDATES),
    }
    for name, known in choices.items():
        training.add_argument(f"--{name}", default=known, type=one_of(known))
    training.add_argument("--data-dir", type=pathlib.Path, required=True)
    training.add_argument("--seeds", type=int, default=8)
    training.add_argument("--first-seed", type=int, default=TUNING_SEED + 1)
    training.add_argument("--tuned", type=pathlib.Path, default=RESULTS)
    shown = commands.add_parser("tables", help="what the lines say")
    shown.set_defaults(function=tables)
    for command in (training, shown):
        command.add_argument("--output", type=pathlib.Path, default=CHOICE)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
