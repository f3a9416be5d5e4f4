"""The examples run as they are documented, at a tiny scale."""

import argparse
import ast
import importlib
import os
import pathlib
import re
import runpy
import subprocess
import sys

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from recipes import command, data
from recipes.training import Recipe

from cbnn_keras import CheckpointEnsemble

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))
# Beside a checkout, if at all: the data are not part of the project.
DATA = pathlib.Path(__file__).parents[3] / "shared" / "data"
CIFAR = DATA / "tfds"
TINY = DATA / "tiny-imagenet-20-classes.zip"
SHORT = ["--model", "resnet8", "--size", "16", "--epochs", "2"]
SMALL = ["--images", "300", "--test-images", "100", *SHORT]
ERROR = r" +\d+\.\d\d % test error"

needs_cifar = pytest.mark.skipif(
    not CIFAR.is_dir(), reason="the CIFAR-100 files of TFDS are not here"
)
needs_tiny = pytest.mark.skipif(
    not TINY.is_file(), reason="Tiny-ImageNet is not here"
)


def run_script(name, folder, *arguments):
    """Lines that an example prints, started as a user does."""
    found = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"TF_NUM_INTRAOP_THREADS": "1"},
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


def assert_lines(lines, *patterns):
    assert len(lines) == len(patterns), lines
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line), line


@pytest.mark.parametrize("script", SCRIPTS)
def test_header_says_how_to_run_what_it_costs_and_what_to_expect(script):
    header = ast.get_docstring(ast.parse((EXAMPLES / script).read_text()))
    assert f"python examples/{script}" in header
    for word in ("Cost:", "Expected:"):
        assert re.search(rf"^{word} +\S", header, re.MULTILINE), word
    assert "@" not in header  # a number that was to be filled in
    # What is left to a reader to fill in is not of this machine.
    assert "/work" not in header and "/tmp" not in header


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_the_header(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as exit_info:
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    assert exit_info.value.code == 0
    header = ast.get_docstring(ast.parse((EXAMPLES / script).read_text()))
    assert header.splitlines()[0] in capsys.readouterr().out


def test_options_make_the_recipe_that_they_name():
    defaults = Recipe(model="resnet20", epochs=60)
    parser = command.recipe_parser("", defaults, ["cifar10", "cifar100"])
    assert command.recipe_of(parser.parse_args([])) == defaults
    given = ["--dataset", "cifar10", "--images", "500", "--test-images", "50"]
    given += ["--size", "8", "--model", "resnet8", "--augment", "none"]
    given += ["--epochs", "2", "--batch-size", "16", "--checkpoints", "3"]
    assert command.recipe_of(parser.parse_args(given)) == Recipe(
        dataset="cifar10",
        model="resnet8",
        epochs=2,
        batch_size=16,
        augment="none",
        num_checkpoints=3,
        size=8,
        num_train=500,
        num_test=50,
    )


def test_runs_of_other_recipes_have_other_names():
    recipe = Recipe(num_train=400, epochs=3)
    name = command.run_name(recipe, "cbnn", 0)
    assert name == "cifar100-400-resnet110-autoaugment-cbnn-3-epochs-seed-0"
    names = {
        name,
        command.run_name(recipe, "sse", 0),
        command.run_name(recipe, "cbnn", 1),
        command.run_name(Recipe(num_train=400, epochs=3, size=16), "cbnn", 0),
        command.run_name(Recipe(epochs=3), "cbnn", 0),
    }
    assert len(names) == 5


# cifar.py is in test_cifar.py, on two devices.


@pytest.mark.large
@needs_tiny
def test_tiny_imagenet(tmp_path):
    options = [*SMALL, "--method", "sse", "--checkpoints", "2"]
    lines = run_script(
        "tiny_imagenet.py", tmp_path, "--data-dir", TINY, *options
    )
    members = r" +\d member\(s\),"
    assert_lines(
        lines[-3:],
        rf"final model{members}{ERROR}",
        rf"SSE, all members{members}{ERROR}",
        rf"SSE, selected{members}{ERROR}",
    )
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name == (
        "tiny-imagenet-300-16px-resnet8-autoaugment-sse-2-epochs-seed-0"
    )
    ensemble = CheckpointEnsemble.load(run)
    assert len(ensemble) == 2
    assert ensemble.model.input_shape == (None, 16, 16, 3)
    assert ensemble.classifier.num_classes == 20


@pytest.mark.large
@needs_cifar
def test_imbalanced_on_two_devices(tmp_path):
    lines = run_script(
        "imbalanced.py",
        tmp_path,
        *("--data-dir", CIFAR, *SMALL, "--images", 800, "--batch-size", 100),
        *("--cpus", 2, "--checkpoints", 2),
    )
    assert "20 of 100 classes have a 10th of theirs" in "\n".join(lines)
    assert_lines(
        lines[-6:],
        f"single model{ERROR}",
        f"with thresholding{ERROR}",
        f"with oversampling{ERROR}",
        f"CBNN{ERROR}",
        f"CBNN's final model{ERROR}",
        r"mean sample weight +\d\.\d{4} in rare classes, \d\.\d{4} else",
    )
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(runs) == 3
    sizes = [
        CheckpointEnsemble.load(run).run.header.num_samples for run in runs
    ]
    # CBNN and the single model had the same data, oversampling more.
    assert sizes[0] == sizes[1] < sizes[2], runs


def test_mean_weights_are_those_of_the_two_groups():
    imbalanced = import_example("imbalanced")
    # Of five samples, omega is 0.1 for the first three and more for others.
    weights = np.array([0.1, 0.1, 0.1, 0.3, 0.4])
    booster = argparse.Namespace(distribution=weights)
    run = argparse.Namespace(replay=lambda: booster)
    found = imbalanced.mean_weights(
        argparse.Namespace(run=run),
        np.array([0, 0, 1, 2, 2]),
        np.array([False, False, True]),
    )
    np.testing.assert_allclose(found, (5 * 0.35, 5 * 0.1))


@pytest.mark.large
@needs_cifar
def test_finetune(tmp_path):
    sizes = ["--images", 400, "--size", 16, "--epochs", 2]
    lines = run_script(
        "finetune.py",
        tmp_path,
        *("--data-dir", CIFAR, *sizes, "--backbone-epochs", 1),
    )
    text = "\n".join(lines)
    for name in ("last member", "CBNN", "CBNN, selected"):
        assert re.search(rf"^{name} +\d member\(s\),{ERROR}$", text, re.M)
    assert re.search(r"features once: .* the head with \d checkpoints", text)
    assert "one epoch of the whole network" in text
    runs = tmp_path / "runs"
    # Backbone, then head: by hand what the ONNX file is to say about bytes.
    ensemble = CheckpointEnsemble.load(runs / "finetune")
    backbone = keras.models.load_model(runs / "backbone.keras")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), "uint8")
    expected = ensemble.predict(backbone.predict(pixels, verbose=0), verbose=0)
    session = onnxruntime.InferenceSession(runs / "finetune.onnx")
    [found] = session.run(None, {session.get_inputs()[0].name: pixels})
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.large
def test_export_and_serve(tmp_path):
    lines = run_script("export_and_serve.py", tmp_path, "--epochs", 12)
    text = "\n".join(lines)
    assert re.search(r"most doubtful: sample \d+, \d \(0\.\d\d\), \d", text)
    shares = re.findall(r"^accuracy of (all|accepted) +([\d.]+) %", text, re.M)
    assert [name for name, _ in shares] == ["all", "accepted"]
    assert float(shares[1][1]) >= float(shares[0][1]) > 70
    assert re.search(
        r"^one request: .* ms for 6 members, .* times$", text, re.M
    )
    assert "docker run" in text and "tritonserver" in text
    exports = tmp_path / "runs" / "exports"
    assert len(CheckpointEnsemble.load(exports / "digits-12-epochs")) == 6
    assert (exports / "serving/ensemble/1/saved_model.pb").is_file()
    assert (exports / "models/ensemble/config.pbtxt").is_file()
    session = onnxruntime.InferenceSession(exports / "ensemble.onnx")
    assert {output.name for output in session.get_outputs()} == {
        "probabilities",
        "class",
        "top_k_classes",
        "top_k_probabilities",
        "disagreement",
    }


@pytest.mark.large
@pytest.mark.parametrize(
    "options",
    [["--mixed-precision"], ["--method", "sse"], ["--method", "single"]],
    ids=["cbnn in mixed precision", "sse", "single"],
)
def test_imagenet_on_made_up_images(options, tmp_path, monkeypatch, capsys):
    imagenet = import_example("imagenet")
    monkeypatch.setattr(data, "load_imagenet", made_up_images)
    short = ["--size", "32", "--epochs", "3", "--batch-size", "8"]
    imagenet.main(
        [
            *("--model", "resnet8", *short, "--held-out", "6"),
            *("--shuffle-buffer", "10", "--directory", str(tmp_path)),
            *("--verbose", "0", *options),
        ]
    )
    members = r" +\d member\(s\),"
    assert_lines(
        [x for x in capsys.readouterr().out.splitlines() if "test error" in x],
        f"final model{members}{ERROR}",
        f"all members{members}{ERROR}",
        f"selected members{members}{ERROR}",
    )
    (run,) = tmp_path.iterdir()
    ensemble = CheckpointEnsemble.load(run)
    assert len(ensemble) == (1 if "single" in options else 3)
    assert ensemble.run.header.num_samples == 18  # six are held out
    policy = ensemble.model.layers[2].dtype_policy.name
    is_mixed = "--mixed-precision" in options
    assert policy == ("mixed_bfloat16" if is_mixed else "float32")


def test_learning_rate_of_imagenet_is_that_of_the_paper_stretched():
    imagenet = import_example("imagenet")
    options = argparse.Namespace(epochs=300, learning_rate=0.1)
    rate = imagenet.rate_of(options)
    # Warm-up of 7.5 epochs, times 0.96 every three.
    assert rate(0, 0.0) == pytest.approx(0.1 / 7.5)
    assert rate(9, 0.0) == pytest.approx(0.1 * 0.96**3)
    assert rate(299, 0.0) == pytest.approx(0.1 * 0.96**99)


def made_up_images(data_dir=None, *, size):
    """As many as fit on a hand, in place of ImageNet."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (24, size, size, 3), "uint8")
    labels = generator.integers(0, 1000, 24)
    train = tf.data.Dataset.from_tensor_slices((images, labels))
    return train, train.take(10)


def import_example(name):
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module(name)
