"""Hostile files for the command line, and outputs that would destroy things."""

import files_arrays
import files_artefacts
import files_outputs
from arena import Case


def cases() -> dict[str, Case]:
    """All cases by their names; each has the command that it is for."""
    found = [
        case
        for module in (files_arrays, files_artefacts, files_outputs)
        for case in module.cases()
    ]
    return {case.key: case for case in found}


def kinds() -> list[str]:
    """The classes of attacks, in order."""
    return list(dict.fromkeys(case.kind for case in cases().values()))
