"""`cbnn report`: a page that says what the run has to say, and nothing else."""

import html.parser
import re
import shutil
import subprocess
import sys

import keras
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

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.analysis import Labelled, examine, write_report
from cbnn_keras.analysis.evaluation import Evaluation
from cbnn_keras.analysis.report import sections
from cbnn_keras.analysis.report.sample_sections import (
    ClassNames,
    hardest_section,
)
from cbnn_keras.baselines import PlainCheckpoints
from cbnn_keras.commands import cli

X, Y = blobs()
# Of the same clusters, in another order: labels tell data apart.
X_NEW, Y_NEW = (array[:119:-1] for array in blobs(num_samples=180))
VOID = {"img", "br", "meta", "link"}
OUTSIDE = re.compile(r'(?:src|href)="(?!#|data:)[^"]*"|url\((?!#)|@import')


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
def place(tmp_path_factory):
    """A run and its data, as files."""
    keras.utils.set_random_seed(0)
    folder = tmp_path_factory.mktemp("report")
    trained(folder / "run", num_checkpoints=3)
    np.savez(folder / "train.npz", x=X, y=Y)
    np.savez(folder / "new.npz", x=X_NEW, y=Y_NEW)
    (folder / "names.txt").write_text("rot & <b>\ngrün\nblau\n", "utf-8")
    return folder


@pytest.fixture(scope="module")
def page(place):
    arguments = [
        "report",
        str(place / "run"),
        "--data",
        str(place / "train.npz"),
        str(place / "new.npz"),
        "-o",
        str(place / "full.html"),
        "--suspects",
        str(place / "suspects.csv"),
        "--class-names",
        str(place / "names.txt"),
    ]
    assert cli.main(arguments) == 0
    return check(place / "full.html")


def test_the_summary_compares_with_the_final_model(place, page):
    text = page.text["summary"]
    ensemble = CheckpointEnsemble.load(place / "run")
    for name, members in {
        "final model": ensemble.select(num=1),
        "ensemble": ensemble,
    }.items():
        found = members.evaluate(X_NEW, Y_NEW, verbose=0)
        error = f"{100 * (1 - found['accuracy']):.2f}"
        likelihood = f"{found['negative_log_likelihood']:.4f}"
        assert f"{name} {error} {likelihood}" in text
    assert "60 samples of new.npz, which the members were not trained" in text


def test_every_round_is_told(place, page):
    run = CheckpointEnsemble.load(place / "run").run
    for r in run.rounds:
        row = (
            f"{r['step']} {r['epoch'] + 1} {r['error']:.4f} {r['vote']:.3f} "
            f"{r['normaliser']:.4f} {r['bound']:.4f} "
            f"{r['exponential_loss']:.4f}"
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


def test_samples_have_label_and_opinions(place, page):
    run = CheckpointEnsemble.load(place / "run").run
    weights = run.replay().weights * 120
    hardest = int(np.argmax(weights))
    assert f"weight {weights[hardest]:.3f}" in page.text["hardest"]
    assert page.num["hardest", "li"] == 24
    suspects = pandas.read_csv(place / "suspects.csv")
    num = suspects["is_label_issue"].sum()
    assert page.num["suspects", "li"] == min(num, 24)
    # Values of a table, and escaped names of classes.
    assert "rot &amp; &lt;b&gt;" in page.source
    assert "ensemble says" in page.text["suspects"]


def test_settings_and_versions(page):
    text = page.text["settings"]
    assert "method cbnn" in text
    assert "deviation rate 0.01" in text
    assert f"Keras {keras.__version__}" in text


def test_suspects_as_csv(place, page):
    found = pandas.read_csv(place / "suspects.csv")
    assert len(found) == 120
    np.testing.assert_array_equal(found["given_label"], Y)
    worst = int(found["rank"].argmin())
    # The first card of the section is that sample.
    assert f"sample {worst} " in page.text["suspects"][:600]


def test_without_data_it_says_what_to_give(place, tmp_path, capsys):
    output = tmp_path / "deep" / "report.html"
    assert cli.main(["report", str(place / "run"), "-o", str(output)]) == 0
    found = check(output)
    assert "--data test.npz" in found.text["summary"]
    assert "--data train.npz test.npz" in found.text["hardest"]
    assert found.num["diversity", "svg"] == 1
    assert f"The report is in {output}." in capsys.readouterr().out
    assert not list(output.parent.glob("*.new"))


def test_training_data_alone_are_called_so(place, tmp_path):
    ensemble = CheckpointEnsemble.load(place / "run")
    data = [Labelled("mine", X, Y)]
    write_report([ensemble], tmp_path / "a.html", data=data, verbose=0)
    assert "TRAINED ON" in check(tmp_path / "a.html").text["summary"]


def test_other_inputs_than_those_of_training_are_noticed(place, tmp_path):
    ensemble = CheckpointEnsemble.load(place / "run")
    data = [Labelled("mine", X[::-1], Y)]
    write_report([ensemble], tmp_path / "a.html", data=data, verbose=0)
    text = check(tmp_path / "a.html").text["summary"]
    assert "the inputs have changed" in text


def test_runs_side_by_side(place, tmp_path):
    callback = PlainCheckpoints(tmp_path / "plain", num_checkpoints=2)
    train = callback.weighted(X, Y, batch_size=20, seed=1)
    model = dense_model()
    model.fit(train, epochs=3, callbacks=[callback], verbose=0)
    output = tmp_path / "two.html"
    arguments = ["report", str(place / "run"), str(tmp_path / "plain")]
    arguments += ["--data", str(place / "new.npz"), "--data"]
    arguments += [str(place / "train.npz"), "-o", str(output)]
    assert cli.main(arguments) == 0
    found = check(output)
    for section in SECTIONS:
        assert "run" in found.text[section]
        assert "plain" in found.text[section]
        assert found.num[section, "h3"] == 2
    assert "'no-cycle' does not boost" in found.text["rounds"]
    assert found.num["diversity", "svg"] == 4


def image_model(**options):
    model = keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", **options)
    return model


@pytest.mark.filterwarnings("ignore:At step")
def test_binary_images(tmp_path):
    x = np.random.default_rng(0).random((40, 4, 4, 1)).astype("float32")
    y = (x.mean(axis=(1, 2, 3)) > 0.5).astype(int)
    callback = CBNNCallback(num_checkpoints=2)
    model = image_model()
    train = callback.weighted(x, y, batch_size=20)
    model.fit(train, epochs=4, callbacks=[callback], verbose=0)
    data = [Labelled("images", x, y)]
    output = tmp_path / "a.html"
    write_report([callback.ensemble()], output, data=data, verbose=0)
    found = check(output)
    assert found.num["hardest", "img"] == 24
    assert 'src="data:image/png;base64,' in found.source


@pytest.mark.filterwarnings("ignore:At step")
def test_texts(tmp_path):
    x = np.array(["red <i>", "green", "blue & red", "green blue"] * 10, object)
    y = np.arange(40) % 3
    callback = CBNNCallback(num_checkpoints=2)
    model = text_model()
    model.compile("adam", "sparse_categorical_crossentropy")
    train = callback.weighted(x, y, batch_size=20)
    model.fit(train, epochs=2, callbacks=[callback], verbose=0)
    data = [Labelled("texts", x, y)]
    output = tmp_path / "a.html"
    write_report([callback.ensemble()], output, data=data, verbose=0)
    found = check(output)
    assert "blue & red" in found.text["hardest"]
    assert "<i>" in found.text["suspects"]
    assert "red <i>" not in found.source


def test_the_loss_plane_is_drawn_and_kept(place, tmp_path, monkeypatch):
    from cbnn_keras.analysis.report import report

    monkeypatch.setattr(report, "_RESOLUTION", 3)
    output = tmp_path / "plane.html"
    arguments = ["report", str(place / "run"), "--loss-plane", "--data"]
    arguments += [str(place / "train.npz"), "-o", str(output)]
    assert cli.main(arguments) == 0
    sections = [*SECTIONS[:-1], "loss-plane", SECTIONS[-1]]
    assert check(output, sections).num["loss-plane", "svg"] == 3
    [kept] = tmp_path.glob("plane.loss-plane-*.npz")
    before = kept.stat().st_mtime_ns
    assert cli.main(arguments) == 0
    assert kept.stat().st_mtime_ns == before


def test_a_loss_plane_that_cannot_be_drawn_costs_no_page(place, capsys):
    output = place / "no-plane.html"
    arguments = ["report", str(place / "run"), "--loss-plane", "--data"]
    arguments += [str(place / "new.npz"), "-o", str(output)]
    assert cli.main(arguments) == 0
    sections = [*SECTIONS[:-1], "loss-plane", SECTIONS[-1]]
    reason = "The loss plane of run needs its training data"
    assert reason in check(output, sections).text["loss-plane"]
    assert reason in capsys.readouterr().out
    ensemble = CheckpointEnsemble.load(place / "run").select(num=2)
    write_report(
        [ensemble],
        output,
        data=[Labelled("train", X, Y)],
        with_loss_plane=True,
        verbose=0,
    )
    text = check(output, sections).text
    assert (
        "A plane takes three members; the ensemble has 2" in text["loss-plane"]
    )
    assert "left out" in text["rounds"]


def test_names_with_dollars_and_underscores(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "_p$x^$")
    output = tmp_path / "a.html"
    names = ["a_$x^$", "$b$", "c$"]
    data = [Labelled("train", X, Y)]
    write_report(
        [tmp_path / "_p$x^$"], output, data=data, class_names=names, verbose=0
    )
    found = check(output)
    assert "_p$x^$" in found.text["growth"]
    assert "a_$x^$" in found.text["weights"]


def test_the_style_of_the_user_stays_outside(place, tmp_path):
    import matplotlib

    settings = {"text.usetex": True, "svg.image_inline": False}
    with matplotlib.rc_context(settings):
        write_report([place / "run"], tmp_path / "a.html", verbose=0)
    check(tmp_path / "a.html")
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_one_member_is_compared_with_nothing(tmp_path):
    callback, _, _, _ = trained(num_checkpoints=1)
    output = tmp_path / "a.html"
    data = [Labelled("new", X_NEW, Y_NEW)]
    write_report([callback.ensemble()], output, data=data, verbose=0)
    text = check(output).text
    assert "one member: there is nothing to compare" in text["summary"]
    assert "All samples have the same weight" in text["hardest"]
    write_report([callback.ensemble()], output, verbose=0)
    assert "1 member. The last one" in check(output).text["summary"]


@pytest.mark.filterwarnings("ignore:At step")
def test_texts_in_a_file(tmp_path):
    x = np.array(["red", "green", "blue", "green blue"] * 10)
    y = np.arange(40) % 3
    callback = CBNNCallback(tmp_path / "run", num_checkpoints=1)
    model = text_model()
    model.compile("adam", "sparse_categorical_crossentropy")
    train = callback.weighted(x.astype(object), y, batch_size=20)
    model.fit(train, epochs=3, callbacks=[callback], verbose=0)
    np.savez(tmp_path / "train.npz", x=x, y=y)
    arguments = ["report", str(tmp_path / "run"), "--data"]
    arguments += [str(tmp_path / "train.npz"), "-o", str(tmp_path / "a.html")]
    assert cli.main(arguments) == 0
    assert "green blue" in check(tmp_path / "a.html").text["hardest"]
    # In Python too, whatever the form of the strings.
    ensemble = CheckpointEnsemble.load(tmp_path / "run")
    np.testing.assert_array_equal(
        ensemble.predict(x, verbose=0),
        ensemble.predict(x.astype(object), verbose=0),
    )


def test_the_same_run_gives_the_same_page(place, tmp_path):
    pages = []
    for _ in range(2):
        write_report([place / "run"], tmp_path / "a.html", verbose=0)
        pages.append((tmp_path / "a.html").read_bytes())
    assert pages[0] == pages[1]


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
def test_usage_errors(arguments, message, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    with pytest.raises(SystemExit) as error:
        cli.main(["report", *arguments])
    assert error.value.code == 2
    assert message in capsys.readouterr().err
    assert not (place / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-run"], "no-such-run holds no run"),
        (["run", "--data", "no.npz"], "no.npz is not an .npz file"),
        (["run", "--data", "names.txt"], "names.txt is not an .npz file"),
        (["run", "-o", "."], ". is a directory; give the name of a file"),
        (["run", "--data", "unlabelled.npz"], "holds no labels `y`"),
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
            "new.npz holds data, and is not replaced.",
        ),
        (
            ["run", "--data", "new.npz", "--suspects", "report.html"],
            "report.html cannot be the page and the table at once.",
        ),
        (["run", "--class-names", "latin.txt"], "latin.txt is not in UTF-8"),
        (["run", "--data", "single.npz"], "'classes' is a single value."),
    ],
)
def test_what_is_refused(arguments, message, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    np.savez("unlabelled.npz", x=X)
    np.savez("single.npz", x=X, y=Y, classes=3)
    (place / "short.txt").write_text("a\nb\n")
    (place / "latin.txt").write_text("grün\n", "latin-1")
    assert cli.main(["report", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("cbnn: ")
    assert message in error
    assert not (place / "report.html").exists()


def test_one_run_and_one_data_set_need_no_lists(place, tmp_path):
    output = tmp_path / "a.html"
    data = Labelled("frame", pandas.DataFrame(X), pandas.Series(Y))
    write_report(str(place / "run"), output, data=data, verbose=0)
    text = check(output).text
    assert "TRAINED ON" in text["summary"]
    assert re.search(r"0: -?\d+\.\d+ 1: -?\d", text["hardest"])
    ensemble = CheckpointEnsemble.load(place / "run")
    write_report(ensemble, output, verbose=0)
    check(output)
    with pytest.raises(ValueError, match=r"as Labelled\(name, x, y\)\.$"):
        write_report(ensemble, output, data=[(X, Y)])


def test_samples_that_nobody_is_wrong_about():
    [found] = examine([memory_ensemble(dense_model(), [1.0, 1.0])])
    section = hardest_section([found], ClassNames(None))
    [part] = section.parts
    assert part.texts == ["No checkpoint was wrong about any sample."]


def test_advice_where_the_ensemble_is_no_better(page, tmp_path):
    evaluation = Evaluation(
        Labelled("new", None, None),
        False,
        True,
        "final model",
        np.zeros(40, dtype=int),
        np.stack([np.eye(2)[np.ones(40, int)], np.eye(2)[np.zeros(40, int)]]),
        np.array([2.0, 1.0]),
    )
    verdict = sections._verdict(evaluation)
    assert verdict.startswith("The ensemble is worse by 100.00 points: it is")
    assert verdict.endswith(
        "select(validation_data=...), which chooses among them."
    )


def test_suspects_of_several_runs(place, tmp_path):
    with pytest.raises(ValueError, match=r"give one run, and its data\.$"):
        write_report(
            [place / "run"], tmp_path / "a.html", suspects=tmp_path / "a.csv"
        )
    with pytest.raises(ValueError, match=r"write_report: give one run at"):
        write_report([], tmp_path / "a.html")


def test_the_run_may_follow_the_data(place, tmp_path):
    output = tmp_path / "a.html"
    arguments = ["report", "-o", str(output), "--data"]
    arguments += [str(place / "new.npz"), str(place / "run")]
    assert cli.main(arguments) == 0
    assert "60 samples of new.npz" in check(output).text["summary"]


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package_is_named(package, place, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main(["report", str(place / "run"), "-o", "a.html"]) == 1
    assert (
        f"cbnn: This needs {package}: pip install " in capsys.readouterr().err
    )


def test_as_a_command(place, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "cbnn_keras", "report", place / "run"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "The report is in report.html. Open it in a browser.\n"
    )
    assert done.stderr == ""
    check(tmp_path / "report.html")
