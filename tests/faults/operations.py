"""What a user does with a run, and what comes of it."""

import contextlib
import io
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pristine
from arena import LIMIT, Case, Place

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.commands import cli
from cbnn_keras.support.faults import RunError

# Cheap ones, on every case; those that only read; those that write to the run.
CHEAP = ("load", "predict", "as_model", "inspect")
READING = (*CHEAP, "report", "saved_model", "onnx", "verify", "save")
WRITING = ("resume", "overwrite")

_INPUTS = np.linspace(-2, 2, 32, dtype="float32").reshape(8, 4)
_MISMATCH = re.compile(
    "does not match the Keras ensemble|is not an export of this run|"
    "The export's output"
)
_CONTROL = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


class Operations:
    """The operations on the run of a case, each of which says what it gave.

    Args:
        place: Where the case is.
        shared: The directory with the pristine runs and their exports.
    """

    def __init__(self, case: Case, place: Place, shared: Any) -> None:
        self._case = case
        self._place = place
        self._shared = shared
        self._ensemble: CheckpointEnsemble | None = None

    def run(self, name: str) -> dict[str, Any]:
        """Runs an operation.

        Returns:
            `outcome`: "done", "refused" as it should be, or "error"; `message`;
            `prediction`, where there is one; `is_finite`; `wanted_memory`.
        """
        operation: Callable[[], Any] = getattr(self, f"_{name}")
        try:
            found = operation()
        except RunError as error:
            return self._refusal(str(error), error)
        except BaseException as error:
            return {
                "outcome": "error",
                "message": f"{type(error).__name__}: {error}"[:400],
                "wanted_memory": _is_about_memory(error),
            }
        return {"outcome": "done", "message": "", **(found or {})}

    def _refusal(self, text: str, error: Any = None) -> dict[str, Any]:
        faults = []
        if "\n" in text.strip():
            faults.append("more than one paragraph")
        if _CONTROL.search(text.strip()):
            faults.append("control characters")
        if len(text) > 4000:
            faults.append(f"{len(text)} characters")
        if str(self._place.root) not in text:
            faults.append("names no file")
        return {
            "outcome": "error" if faults else "refused",
            "message": f"{', '.join(faults)}: {text}"[:400] if faults else text,
            "wanted_memory": _is_about_memory(error),
        }

    def _command(self, *arguments: Any) -> dict[str, Any]:
        """Runs the command line, which has to say what is wrong itself."""
        arguments += ("--max-bytes", LIMIT)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = cli.main([str(argument) for argument in arguments])
            except SystemExit as end:
                code = end.code
        said = err.getvalue()
        if _CONTROL.search(out.getvalue()):
            return {
                "outcome": "error",
                "message": f"control characters: {out.getvalue()!r:.300}",
            }
        if not code:
            return {}
        if "Traceback" in said:
            return {"outcome": "error", "message": f"traceback: {said[-300:]}"}
        if "usage:" in said:
            return {"outcome": "refused", "message": said}
        # What `verify` is for: it names the artefact.
        if code in (1, 2) and _MISMATCH.search(said):
            return {"outcome": "refused", "message": said}
        if code != 2:
            return {"outcome": "error", "message": f"exit code {code}: {said}"}
        return self._refusal(said)

    def _load(self, directory: Any = None) -> None:
        self._ensemble = load(directory or self._place.run)

    def _predict(self) -> dict[str, Any]:
        if self._ensemble is None:
            return {"outcome": "not tried"}
        return _shown(self._ensemble.predict(_INPUTS, verbose=0))

    def _as_model(self) -> dict[str, Any]:
        if self._ensemble is None:
            return {"outcome": "not tried"}
        model = self._ensemble.as_model()
        return _shown(np.asarray(model(_INPUTS)))

    def _inspect(self) -> dict[str, Any]:
        found = self._command("inspect", self._place.run)
        if found:
            return found
        return self._command("inspect", self._place.run, "--json")

    def _report(self) -> dict[str, Any]:
        return self._command(
            "report", self._place.run, "-o", self._place.out / "report.html"
        )

    def _saved_model(self) -> dict[str, Any]:
        return self._export("saved_model", self._place.out / "saved_model")

    def _onnx(self) -> dict[str, Any]:
        return self._export("onnx", self._place.out / "model.onnx")

    def _export(self, format: str, output: Any) -> dict[str, Any]:
        return self._command(
            *("export", self._place.run, "--format", format),
            *("--output", output),
        )

    def _verify(self) -> dict[str, Any]:
        return self._command(
            *("verify", self._shared / "finished.onnx"),
            *("--run", self._place.run),
        )

    def _save(self) -> dict[str, Any]:
        if self._ensemble is None:
            return {"outcome": "not tried"}
        self._ensemble.save(self._place.out / "saved")
        self._load(self._place.out / "saved")
        return self._predict()

    def _resume(self) -> dict[str, Any]:
        pristine.train(self._place.run, resume=True)
        self._load()
        return self._predict()

    def _overwrite(self) -> dict[str, Any]:
        pristine.train(self._place.run, overwrite=True)
        self._load()
        return self._predict()

    def _file(self) -> dict[str, Any]:
        """The command of a case that is about a file."""
        assert self._case.command is not None
        return self._command(*self._case.command(self._place))


def load(directory: Any) -> CheckpointEnsemble:
    """Loads a run as one from elsewhere."""
    return CheckpointEnsemble.load(directory, max_bytes=LIMIT)


def _shown(prediction: np.ndarray) -> dict[str, Any]:
    return {
        "prediction": prediction.tobytes().hex(),
        "is_finite": bool(np.isfinite(prediction).all()),
    }


def _is_about_memory(error: BaseException | None) -> bool:
    """Whether memory was asked for before someone said no."""
    while error is not None:
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError) or re.search(
            r"ResourceExhausted|OOM when|Unable to allocate|bad_alloc", text
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def set_up_process(place: Place, home: Any) -> None:
    """A child's own surroundings, before TensorFlow makes its threads."""
    import tempfile

    import tensorflow as tf

    os.environ["HOME"] = os.environ["MPLCONFIGDIR"] = str(home)
    os.environ["TMPDIR"] = tempfile.tempdir = str(place.tmp)
    os.chdir(place.out)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    options = {"disable_meta_optimizer": True}
    tf.config.optimizer.set_experimental_options(options)
