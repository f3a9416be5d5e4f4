"""Mutations of a small run, each made from a number alone.

    python tests/faults/fuzz.py 5000

Half of them are signed again, as an attacker would. What is not signed is
refused or predicts the same, to the bit; what is signed is another run, which
may predict anything, but harms nothing.
"""

import json
import pathlib
import random
import shutil
from typing import Any

from arena import (
    HARMLESS,
    OTHER_RUN,
    Case,
    Place,
    archive_of,
    entries_of,
    sign,
    write_manifest_text,
)

_VALUES = [
    *(0, 1, -1, 2, 3, 0.0, 0.5, -0.5, 1e308, 5e-324, 2**31, 2**63, 10**30),
    *(None, True, False, "", "x", "../x", [], {}, [0], {"a": 1}),
]


def mutate(seed: int, run: pathlib.Path) -> tuple[str, bool]:
    """Changes one file of a run.

    Returns:
        What was done, and whether it was signed again.
    """
    chance = random.Random(seed)
    is_signed = chance.random() < 0.5
    names = [
        *["manifest.json"] * 4,
        *["model.keras"] * 2,
        *["model.keras/config.json"] * 4,
        *["model.keras/model.weights.h5"] * 2,
        *["members"] * 4,
        *["rounds"] * 2,
        *["base.npy"] * 2,
    ]
    name = chance.choice(names)
    if name in ("members", "rounds"):
        paths = sorted((run / name).iterdir())
        name = f"{name}/{chance.choice(paths).name}"
    file, _, entry = name.partition(".keras/")
    path = run / (f"{file}.keras" if entry else file)
    if entry:
        entries = entries_of(path)
        entries[entry], what = _changed(chance, entries[entry], name)
        data = archive_of(entries)
    else:
        data, what = _changed(chance, path.read_bytes(), name)
    if name == "manifest.json" and is_signed:
        write_manifest_text(run, data)
    else:
        path.write_bytes(data)
        if is_signed:
            sign(run)
    return f"{what} in {name}", is_signed


def _changed(
    chance: random.Random, data: bytes, name: str
) -> tuple[bytes, str]:
    if name.endswith(".json") and chance.random() < 0.5:
        return _changed_json(chance, json.loads(data))
    start = chance.randrange(len(data))
    if name.endswith(".h5") and chance.random() < 0.5:
        start = chance.randrange(min(len(data), 2048))  # where the headers are
    stop = min(len(data), start + chance.choice([1, 2, 4, 8, 16, 64]))
    block = data[start:stop]
    noise = chance.randbytes(len(block))
    other = chance.randrange(len(data))
    flipped = bytes([data[start] ^ 1 << chance.randrange(8)])
    changes = {
        "a bit flipped": data[:start] + flipped + data[start + 1 :],
        "noise": data[:start] + noise + data[stop:],
        "zeros": data[:start] + bytes(len(block)) + data[stop:],
        "ones": data[:start] + b"\xff" * len(block) + data[stop:],
        "cut": data[:start],
        "inserted": data[:start] + noise + data[start:],
        "removed": data[:start] + data[stop:],
        "doubled": data[:stop] + block + data[stop:],
        "copied": data[:other] + block + data[other + len(block) :],
        "appended": data + noise,
    }
    what = chance.choice(sorted(changes))
    return changes[what], f"{what} at {start}"


def _changed_json(chance: random.Random, content: Any) -> tuple[bytes, str]:
    """Swaps, replaces, removes or adds values."""
    spots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        keys = range(len(node)) if isinstance(node, list) else list(node)
        for key in keys:
            spots.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(content)
    (node, key), (other, other_key) = chance.choices(spots, k=2)
    kind = chance.choice(["swapped", "replaced", "removed", "doubled", "moved"])
    if kind == "swapped" and _is_apart(node[key], other[other_key]):
        node[key], other[other_key] = other[other_key], node[key]
    elif kind == "removed":
        del node[key]
    elif kind == "doubled" and isinstance(node, list):
        node.append(node[key])
    elif isinstance(node[key], (int, float)) and chance.random() < 0.5:
        node[key] = node[key] * chance.choice([0.5, 2, -1]) + 1
        kind = "changed"
    else:
        node[key] = chance.choice(_VALUES)
        kind = "replaced"
    return json.dumps(content, indent=1).encode(), f"{kind} {key!r:.40}"


def _is_apart(one: Any, other: Any) -> bool:
    """Whether neither is within the other, so that no circle is made."""
    return not any(isinstance(v, (dict, list)) for v in (one, other))


def judge(seed: int, shared: pathlib.Path, place: Place) -> dict[str, Any]:
    """Loads a mutated run and predicts.

    Returns:
        The outcome, and `faults`: what must not be.
    """
    shutil.rmtree(place.run, ignore_errors=True)
    shutil.copytree(shared / "finished", place.run)
    what, is_signed = mutate(seed, place.run)
    return {
        "seed": seed,
        "what": f"{what}{', signed' * is_signed}",
        **attempt(place, shared, is_signed),
    }


def attempt(
    place: Place, shared: pathlib.Path, is_signed: bool
) -> dict[str, Any]:
    """Loads a run and predicts."""
    import keras
    from operations import Operations

    keras.backend.clear_session(free_memory=False)
    case = Case("fuzz", "", shutil.copy, OTHER_RUN if is_signed else HARMLESS)
    one = Operations(case, place, shared)
    answer = one.run("load")
    if answer["outcome"] == "done":
        answer = one.run("predict")
    faults = []
    if answer["outcome"] == "error":
        faults.append(f"other: {answer['message']}")
    if answer.get("wanted_memory"):
        faults.append("allocated: asked for memory that was not there")
    if answer["outcome"] == "done" and not is_signed:
        if answer["prediction"] != pristine_prediction(shared):
            faults.append("silent: another prediction")
    return {
        "outcome": answer["outcome"],
        "message": answer["message"],
        "is_finite": answer.get("is_finite"),
        "faults": faults,
    }


_known: dict[pathlib.Path, str] = {}


def pristine_prediction(shared: pathlib.Path) -> str:
    """What the run predicts that nobody changed."""
    if shared not in _known:
        import numpy as np
        from operations import _INPUTS, load

        found = load(shared / "finished").predict(_INPUTS, verbose=0)
        _known[shared] = np.asarray(found).tobytes().hex()
    return _known[shared]


def flip(bit: int, shared: pathlib.Path, place: Place) -> dict[str, Any]:
    """Loads the run with one bit of its manifest flipped."""
    if not place.run.exists():
        shutil.copytree(shared / "finished", place.run)
    data = bytearray((shared / "finished/manifest.json").read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    (place.run / "manifest.json").write_bytes(data)
    return {
        "seed": bit,
        "what": f"bit {bit} of the manifest",
        **attempt(place, shared, False),
    }


def num_flips(shared: pathlib.Path) -> int:
    return 8 * (shared / "finished/manifest.json").stat().st_size


if __name__ == "__main__":
    import sys
    import tempfile

    from judge import Judge

    number = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    with tempfile.TemporaryDirectory() as directory:
        with Judge(pathlib.Path(directory)) as one:
            bad = [v for v in one.fuzz(range(number)) if v["faults"]]
    for verdict in bad:
        print(verdict["seed"], verdict["what"], *verdict["faults"], sep="; ")
    print(f"{number} mutations, {len(bad)} with faults")
    sys.exit(bool(bad))
