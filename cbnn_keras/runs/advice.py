"""What a run says about the budget of the next one."""

from cbnn_keras import schedules
from cbnn_keras.runs.run import Run

# Cycles that leave more of the training set wrong are too short, or labels are.
_MUCH = 0.1


def restart_advice(run: Run) -> str | None:
    """When the training set was fit, and which `restarts=` would pay.

    Args:
        run: Finished, of CBNN.

    Returns:
        A sentence or two, or None for a run that nothing can be said of.
    """
    if run.header.method != "cbnn" or not run.rounds:
        return None
    if run.phases:  # which part of it would be repeated is up to people
        return None
    steps = [record.step for record in run.rounds]
    errors = run.training_errors(steps)
    restarts = run.header.settings.own.get("restarts")
    if type(restarts) is int:
        return _advice_after(restarts, min(errors))
    fit_at, num = schedules.affordable_restarts(steps, errors)
    if fit_at is None:
        return (
            f"{errors[-1]:.1%} of the training set was wrong in the end: "
            "unless labels are, there is no budget to spare for restarts."
        )
    text = f"The training set was fit after step {fit_at} of {steps[-1]}"
    if num == 1:
        return f"{text}: there is no budget to spare for restarts."
    # Six checkpoints cannot tell how much earlier it was.
    or_more = " or more" if num == schedules.MOST_RESTARTS else ""
    return f"{text}: the next run could afford restarts={num}{or_more}."


def _advice_after(restarts: int, error: float) -> str:
    text = f"In the best of {restarts} cycles {error:.1%} of the training set"
    if error > _MUCH:
        return (
            f"{text} stayed wrong: unless labels are, fewer restarts or a "
            "longer run would do better."
        )
    return f"{text} stayed wrong: the cycles were long enough."
