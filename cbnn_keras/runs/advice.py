"""What a run says about the budget of the next one."""

from cbnn_keras import schedules
from cbnn_keras.auto_restarts import AutoRestarts, of_settings
from cbnn_keras.runs.run import Run

# Cycles that leave more of the training set wrong are too short, or labels are.
_MUCH = 0.1


def restart_advice(run: Run) -> str | None:
    """When the training set was fit, and which `restarts=` would pay.

    Args:
        run: Of any method.

    Returns:
        A sentence or two, or None for a run that nothing can be said of, as
        of one that is not finished.
    """
    if run.header.method != "cbnn" or not run.rounds or not run.is_finished:
        return None
    if run.phases:  # which part of it would be repeated is up to people
        return None
    steps = [record.step for record in run.rounds]
    errors = run.training_errors(steps)
    settings = run.header.settings
    restarts = settings.own.get("restarts")
    if type(restarts) is int:
        return _advice_after(restarts, min(errors))
    rule = of_settings(settings.own, settings.total_steps)
    if rule is not None:
        return _advice_by(rule, run)
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
    return (
        f"{text}: the next run could afford restarts={num}{or_more}, or see by "
        "itself, with restarts='auto' and held-out data."
    )


def _advice_by(rule: AutoRestarts, run: Run) -> str:
    cycles = run.auto_cycles
    if cycles is not None and cycles.starts:
        voters = run.voters
        num_new = sum(step > cycles.starts[0] for step in voters)
        return (
            f"After step {cycles.enough} twice the steps no longer helped on "
            f"held-out data: {num_new} of {len(voters)} members started anew."
        )
    found = {record.step: record.validation_loss for record in run.rounds}
    losses = {step: loss for step, loss in found.items() if loss is not None}
    last = rule.cycles(losses)
    if last.starts:  # by the loss of the final model
        return (
            f"After step {last.enough} twice the steps no longer helped on "
            "held-out data, but training ended there."
        )
    if losses and not any(map(rule.is_learnt, losses.values())):
        return (
            "On held-out data the loss never was a tenth below that of knowing "
            "nothing but how frequent classes are: the model never started "
            "anew."
        )
    if last.compared:
        return (
            f"Up to step {last.compared} of {rule.total_steps} twice the steps "
            "still helped on held-out data: the model never started anew."
        )
    return (
        "There was no look at whether twice the steps help on held-out data, "
        "as in a run that is too short for it: the model never started anew."
    )


def _advice_after(restarts: int, error: float) -> str:
    text = f"In the best of {restarts} cycles {error:.1%} of the training set"
    if error > _MUCH:
        return (
            f"{text} stayed wrong: unless labels are, fewer restarts or a "
            "longer run would do better."
        )
    return f"{text} stayed wrong: the cycles were long enough."
