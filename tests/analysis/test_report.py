"""`cbnn report`: a page that says what the run has to say, and nothing else."""

import dataclasses
import html.parser
import re
import shutil
import sys

import keras
import matplotlib
import numpy as np
import pandas
import pytest
from helpers import (
    SECTIONS,
    blobs,
    dense_model,
    memory_ensemble,
    text_model,
    trained,
)

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.analysis import Labelled, examine, write_report
from cbnn_keras.analysis.evaluation import Evaluation
from cbnn_keras.analysis.report import report
from cbnn_keras.analysis.report.boosting_sections import _how_far
from cbnn_keras.analysis.report.quality_sections import (
    calibration_section,
    calibration_verdicts,
    likelihood_verdicts,
    summary_section,
    verdict,
)
from cbnn_keras.analysis.report.sample_sections import (
    ClassNames,
    hardest_section,
)
from cbnn_keras.analysis.report.sections import make_sections
from cbnn_keras.baselines import PlainCheckpoints
from cbnn_keras.calibration import CalibrationRecord
from cbnn_keras.commands import cli
from cbnn_keras.support.faults import RunError

X, Y = blobs()
# Of the same clusters, in another order: labels tell data apart.
X_NEW, Y_NEW = (array[:119:-1] for array in blobs(num_samples=180))
VOID = {"img", "br", "meta", "link"}
OUTSIDE = re.compile(r'(?:src|href)="(?!#|data:)[^"]*"|url\((?!#)|@import')
WITH_PLANE = [*SECTIONS[:-1], "loss-plane", SECTIONS[-1]]


class Page(html.parser.HTMLParser):
    """Sections with their text, and tags that are left open."""

    def __init__(self, path):
        super().__init__()
        self.source = path.read_text("utf-8")
        self.open, self.ids = [], []
        self.text = {None: ""}
        self.num = {}
        self.section = None
        self.feed(self.source)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "section":
            self.section = attributes["id"]
            self.text[self.section] = ""
        key = self.section, tag
        self.num[key] = self.num.get(key, 0) + 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "section":
            self.section = None

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text[self.section] += " ".join(data.split()) + " "


def check(path, sections=SECTIONS):
    """Well-formed, complete, and alone."""
    page = Page(path)
    assert page.open == []
    assert [name for name in page.text if name] == sections
    assert len(set(page.ids)) == len(page.ids)
    for name in sections:
        assert f'href="#{name}"' in page.source
    assert not OUTSIDE.findall(page.source)
    assert "nan" not in " ".join(page.text.values()).lower().split()
    assert "None" not in " ".join(page.text.values())
    return page


@pytest.fixture(scope="module")
def directory(tmp_path_factory, blobs_run):
    """A directory with a run and its data, as files."""
    made = tmp_path_factory.mktemp("report")
    shutil.copytree(blobs_run, made / "run")
    np.savez(made / "train.npz", x=X, y=Y)
    np.savez(made / "new.npz", x=X_NEW, y=Y_NEW)
    (made / "names.txt").write_text("rot & <b>\ngrün\na_$x^$\n", "utf-8")
    return made


def cbnn_report(*arguments):
    return cli.main(["report", *map(str, arguments)])


@pytest.fixture(scope="module")
def page(directory):
    # Dollars are formulas to matplotlib, and it hides names with underscores.
    shutil.copytree(directory / "run", directory / "_p$x^$")
    files = ["--data", directory / "train.npz", directory / "new.npz"]
    files += ["-o", directory / "full.html"]
    files += ["--suspects", directory / "suspects.csv"]
    files += ["--class-names", directory / "names.txt"]
    assert cbnn_report(directory / "_p$x^$", *files) == 0
    return check(directory / "full.html")


def test_the_summary_compares_with_the_final_model(directory, page):
    text = page.text["summary"]
    ensemble = CheckpointEnsemble.load(directory / "run")
    for name, members in {
        "final model": ensemble.select(num=1),
        "ensemble": ensemble,
    }.items():
        found = members.evaluate(X_NEW, Y_NEW, verbose=0)
        error = f"{100 * (1 - found['accuracy']):.2f}"
        likelihood = f"{found['negative_log_likelihood']:.4f}"
        assert f"{name} {error} {likelihood}" in text
    assert "60 samples of new.npz, which the members were not trained" in text


def test_every_round_is_told(directory, page):
    for r in CheckpointEnsemble.load(directory / "run").run.rounds:
        row = (
            f"{r.step} {r.epoch + 1} {r.error:.4f} {r.vote:.3f} "
            f"{r.normaliser:.4f} {r.bound:.4f} {r.exponential_loss:.4f}"
        )
        assert row in page.text["rounds"]


def test_plots_are_there_and_have_captions(page):
    numbers = {
        "rounds": 2,
        "growth": 3,
        "diversity": 2,
        "weights": 2,
        "calibration": 1,
    }
    for section, num in numbers.items():
        assert page.num[section, "svg"] == num
        assert page.num[section, "figcaption"] == num
    assert 'role="img" aria-label="' in page.source
    assert "_p$x^$" in page.text["growth"]
    assert "a_$x^$" in page.text["weights"]


def test_samples_have_labels_and_predicted_classes(directory, page):
    run = CheckpointEnsemble.load(directory / "run").run
    weights = run.replay().distribution * 120
    assert f"weight {weights.max():.3f}" in page.text["hardest"]
    assert page.num["hardest", "li"] == 24
    # Values of a table, and escaped names of classes.
    assert "rot &amp; &lt;b&gt;" in page.source
    assert "ensemble says" in page.text["suspects"]


def test_suspects_as_csv(directory, page):
    found = pandas.read_csv(directory / "suspects.csv")
    np.testing.assert_array_equal(found["given_label"], Y)
    assert page.num["suspects", "li"] == min(found["is_label_issue"].sum(), 24)
    # The first card of the section is that sample.
    worst = int(found["rank"].argmin())
    assert f"sample {worst} " in page.text["suspects"][:600]


def test_settings_and_versions(page):
    text = page.text["settings"]
    assert "method cbnn" in text
    assert "deviation rate 0.01" in text
    assert f"Keras {keras.__version__}" in text


def test_without_data_it_says_what_to_give(directory, tmp_path, capsys):
    output = tmp_path / "deep" / "report.html"
    assert cbnn_report(directory / "run", "-o", output) == 0
    found = check(output)
    assert "--data test.npz" in found.text["summary"]
    assert "--data train.npz test.npz" in found.text["hardest"]
    assert found.num["diversity", "svg"] == 1
    assert capsys.readouterr() == (
        f"The report is in {output}. Open it in a browser.\n",
        "",
    )
    # The same page again, whatever style the user likes, and nothing else.
    before = output.read_bytes()
    settings = {"text.usetex": True, "svg.image_inline": False}
    with matplotlib.rc_context(settings):
        write_report(str(directory / "run"), output, verbose=0)
    assert output.read_bytes() == before
    assert [path.name for path in output.parent.iterdir()] == ["report.html"]


@pytest.mark.large
def test_runs_side_by_side(directory, tmp_path):
    callback = PlainCheckpoints(tmp_path / "plain", num_checkpoints=2)
    train = callback.weighted(X, Y, batch_size=20, seed=1)
    dense_model().fit(train, epochs=3, callbacks=[callback], verbose=0)
    runs = [directory / "run", tmp_path / "plain"]
    data = ["--data", directory / "new.npz", "--data", directory / "train.npz"]
    assert cbnn_report(*runs, *data, "-o", tmp_path / "two.html") == 0
    found = check(tmp_path / "two.html")
    for section in SECTIONS:
        assert "run" in found.text[section]
        assert "plain" in found.text[section]
        assert found.num[section, "h3"] == 2
    assert "'no-cycle' has no restarts" in found.text["budget"]
    assert "'no-cycle' does not boost" in found.text["rounds"]
    assert found.num["diversity", "svg"] == 4


@pytest.mark.filterwarnings("ignore:At step")
def test_binary_images(tmp_path):
    x = np.random.default_rng(0).random((40, 4, 4, 1)).astype("float32")
    y = (x.mean(axis=(1, 2, 3)) > 0.5).astype(int)
    last = keras.layers.Dense(1, activation="sigmoid")
    model = keras.Sequential(
        [keras.Input((4, 4, 1)), keras.layers.Flatten(), last]
    )
    model.compile("adam", "binary_crossentropy")
    callback, *_ = trained(data=(x, y), model=model, num_checkpoints=2)
    data = Labelled("images", x, y)
    output = tmp_path / "a.html"
    write_report([callback.ensemble()], output, data=[data], verbose=0)
    found = check(output)
    assert found.num["hardest", "img"] == 24
    assert 'src="data:image/png;base64,' in found.source


@pytest.mark.large
def test_texts_and_their_loss_plane(tmp_path, monkeypatch):
    """Strings are escaped, and hashed by what they say: the plane is kept."""
    monkeypatch.setattr(report, "_RESOLUTION", 3)
    x = np.array(["red <i>", "green", "blue & red", "green blue"] * 10)
    y = np.arange(40) % 4 % 3
    y[0] = 1  # a wrong label
    model = text_model()
    model.compile(
        keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy"
    )
    trained(
        tmp_path / "run",
        data=(x.astype(object), y),
        model=model,
        num_checkpoints=3,
    )
    np.savez(tmp_path / "train.npz", x=x, y=y)
    arguments = [tmp_path / "run", "--loss-plane", "--data"]
    arguments += [tmp_path / "train.npz", "-o", tmp_path / "a.html"]
    assert cbnn_report(*arguments) == 0
    found = check(tmp_path / "a.html", WITH_PLANE)
    assert found.num["loss-plane", "svg"] == 3
    assert "blue & red" in found.text["hardest"]
    assert "red <i>" in found.text["suspects"]
    assert "red <i>" not in found.source
    [kept] = tmp_path.glob("a.loss-plane-*.npz")
    before = kept.stat().st_mtime_ns
    assert cbnn_report(*arguments) == 0
    assert [*tmp_path.glob("a.loss-plane-*.npz")] == [kept]
    assert kept.stat().st_mtime_ns == before
    # In Python too, whatever the form of the strings.
    ensemble = CheckpointEnsemble.load(tmp_path / "run")
    np.testing.assert_array_equal(
        ensemble.predict(x, verbose=0),
        ensemble.predict(x.astype(object), verbose=0),
    )


@pytest.mark.large
def test_a_loss_plane_that_cannot_be_drawn_costs_no_page(directory, capsys):
    output = directory / "no-plane.html"
    # The run may follow the data.
    data = ["--data", directory / "new.npz", directory / "run"]
    assert cbnn_report("--loss-plane", "-o", output, *data) == 0
    found = check(output, WITH_PLANE)
    reason = "The loss plane of run needs its training data"
    assert reason in found.text["loss-plane"]
    assert "60 samples of new.npz" in found.text["summary"]
    assert reason in capsys.readouterr().out
    ensemble = CheckpointEnsemble.load(directory / "run").select(num=2)
    data = [Labelled("train", X, Y)]
    write_report([ensemble], output, data=data, with_loss_plane=True, verbose=0)
    text = check(output, WITH_PLANE).text
    assert (
        "A plane takes three members; the ensemble has 2" in text["loss-plane"]
    )
    assert "left out" in text["rounds"]


def test_one_member_and_one_data_set(tmp_path):
    """It is compared with nothing, and neither needs a list."""
    callback, *_ = trained(num_checkpoints=1)
    ensemble = callback.ensemble()
    data = Labelled("frame", pandas.DataFrame(X), pandas.Series(Y))
    write_report(ensemble, tmp_path / "a.html", data=data, verbose=0)
    text = check(tmp_path / "a.html").text
    assert "TRAINED ON" in text["summary"]
    assert "one member: there is nothing to compare" in text["summary"]
    assert "All samples have the same weight" in text["hardest"]
    assert re.search(r"0: -?\d+\.\d+ 1: -?\d", text["hardest"])
    [part] = summary_section(examine([ensemble])).parts
    assert part.texts[0].startswith("1 member. The last one")


def test_notes_are_in_the_summary(directory):
    data = [Labelled("mine", X[::-1], Y)]
    [part] = summary_section(
        examine([directory / "run"], data, verbose=0)
    ).parts
    assert "the inputs have changed" in part.texts[-1]


def test_samples_that_nobody_is_wrong_about():
    found = examine([memory_ensemble(dense_model(), [1.0, 1.0])])
    [part] = hardest_section(found, ClassNames(None)).parts
    assert part.texts == ["No checkpoint was wrong about any sample."]


def test_advice_where_the_ensemble_is_no_better():
    evaluation = Evaluation(
        Labelled("new", None, None),
        False,
        True,
        "final model",
        np.zeros(40, dtype=int),
        np.stack([np.eye(2)[np.ones(40, int)], np.eye(2)[np.zeros(40, int)]]),
        np.array([2.0, 1.0]),
    )
    text = verdict(evaluation)
    assert text.startswith("The ensemble is worse by 100.00 points: it is")
    assert text.endswith(
        "select(validation_data=...), which chooses among them."
    )


def test_what_a_calibration_does_is_said():
    """0.9 is said of class 0, which 30 of 40 are of; T = 2 makes it 0.75."""
    record = CalibrationRecord(2.0, 1234, [1], [1.0], 0.9, 0.3)
    evaluation = Evaluation(
        Labelled("new", None, None),
        False,
        True,
        "final model",
        np.repeat([0, 1], [30, 10]),
        np.array([[[0.9, 0.1]] * 40]),
        np.array([1.0]),
        record,
    )
    text, of_sets = calibration_verdicts(evaluation)
    # -(0.75 log 0.9 + 0.25 log 0.1), and the same of 0.75 and 0.25
    assert text == (
        "The ensemble is calibrated, with temperature 2.000 from 1,234 "
        "samples: here the calibration error (ECE) goes from 15.00% to 0.00%, "
        "the NLL from 0.6547 to 0.5623."
    )
    assert of_sets == (
        "Sets of coverage 90%: here the label is in 75.0% of them. They have "
        "1.00 classes on average, and 0.0% of them have none."
    )
    with_both = dataclasses.replace(record, threshold=0.8)
    found = dataclasses.replace(evaluation, calibration=with_both)
    assert (
        "have 0.00 classes on average, and 100.0%"
        in (calibration_verdicts(found)[1])
    )
    without = dataclasses.replace(record, threshold=None, coverage=None)
    found = dataclasses.replace(evaluation, calibration=without)
    assert calibration_verdicts(found) == [text]
    assert not calibration_verdicts(
        dataclasses.replace(evaluation, calibration=None)
    )


def test_a_calibrated_run_has_rows_of_its_own():
    ensemble = memory_ensemble(dense_model(), [1.0, 2.0])
    data = [Labelled("new", X_NEW, Y_NEW)]
    [raw] = examine([ensemble], data, verbose=0)
    [before] = summary_section([raw]).parts
    ensemble.run.calibration = CalibrationRecord(2.0, 99, [1, 2], [1.0, 2.0])
    [found] = examine([ensemble], data, verbose=0)
    shown = ensemble.evaluate(X_NEW, Y_NEW, verbose=0)
    likelihood = f"{shown['negative_log_likelihood']:.4f}"
    [part] = summary_section([found]).parts
    *rows, last = part.tables[0].rows
    assert rows == before.tables[0].rows
    assert last[0] == "ensemble, calibrated" and last[2] == likelihood
    [part] = calibration_section([found]).parts
    *_, last = part.tables[0].rows
    assert last[:3] == ["ensemble", "calibrated", likelihood]
    assert last[-1] == "2.000"
    assert any("temperature 2.000 from 99 samples" in t for t in part.texts)
    [part] = make_sections([found])[-1].parts
    said = dict(part.tables[0].rows)
    assert said["calibrated"] == (
        "temperature 2.000 from 99 samples, for 2 members"
    )


def test_the_share_of_a_calibration_is_shown():
    """0.9 of class 0 becomes 0.8 * 0.9 + 0.1 = 0.82, of which 0.75 are so."""
    ensemble = memory_ensemble(dense_model(), [1.0, 2.0])
    ensemble.run.calibration = CalibrationRecord(
        1.0, 99, [1, 2], [1.0, 2.0], share=0.2
    )
    data = [Labelled("new", X_NEW, Y_NEW)]
    [found] = examine([ensemble], data, verbose=0)
    [part] = calibration_section([found]).parts
    assert part.tables[0].rows[-1][-1] == "1.000, share 0.200"
    expected = "temperature 1.000 and share 0.200 from 99 samples"
    assert any(expected in text for text in part.texts)
    shown = ensemble.evaluate(X_NEW, Y_NEW, verbose=0)
    likelihood = f"{shown['negative_log_likelihood']:.4f}"
    assert part.tables[0].rows[-1][2] == likelihood
    [part] = make_sections([found])[-1].parts
    assert expected in dict(part.tables[0].rows)["calibrated"]
    evaluation = dataclasses.replace(
        found.evaluation,
        labels=np.repeat([0, 1], [30, 10]),
        probabilities=np.array([[[0.9, 0.1]] * 40] * 2),
    )
    assert evaluation.calibrated.expected_error == pytest.approx(0.07)


def test_likelihood_is_part_of_the_first_answer():
    """The last member says 0.9 for the label, the other one 0.5."""
    sure, unsure = [[0.9, 0.1]] * 40, [[0.5, 0.5]] * 40
    evaluation = Evaluation(
        Labelled("new", None, None),
        False,
        True,
        "final model",
        np.zeros(40, dtype=int),
        np.array([unsure, sure]),
        np.array([1.0, 1.0]),
    )
    # -log 0.9 and -log 0.7; no scaling, as it cannot be fitted here.
    [text] = likelihood_verdicts(evaluation)
    assert text.startswith("Its likelihood is WORSE: NLL 0.1054 -> 0.3567 (aft")
    assert text.endswith("calibration error (ECE) 10.00% -> 30.00%.")
    same = dataclasses.replace(evaluation, probabilities=np.array([sure] * 2))
    [text] = likelihood_verdicts(same)
    assert text.startswith(
        "Its likelihood is not clearly different: NLL 0.1054"
    )
    alone = dataclasses.replace(
        evaluation, probabilities=np.array([sure]), votes=np.ones(1)
    )
    assert likelihood_verdicts(alone) == []


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (
            [1.0, 1.0],
            "No weight was raised: boosting is asked for (`largest_ratio=`), "
            "and finds nothing to raise where no checkpoint is wrong.",
        ),
        (
            [0.993, 1.014],
            "Boosting has hardly moved the weights: from 0.993 to 1.014.",
        ),
        ([0.5, 1.5], "Boosting has moved the weights: from 0.500 to 1.500."),
    ],
)
def test_how_far_boosting_has_moved_the_weights(weights, expected):
    assert _how_far(np.array(weights)) == expected


# --- Bad input ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--suspects", "a.csv"], "--suspects is for one RUN and needs"),
        (
            ["run", "run", "--suspects", "a.csv", "--data", "new.npz"],
            "--suspects is for one RUN and needs --data FILE",
        ),
        (["run", "--loss-plane"], "--loss-plane needs --data FILE with the"),
        ([], "the following arguments are required: RUN"),
    ],
)
def test_usage_errors(arguments, message, directory, capsys, monkeypatch):
    monkeypatch.chdir(directory)
    with pytest.raises(SystemExit) as error:
        cli.main(["report", *arguments])
    assert error.value.code == 2
    assert message in capsys.readouterr().err
    assert not (directory / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-run"], "no-such-run holds no run"),
        (["run", "--data", "names.txt"], "names.txt is not an .npz file"),
        (["run", "-o", "."], ". is a directory; give the name of a file"),
        (
            ["run", "--class-names", "short.txt"],
            "There are 2 class names for 3 classes. Give one for each",
        ),
        (
            ["run", "-o", "run/manifest.json"],
            "run/manifest.json is inside the run ",
        ),
        (["run", "-o", "new.npz/a.html"], "new.npz/a.html cannot be written: "),
        (
            ["run", "--data", "new.npz", "-o", "new.npz"],
            "new.npz is read as an input, and is not replaced.",
        ),
        (
            ["run", "--data", "new.npz", "--suspects", "report.html"],
            "report.html cannot be the page and the table at once.",
        ),
        (["run", "--class-names", "latin.txt"], "latin.txt is not in UTF-8"),
        (["run", "--data", "single.npz"], "'classes' is a single value."),
    ],
)
def test_what_is_refused(arguments, message, directory, capsys, monkeypatch):
    monkeypatch.chdir(directory)
    np.savez("single.npz", x=X, y=Y, classes=3)
    (directory / "short.txt").write_text("a\nb\n")
    (directory / "latin.txt").write_text("grün\n", "latin-1")
    assert cli.main(["report", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("cbnn: ")
    assert message in error
    assert not (directory / "report.html").exists()


def test_what_write_report_refuses(directory, tmp_path):
    run, output = directory / "run", tmp_path / "a.html"
    with pytest.raises(ValueError, match=r"give one run, and its data\.$"):
        write_report([run], output, suspects=tmp_path / "a.csv")
    with pytest.raises(ValueError, match=r"write_report: give one run at"):
        write_report([], output)
    with pytest.raises(ValueError, match=r"as Labelled\(name, x, y\)\.$"):
        write_report(run, output, data=[(X, Y)])


def test_write_report_leaves_other_runs_alone(directory, tmp_path):
    run, other = directory / "run", tmp_path / "other"
    shutil.copytree(run, other)
    (tmp_path / "page.html").symlink_to(other / "manifest.json")
    before = (other / "manifest.json").read_bytes()
    for output in (
        other / "manifest.json",
        other / "new.html",
        tmp_path / "page.html",
    ):
        with pytest.raises(RunError, match="is inside the run .*/other, which"):
            write_report(run, output, verbose=0)
        with pytest.raises(RunError, match="is inside the run .*/other, which"):
            write_report(
                run,
                tmp_path / "a.html",
                data=Labelled("new", X, Y),
                suspects=output,
                verbose=0,
            )
    assert (other / "manifest.json").read_bytes() == before
    assert not (tmp_path / "a.html").exists()


def test_a_page_that_is_a_link_is_replaced_itself(directory, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "page.html").symlink_to(tmp_path / "mine")
    write_report(directory / "run", tmp_path / "page.html", verbose=0)
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "page.html").is_symlink()


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package_is_named(package, directory, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    assert cbnn_report(directory / "run", "-o", "a.html") == 1
    assert (
        f"cbnn: This needs {package}: pip install " in capsys.readouterr().err
    )
