"""Hostile files for the command line, and outputs that would destroy things."""

import files_arrays
import files_onnx
import files_outputs
import files_saved_models
from arena import Case

_MODULES = (files_arrays, files_onnx, files_saved_models, files_outputs)


def cases() -> dict[str, Case]:
    """All cases by their names; each has the command that it is for."""
    found = [case for module in _MODULES for case in module.cases()]
    return {case.key: case for case in found}


def kinds() -> list[str]:
    """The classes of attacks, in order."""
    return list(dict.fromkeys(case.kind for case in cases().values()))
