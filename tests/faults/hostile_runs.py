"""Hostile run directories: what someone could put on the web as a run.

Every case is a function that turns a copy of a pristine run into an attack.
`python tests/faults/hostile_runs.py DIRECTORY` writes all of them out, to be
looked at; `judge.py` runs operations on them.
"""

import collections

import attacks_archive
import attacks_arrays
import attacks_code
import attacks_hdf5
import attacks_links
import attacks_manifest
import attacks_model
from arena import Case

_MODULES = (
    attacks_code,
    attacks_links,
    attacks_manifest,
    attacks_hdf5,
    attacks_arrays,
    attacks_archive,
    attacks_model,
)


def cases() -> dict[str, Case]:
    """All hostile runs by their names."""
    found = [case for module in _MODULES for case in module.cases()]
    names = collections.Counter(case.key for case in found)
    twice = [name for name, num in names.items() if num > 1]
    if twice:
        raise ValueError(f"The names {twice} are given twice.")
    return {case.key: case for case in found}


def kinds() -> list[str]:
    """The classes of attacks, in order."""
    return list(dict.fromkeys(case.kind for case in cases().values()))
