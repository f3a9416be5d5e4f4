"""When things happen: checkpoints and learning rates by training step.

Pure functions of numbers: CBNN's checkpoints, the learning rate of the paper's
experiments, and the cycles of the methods that it is compared with. "Step" is
one training iteration, counted from 1.
"""

import bisect
import math
from collections.abc import Sequence

FIT_ERROR = 0.02  # up to which training error a training set counts as fit
MOST_RESTARTS = 6  # that are advised, by runs of six checkpoints


def checkpoint_interval(total_steps: int, num_checkpoints: int) -> int:
    """Iterations t between checkpoints so that there are at most so many.

    t = ceil(T / M), the final model counted among the M.

    Args:
        total_steps: T, at least 1.
        num_checkpoints: M, at least 1.

    Example:

    >>> checkpoint_interval(total_steps=1000, num_checkpoints=6)
    167
    """
    return -(-total_steps // num_checkpoints)


def checkpoint_steps(total_steps: int, interval: int) -> list[int]:
    """Steps with a checkpoint, the final model included (algorithm 1).

    The paper trains for min(t, T - mt) iterations per checkpoint and for
    max(t, T - (m-1)t) before the final model. That puts checkpoints at the
    multiples of t below T - t, one at T - t and the final model at T, so that
    the last interval is never shorter than the others.

    Args:
        total_steps: T, at least 1.
        interval: t, from 1 to `total_steps`.

    Raises:
        ValueError: If `interval` is outside 1..`total_steps`.

    Example:

    >>> checkpoint_steps(total_steps=10, interval=3)
    [3, 6, 7, 10]
    >>> checkpoint_steps(total_steps=9, interval=3)
    [3, 6, 9]
    """
    if not 1 <= interval <= total_steps:
        raise ValueError(
            f"The checkpoint interval is {interval} steps and the run has "
            f"{total_steps}: give an interval between 1 and {total_steps}, or "
            "train for longer."
        )
    last = total_steps - interval
    early = range(interval, last, interval)
    return [*early, *([last] if last else []), total_steps]


def growing_steps(
    total_steps: int, first: int, num_checkpoints: int
) -> list[int]:
    """Steps with a checkpoint in a run that may end at any time.

    Intervals begin with `first` steps and grow with the time trained so far, to
    a share of it: wherever the run ends, its last M checkpoints are spread over
    most of it. Their number grows with the logarithm of the time.

    Args:
        total_steps: T, where the run ends at the latest.
        first: The first interval, which all steps but T are multiples of.
        num_checkpoints: M, how many are to be kept; the share is 1 / (M / 3).

    Example:

    >>> growing_steps(total_steps=200, first=2, num_checkpoints=6)
    [2, 4, 6, 8, 12, 18, 26, 38, 56, 84, 126, 188, 200]
    >>> growing_steps(total_steps=5, first=2, num_checkpoints=6)
    [2, 4, 5]
    """
    steps, num = [], 1
    while num * first < total_steps:
        steps.append(num * first)
        num += max(num // max(num_checkpoints // 3, 1), 1)
    return [*steps, total_steps]


def decayed_rate(
    step: int,
    steps_per_epoch: int,
    *,
    initial: float = 0.05,
    factor: float = 0.96,
    epochs_per_drop: float = 2.0,
    warmup_epochs: float = 5.0,
) -> float:
    """Learning rate of the paper's single model and of CBNN (section 5.1).

    initial * factor^floor(epoch / epochs_per_drop), where epoch =
    (step - 1) / steps_per_epoch; while it warms up, times the share of the
    warm-up that is over after this step. The paper's "drops by 96 % every two
    epochs" is read as: times 0.96.

    Args:
        step: From 1.
        steps_per_epoch: Iterations of an epoch.
        initial: The rate that the warm-up leads to.
        factor: What each drop multiplies the rate by.
        epochs_per_drop: Epochs between drops, not necessarily whole.
        warmup_epochs: Epochs over which the rate grows linearly from 0.

    Example:

    >>> round(decayed_rate(501, steps_per_epoch=100), 8)  # after 5 epochs
    0.04608
    >>> round(decayed_rate(1, steps_per_epoch=100), 8)  # 1/500 of the way
    0.0001
    """
    epoch = (step - 1) / steps_per_epoch
    # Rounding must not put the first step of an epoch before its drop.
    num_drops = math.floor(epoch / epochs_per_drop + 1e-9)
    warmup_steps = warmup_epochs * steps_per_epoch
    share = 1.0 if step >= warmup_steps else step / warmup_steps
    return initial * factor**num_drops * share


def cyclic_cosine_rate(
    step: int, total_steps: int, num_cycles: int, highest: float
) -> float:
    """Learning rate of a Snapshot Ensemble (Huang et al. 2017, eq. 2).

    a0/2 * (cos(pi * mod(i - 1, C) / C) + 1), C = ceil(T / M).

    Args:
        step: i, from 1.
        total_steps: T.
        num_cycles: M.
        highest: a0, the rate at the start of each cycle.

    Example:

    >>> [round(cyclic_cosine_rate(i, 8, 2, 0.2), 4) for i in range(1, 7)]
    [0.2, 0.1707, 0.1, 0.0293, 0.2, 0.1707]
    """
    cycle = checkpoint_interval(total_steps, num_cycles)
    position = (step - 1) % cycle / cycle
    return highest / 2 * (math.cos(math.pi * position) + 1)


def cycle_ends(total_steps: int, num_cycles: int) -> list[int]:
    """Last steps of the cycles of `cyclic_cosine_rate`.

    Where T is not a multiple of M, the last cycle is shorter than ceil(T / M),
    and there may be fewer than M.

    Example:

    >>> cycle_ends(total_steps=12, num_cycles=3)
    [4, 8, 12]
    >>> cycle_ends(total_steps=10, num_cycles=4)
    [3, 6, 9, 10]
    """
    cycle = checkpoint_interval(total_steps, num_cycles)
    return [*range(cycle, total_steps, cycle), total_steps]


def restart_steps(total_steps: int, num_cycles: int) -> list[int]:
    """Last steps of cycles that divide a run as evenly as can be.

    Args:
        total_steps: T, at least `num_cycles`.
        num_cycles: K.

    Raises:
        ValueError: If there are fewer steps than cycles.

    Example:

    >>> restart_steps(total_steps=10, num_cycles=4)
    [2, 5, 7, 10]
    """
    if total_steps < num_cycles:
        raise ValueError(
            f"A run of {total_steps} steps has no room for {num_cycles} "
            "cycles: train for longer, or restart less often."
        )
    return [total_steps * i // num_cycles for i in range(1, num_cycles + 1)]


def affordable_restarts(
    steps: Sequence[int],
    errors: Sequence[float],
    *,
    fit_error: float = FIT_ERROR,
    most: int = MOST_RESTARTS,
) -> tuple[int | None, int]:
    """When a run had fit its training set, and how many such runs it could be.

    What is left of the budget after that is better spent on members that start
    anew, as many as there is room for.

    Args:
        steps: The steps with a checkpoint, the last of them the end.
        errors: The training error at each of them.
        fit_error: Up to which training error a set counts as fit. Defaults
            to 0.02.
        most: How many restarts are advised at the most. Defaults to 6.

    Returns:
        The first step at which the training set was fit, or None, and the
        number of cycles; 1 stands for a run without restarts.

    Example:

    >>> affordable_restarts([100, 200, 300, 400], [0.09, 0.01, 0.0, 0.0])
    (200, 2)
    >>> affordable_restarts([100, 200], [0.3, 0.1])
    (None, 1)
    """
    for step, error in zip(steps, errors, strict=True):
        if error <= fit_error:
            return step, min(steps[-1] // step, most)
    return None, 1


def annealed_rate(step: int, ends: Sequence[int], highest: float) -> float:
    """A cosine from `highest` towards zero in every cycle.

    highest/2 * (cos(pi * (i - 1) / C) + 1) for step i of the C of its cycle.

    Args:
        step: From 1.
        ends: The last step of each cycle, ascending.
        highest: The rate of the first step of each cycle.

    Example:

    >>> [round(annealed_rate(i, [2, 6], 0.2), 4) for i in range(1, 7)]
    [0.2, 0.1, 0.2, 0.1707, 0.1, 0.0293]
    """
    cycle = min(bisect.bisect_left(ends, step), len(ends) - 1)
    start = ends[cycle - 1] if cycle else 0
    position = (step - 1 - start) / (ends[cycle] - start)
    return highest / 2 * (math.cos(math.pi * min(position, 1.0)) + 1)


def triangular_rate(
    step: int, cycle: int, highest: float, lowest: float
) -> float:
    """Learning rate of a Fast Geometric Ensemble (Garipov et al. 2018).

    With t = mod(i - 1, c) / c: a1 * (1 - 2t) + a2 * 2t in the first half of a
    cycle, and back in the second. That is the form of the published code: the
    rate reaches a2 just after the step that a member is taken at.

    Args:
        step: i, from 1, counted from where the cycles begin.
        cycle: c, in steps.
        highest: a1, at the start of a cycle.
        lowest: a2, in the middle of it.

    Example:

    >>> [round(triangular_rate(i, 4, 0.05, 0.01), 4) for i in range(1, 6)]
    [0.05, 0.03, 0.01, 0.03, 0.05]
    """
    position = (step - 1) % cycle / cycle
    share = 2 * position if position < 0.5 else 2 - 2 * position
    return highest * (1 - share) + lowest * share


def share_of_steps(total_steps: int, share: float) -> int:
    """A share of a run in whole steps, rounded down.

    Example:

    >>> share_of_steps(1000, 1 - 0.8)  # the product is 199.99999999999997
    200
    """
    return math.floor(round(total_steps * share, 6))


def geometric_cycle(
    total_steps: int, num_checkpoints: int, first_part: float
) -> int:
    """Length of a cycle, in steps, with which FGE fills the rest of a run.

    Between the end of the first part and T there are n - 2 whole cycles and a
    half one, which ends in the middle of its cycle, at T: the longest even
    cycle with which that is possible.

    Args:
        total_steps: T.
        num_checkpoints: n, the model before the cycles included; at least 2.
        first_part: The share of T that comes before the cycles, at least.

    Raises:
        ValueError: If there are too few steps.

    Example:

    >>> geometric_cycle(total_steps=1000, num_checkpoints=6, first_part=0.8)
    44
    """
    num_halves = 2 * num_checkpoints - 3
    num_steps = share_of_steps(total_steps, 1 - first_part)
    half = num_steps // num_halves
    if half < 1:
        raise ValueError(
            f"{num_steps} steps after the first part are too few for "
            f"{num_checkpoints - 1} cycles: train for longer, take fewer "
            "checkpoints, or begin the cycles earlier."
        )
    return 2 * half


def geometric_steps(
    total_steps: int, num_checkpoints: int, cycle: int
) -> list[int]:
    """Steps at which FGE takes a member: before the cycles and amid each.

    The last one is T, so the cycles begin (2n - 3) half cycles before it, right
    after the first of these steps.

    Args:
        total_steps: T.
        num_checkpoints: n, at least 2.
        cycle: In steps, even.

    Raises:
        ValueError: If the cycle is odd or the run too short for so many.

    Example:

    >>> geometric_steps(total_steps=1000, num_checkpoints=6, cycle=44)
    [802, 824, 868, 912, 956, 1000]
    """
    if cycle < 2 or cycle % 2:
        raise ValueError(
            f"A cycle of {cycle} steps has no middle: make it even and at "
            "least 2."
        )
    first = total_steps - (2 * num_checkpoints - 3) * (cycle // 2)
    if first < 1:
        raise ValueError(
            f"{num_checkpoints - 1} cycles of {cycle} steps do not fit into "
            f"{total_steps} steps: train for longer, or take shorter or fewer "
            "cycles."
        )
    return [first, *range(first + cycle // 2, total_steps + 1, cycle)]


def last_steps(total_steps: int, num: int, spacing: int) -> list[int]:
    """The last `num` of the steps that are `spacing` apart and end at T.

    Fewer where the run is shorter.

    Example:

    >>> last_steps(total_steps=100, num=3, spacing=10)
    [80, 90, 100]
    >>> last_steps(total_steps=25, num=4, spacing=10)
    [5, 15, 25]
    """
    first = max(
        total_steps - (num - 1) * spacing, (total_steps - 1) % spacing + 1
    )
    return list(range(first, total_steps + 1, spacing))
