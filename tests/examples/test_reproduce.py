"""The grid of the paper's tables, small, killed, and gone on with."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers import blobs, dense_model
from recipes import published, tables
from recipes.training import (
    METHODS,
    Recipe,
    Tabulated,
    paper_rate,
    train,
)

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.commands.inspect import inspect_run
from cbnn_keras.export import export_onnx

ROOT = pathlib.Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "tfds"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="the CIFAR-100 files of TFDS are not here"
)


def line(method, error, seed=0, *, treatment="original", **recipe):
    job = {
        "table": "table1",
        "recipe": {"dataset": "cifar100", "model": "resnet110", **recipe},
        "method": method,
        "seed": seed,
        "treatment": treatment,
    }
    return {
        "job": job,
        "error": error,
        "final_error": error + 1,
        "selected_error": error - 1,
        "negative_log_likelihood": error / 10,
        "num_members": 6,
    }


def test_table1_has_mean_deviation_and_the_papers_figure():
    lines = [line("single", 30.0, 0), line("single", 32.0, 1)]
    lines.append(line("cbnn", 25.0))
    text = tables.table1(lines)
    # Standard deviation of 30 and 32: sqrt(2).
    assert (
        "| Single | 31.00 ± 1.41 (2) | 32.00 ± 1.41 (2) | 30.00 ± 1.41 (2) "
        "| 3.10 ± 0.14 (2) | 6 | 27.67 ± 0.25 |" in text
    )
    assert "| CBNN | 25.00 (1) |" in text
    assert "23.51 ± 0.20 |" in text
    assert "Recipe: dataset cifar100, model resnet110." in text
    # A model that the paper does not have stands beside one that it has.
    small = tables.table1([line("cbnn", 70.0, model="resnet8")])
    assert "| 23.51 ± 0.20 (resnet110) |" in small


def test_recipes_have_tables_of_their_own():
    lines = [line("sse", 30.0, epochs=3), line("sse", 40.0, epochs=4)]
    text = tables.table1(lines)
    assert text.count("### Test error") == 2
    assert "30.00 (1)" in text and "40.00 (1)" in text
    assert tables.table1([]) == "There are no results yet.\n"


def test_table2_takes_the_first_time_that_an_accuracy_is_reached():
    curve = [
        {"step": 1000, "seconds": 60.0, "accuracy": 0.3},
        {"step": 2000, "seconds": 120.0, "accuracy": 0.55},
        {"step": 3000, "seconds": 180.0, "accuracy": 0.5},
    ]
    slower = [{**point, "accuracy": 0.2} for point in curve]
    lines = [
        {"job": line("single", 0)["job"], "curve": curve},
        {"job": line("cbnn", 0)["job"], "curve": slower},
    ]
    # 0.6, 0.8 and 0.95 of 55 %, since the paper's 70 % is out of reach.
    assert tables.levels("cifar100", lines) == [33, 44, 52]
    text = tables.table2(lines)
    assert "| 33 % | Single | 2.00 (1) | 2.00 (1) | - |" in text
    assert "| 33 % | CBNN | not reached | not reached | - |" in text
    good = [{"step": 1, "seconds": 3600.0, "accuracy": 0.71}]
    lines = [{"job": line("single", 0)["job"], "curve": good}]
    assert tables.levels("cifar100", lines) == [40, 60, 70]
    assert "| 40 % | Single | 60.00 (1) | 0.00 (1) | 0.91 ± 0.08 |" in (
        tables.table2(lines)
    )


def test_accuracies_to_reach_without_a_single_model():
    curve = [{"step": 1, "seconds": 1.0, "accuracy": 0.5}]
    lines = [{"job": line("cbnn", 0)["job"], "curve": curve}]
    assert tables.levels("cifar100", lines) == [30, 40, 47]


def test_table3_is_by_treatment():
    model = {"model": "efficientnet-b0"}
    lines = [
        line("single", 29.0, **model),
        line("single", 27.0, treatment="thresholding", **model),
    ]
    text = tables.table3(lines)
    assert "| original | Single | 29.00 (1) | 29.19 |" in text
    assert "| thresholding | Single | 27.00 (1) | 26.93 |" in text


def test_published_figures_are_complete():
    assert len(published.TABLE1) == 14
    assert all(
        set(row) == {"single", "sse", "ssb", "fge", "cbnn"}
        for row in published.TABLE1.values()
    )
    # The abstract: CBNN needs 64.5 % of the time of a single model.
    hours = published.TABLE2["cifar100", 70]
    assert round(hours["cbnn"][0] / hours["single"][0], 3) == 0.645


def test_paper_rate_is_that_of_the_paper_and_scales():
    rate = paper_rate(Recipe(), steps_per_epoch=100)
    assert rate(250) == pytest.approx(0.05 * 0.96 * 0.5)  # half warmed up
    assert rate(20_000) == pytest.approx(0.05 * 0.96**99)
    short = paper_rate(Recipe(epochs=20), steps_per_epoch=1000)
    for step in (100, 250, 7_777, 20_000):
        assert short(step) == pytest.approx(rate(step))


def test_tabulated_rates_reach_the_optimizer():
    rates = [0.1, 0.03, 0.02, 0.01]
    model = dense_model(optimizer=keras.optimizers.SGD(Tabulated(rates)))
    x, y = blobs(40)
    found = []
    for _ in rates:
        found.append(float(model.optimizer.learning_rate))
        model.train_on_batch(x, y)
    np.testing.assert_allclose(found, rates, rtol=1e-6)
    copied = Tabulated.from_config(Tabulated(rates).get_config())
    assert copied.rates == rates


def test_curve_is_of_the_members_so_far_and_the_current_model():
    import reproduce

    x, y = blobs(120)

    class Data:
        x_test, y_test = x, y

    callback = CBNNCallback.paper(num_checkpoints=2)
    curve = reproduce.Curve(callback, Data)
    model = dense_model()
    train_data = callback.weighted(x, y, batch_size=20, seed=1)
    outputs = []
    model.fit(
        train_data,
        epochs=4,
        callbacks=[
            callback,
            curve,
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: outputs.append(
                    model.predict(x, verbose=0)
                )
            ),
        ],
        verbose=0,
    )
    assert [point["step"] for point in curve.points] == [6, 12, 18, 24]
    first, last = callback.ensemble().votes
    expected = [
        outputs[0],
        outputs[1],  # the first member is the model of now
        outputs[1] + outputs[2],  # the same vote as the last member
        first * outputs[1] + last * outputs[3],
    ]
    for point, mean in zip(curve.points, expected, strict=True):
        accuracy = np.mean(mean.argmax(axis=1) == y)
        assert point["accuracy"] == pytest.approx(accuracy)
    seconds = [point["seconds"] for point in curve.points]
    assert seconds == sorted(seconds)


def test_networks_side_by_side_add_their_costs_up():
    import reproduce

    class Curve:
        def __init__(self, step, seconds, probabilities):
            self.points = [{"step": step, "seconds": seconds, "accuracy": 0}]
            self.probabilities = [np.array(probabilities)]

    curves = [
        Curve(10, 2.0, [[0.9, 0.1], [0.6, 0.4]]),
        Curve(10, 3.0, [[0.8, 0.2], [0.1, 0.9]]),
    ]
    [point] = reproduce.parallel_curve(curves, np.array([0, 1]))
    assert point == {"step": 20, "seconds": 5.0, "accuracy": 1.0}


def test_unknown_method_or_augmentation():
    with pytest.raises(ValueError, match="6 epochs cannot be divided among 4"):
        train("pe", Recipe(epochs=6), None, pathlib.Path(), seed=0)
    with pytest.raises(ValueError, match="not one of single, no-cycle"):
        train("adaboost", Recipe(), None, pathlib.Path(), seed=0)
    from recipes.training import _augment

    with pytest.raises(ValueError, match="one of none, standard, autoaug"):
        _augment(Recipe(augment="mixup"))
    assert _augment(Recipe(augment="none")) is None
    assert callable(_augment(Recipe()))


def run_script(tmp_path, *arguments):
    command = [sys.executable, ROOT / "examples" / "reproduce.py", *arguments]
    return subprocess.run(
        [*command, "--data-dir", DATA, "--directory", tmp_path],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stdout


TINY = ["--preset", "cpu", "--quick", "--epochs", "2"]


def test_table_of_nothing(tmp_path, monkeypatch, capsys):
    import reproduce

    arguments = ["table1", "--print", "--directory", str(tmp_path / "none")]
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *arguments])
    reproduce.main()
    assert "There are no results yet." in capsys.readouterr().out


def test_file_has_all_results_and_the_screen_those_that_were_asked_for(
    tmp_path, monkeypatch, capsys
):
    import reproduce

    path = tmp_path / "results.jsonl"
    recipe = Recipe(model="resnet8", epochs=4)
    monkeypatch.setattr(reproduce, "recipes", lambda options: [recipe])
    for seed, error in ((0, 30.0), (1, 32.0)):
        job = reproduce.Job("table1", recipe, "sse", seed)
        reproduce.append_line(path, line("sse", error) | {"job": job.key})
    arguments = ["table1", "--print", "--seeds", "1", "--results", str(path)]
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *arguments])
    reproduce.main()
    assert "| SSE | 32.00 (1) |" in capsys.readouterr().out
    assert "| SSE | 31.00 ± 1.41 (2) |" in path.with_suffix(".md").read_text()


@pytest.mark.large
@needs_data
def test_grid_goes_on_where_it_was(tmp_path):
    results = tmp_path / "table1-cpu-quick.jsonl"
    chosen = ["--methods", "single", "no-cycle", "cbnn"]
    run_script(tmp_path, "table1", *TINY, "--methods", "single")
    results.write_text(results.read_text() + '{"job": {"tab')  # a kill
    output = run_script(tmp_path, "table1", *TINY, *chosen)
    assert "3 results, 2 of them to be trained for" in output
    assert "| CBNN |" in output and "| NoCycle |" in output
    again = run_script(tmp_path, "table1", *TINY, *chosen)
    assert "3 results, 0 of them to be trained for" in again
    lines = [
        json.loads(text)
        for text in results.read_text().splitlines()
        if text.endswith("}")
    ]
    assert [entry["job"]["method"] for entry in lines] == chosen[1:]
    # One training for both, and the single model is its last checkpoint.
    assert lines[0]["error"] == lines[1]["final_error"]
    assert lines[0]["versions"]["keras"] == keras.__version__
    assert "--data-dir DATA" in lines[0]["command"]
    assert "| CBNN |" in results.with_suffix(".md").read_text()


@pytest.mark.large
@needs_data
@pytest.mark.parametrize("table", ["table2", "table3"])
def test_other_tables(table, tmp_path):
    methods = ["--methods", "single", "cbnn", *["pe"] * (table == "table2")]
    output = run_script(tmp_path, table, *TINY, *methods)
    assert "| CBNN |" in output and "| Single |" in output
    lines = (tmp_path / f"{table}-cpu-quick.jsonl").read_text().splitlines()
    if table == "table3":
        treatments = [json.loads(text)["job"]["treatment"] for text in lines]
        assert treatments == [
            "original",
            "thresholding",
            "oversampling",
            "original",
        ]
    else:
        assert len(json.loads(lines[0])["curve"]) == 2


@pytest.fixture(scope="module")
def cifar_split():
    from recipes.training import load_split

    return load_split(Recipe(size=16, num_train=700, num_test=200), DATA)


@pytest.mark.large
@needs_data
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
# Two epochs are not enough for a hundred classes.
@pytest.mark.filterwarnings("ignore:.*no better than chance:UserWarning")
@pytest.mark.parametrize("method", METHODS)
def test_every_method_on_cifar100_loads_inspects_and_exports(
    method, cifar_split, tmp_path
):
    recipe = Recipe(
        model="resnet8",
        epochs=4,
        augment="standard",
        size=16,
        num_train=700,
        num_checkpoints=3,
    )
    ensemble = train(method, recipe, cifar_split, tmp_path / "run", seed=0)
    if method == "pe":
        ensemble.save(tmp_path / "combined")
        directory = tmp_path / "combined"
        assert len(ensemble) == 4
    else:
        directory = tmp_path / "run"
    x = cifar_split.x_test[:20]
    expected = ensemble.predict(x, verbose=0)
    loaded = CheckpointEnsemble.load(directory)
    np.testing.assert_allclose(
        loaded.predict(x, verbose=0), expected, atol=1e-6
    )
    content = inspect_run(directory)
    assert content["is_finished"] and content["header"]["num_classes"] == 100
    artefact = export_onnx(loaded, tmp_path / "run.onnx", verbose=0)
    assert artefact.parity.max_difference <= 1e-5
