"""When things happen: the steps at which CBNN takes a checkpoint.

Pure functions of integers. "Step" is one training iteration, counted from 1.
"""


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
