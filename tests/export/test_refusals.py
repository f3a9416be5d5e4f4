"""What no export does: write over a run, or pass half a run off as one."""

import os
import re

import numpy as np
import pytest
from export_helpers import X, tree
from helpers import dense_model, header, memory_ensemble, round_at

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.baselines import parallel_ensemble
from cbnn_keras.export import (
    ServingOptions,
    export_onnx,
    export_saved_model,
    export_triton,
    placing,
)
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.run import MemoryRun
from cbnn_keras.support.faults import RunError

EXPORTS = [export_saved_model, export_onnx, export_triton]


@pytest.fixture(scope="module")
def run(ensemble, tmp_path_factory):
    """The directory of a run that is nobody's in particular."""
    directory = tmp_path_factory.mktemp("runs") / "other"
    ensemble.save(directory)
    return directory


# --- Over a run ---


@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.parametrize(
    "name",
    [
        "model.keras",
        "manifest.json",
        "members/1.weights.h5",
        "members",
        "members/7",
        "new",
        "deep/er/1",
        "../other/new",
    ],
)
def test_nothing_is_written_into_a_run(export, name, ensemble, run):
    before = tree(run)
    path = f"{run}/{name}"
    with pytest.raises(
        RunError, match=r"is inside the run .*other, which is|is a file; a S"
    ):
        export(ensemble, path, verbose=0)
    assert tree(run) == before


def test_a_link_into_a_run(ensemble, run, tmp_path):
    before = tree(run)
    (tmp_path / "model.onnx").symlink_to(run / "manifest.json")
    (tmp_path / "models").symlink_to(run / "members")
    for export, name in (
        (export_onnx, "model.onnx"),
        (export_onnx, "models/a.onnx"),
        (export_saved_model, "models"),
        (export_triton, "models"),
    ):
        with pytest.raises(RunError, match="is inside the run"):
            export(ensemble, tmp_path / name, verbose=0)
    assert tree(run) == before


def test_the_configuration_of_a_server_is_no_file_of_a_run(ensemble, tmp_path):
    """`models.config` goes two directories above a version."""
    ensemble.save(tmp_path / "run")
    (tmp_path / "model").symlink_to(tmp_path / "elsewhere")
    before = tree(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "models.config").symlink_to(tmp_path / "run/manifest.json")
    with pytest.raises(
        RunError, match=r"models\.config is inside the run .*run, which is not"
    ):
        export_saved_model(
            ensemble, tmp_path / "model", serving_config="", verbose=0
        )
    assert tree(tmp_path / "run") == before
    assert not tree(tmp_path / "elsewhere")


def test_an_output_that_is_a_link_elsewhere_is_replaced_itself(
    ensemble, converted_before, tmp_path
):
    mine = tmp_path / "mine.onnx"
    mine.write_bytes(b"mine")
    output = tmp_path / "out.onnx"
    output.symlink_to(mine)
    export_onnx(ensemble, output, verbose=0)
    assert mine.read_bytes() == b"mine"
    assert not output.is_symlink() and os.path.getsize(output) > 100


# --- Unfinished runs ---


def unfinished(run, num):
    model = dense_model()
    for step in range(1, num + 1):
        run.add_round(round_at(step), np.ones(8, dtype=bool), model)
    return CheckpointEnsemble(run, model)


@pytest.mark.parametrize("export", EXPORTS)
def test_an_unfinished_run_has_to_be_asked_for(export, tmp_path):
    model = dense_model()
    directory = tmp_path / "run"
    created = RunDirectory.create(directory, header(model), model)
    ensemble = unfinished(created, 2)
    with pytest.raises(
        RunError,
        match=rf"^{re.escape(str(directory))} is not finished: it has 2 "
        r"members so far, and training has been interrupted or still goes on\. "
        r"Resume it with CBNNCallback\(directory, resume=True\), or export "
        r"what is there with allow_unfinished=True \(--allow-unfinished\)\.$",
    ):
        export(ensemble, tmp_path / "out/model", verbose=0)
    assert not (tmp_path / "out").exists()


def test_an_unfinished_run_in_memory(tmp_path):
    run = MemoryRun(header(dense_model()))
    ensemble = unfinished(run, 1)
    with pytest.raises(
        RunError, match=r"^The run is not finished: it has 1 member so far"
    ):
        export_saved_model(ensemble, tmp_path / "model", verbose=0)
    options = ServingOptions(allow_unfinished=True)
    placing.check_allowed(ensemble, options, tmp_path / "model")
    run.finish()
    placing.check_allowed(ensemble, ServingOptions(), tmp_path / "model")


def test_what_is_there_of_an_unfinished_run(tmp_path):
    ensemble = unfinished(MemoryRun(header(dense_model())), 2)
    artefact = export_saved_model(
        ensemble, tmp_path / "model", verbose=0, allow_unfinished=True
    )
    assert artefact.path == tmp_path / "model/1"
    assert artefact.parity.agreement == 1


def test_a_parallel_ensemble_is_finished(ensemble, tmp_path):
    single = memory_ensemble(dense_model(), [1.0])
    both = parallel_ensemble([single, single])
    assert both.run.is_finished
    assert both.predict(X, verbose=0).shape == (40, 3)
