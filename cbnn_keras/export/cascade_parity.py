"""Which samples of a cascade can be compared, and how far they went."""

import numpy as np


def clear_exits(
    found: dict[str, np.ndarray],
    expected: dict[str, np.ndarray],
    margin: float,
    agreement: float = 1.0,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What samples got whose exit from a cascade is no matter of rounding.

    Args:
        found: What the artefact says, by output.
        expected: What it should say, and the `clearness` of each sample.
        margin: Samples are left out that are no clearer than this.
        agreement: The least share of the others that must have used as many
            members as the rule says.

    Raises:
        ValueError: If there are none, or if more used another number of members
            than the rule says.
    """
    is_clear = ~(expected["clearness"] <= margin)  # also if it is no number
    if not is_clear.any():
        raise ValueError(
            "Every sample is so near to the confidence of the cascade that "
            "rounding decides when it leaves: nothing can be compared. Give "
            "real inputs as `sample_data`, or another confidence."
        )
    found = {name: array[is_clear] for name, array in found.items()}
    expected = {name: array[is_clear] for name, array in expected.items()}
    if "members_used" in found:
        is_other = found["members_used"] != expected["members_used"]
        if is_other.mean() > 1 - agreement:
            first = int(is_other.argmax())
            raise ValueError(
                "The export does not match the Keras ensemble: its cascade "
                f"used another number of members for {is_other.sum()} of "
                f"{len(is_other)} samples, such as "
                f"{found['members_used'][first]} instead of "
                f"{expected['members_used'][first]}."
            )
    return found, expected


def members_asked(expected: dict[str, np.ndarray]) -> str | None:
    """How many members samples needed at most, such as `"3 of 6"`.

    None if it is no cascade.
    """
    if "members_used" not in expected:
        return None
    num_members = expected["members"].shape[1]
    return f"{expected['members_used'].max()} of {num_members}"
