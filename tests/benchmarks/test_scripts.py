"""The table of scripts is true: every situation ends as it is recorded."""

import pathlib
import textwrap

import pytest
import scripts

ROOT = pathlib.Path(__file__).parents[2]
SITUATIONS = scripts.situations()
RECORDS = scripts.read_records()


@pytest.fixture
def situation(tmp_path, monkeypatch):
    monkeypatch.setattr(scripts, "SCRIPTS", tmp_path)
    path = tmp_path / "data" / "small.py"
    path.parent.mkdir()
    path.write_text(
        textwrap.dedent(
            '''\
            """A title.

            $ cbnn export run
            """

            import keras

            from cbnn_keras import CBNNCallback  # +

            def own():
                # - return 1
                return 2  # +

            # - model.fit(x, y)
            # - gone
            # stays
            cbnn = CBNNCallback()  # +
            other = CBNNCallback("run", resume=True)  # +
            train = cbnn.weighted(x, y)  # +
            '''
        )
    )
    return scripts.Situation.read(path)


def test_marks_tell_the_script_with_cbnn_from_the_one_without(situation):
    assert situation.name == "data/small"
    assert situation.title == "A title."
    assert situation.commands == ("cbnn export run",)
    plain = [line for line in situation.plain.splitlines() if line]
    assert plain == [
        "import keras",
        "def own():",
        "    return 1",
        "model.fit(x, y)",
        "gone",
        "# stays",
    ]
    changed = [line for line in situation.changed.splitlines() if line]
    assert changed == [
        "import keras",
        "from cbnn_keras import CBNNCallback",
        "def own():",
        "    return 2",
        "# stays",
        "cbnn = CBNNCallback()",
        'other = CBNNCallback("run", resume=True)',
        "train = cbnn.weighted(x, y)",
    ]
    # Import, return, two gone, three new.
    assert situation.num_changed == 7
    assert "cbnn = CBNNCallback(deviation_rate=0.1)\n" in situation.boosted
    assert '"run", resume=True, deviation_rate=0.1)' in situation.boosted


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        ("pass", "worked", ""),
        ("import warnings\nwarnings.warn('Mind it.')", "worked", "Mind it."),
        (
            "raise ValueError('a' * 5000)",
            "failed",
            f"ValueError: {'a' * 688} ... (5,012 characters)",
        ),
        ("raise KeyError('top_2')", "failed", "KeyError: 'top_2'"),
        (
            "from cbnn_keras.schedules import checkpoint_steps\n"
            "checkpoint_steps(3, 0)",
            "refused",
            "ValueError: The checkpoint interval is 0 steps",
        ),
        (
            "from cbnn_keras.schedules import checkpoint_steps\n"
            "checkpoint_steps('3', 1)",
            "failed",
            "TypeError: ",
        ),
        (
            "import os, pathlib\n"
            "if not pathlib.Path('a').exists():\n"
            "    pathlib.Path('a').touch()\n"
            "    os.kill(os.getpid(), 9)\n"
            "raise ValueError(os.getcwd() + '/run is\\nhere')",
            "failed",
            "ValueError: run is here",
        ),
    ],
)
def test_what_comes_of_a_script(situation, tmp_path, text, kind, sentence):
    work = tmp_path / "work"
    work.mkdir()
    found = scripts.Work(str(work), situation, ROOT).run(text, [])
    assert found.kind == kind
    assert found.sentence.startswith(sentence)
    assert bool(found.sentence) == bool(sentence)


def test_the_table_is_that_of_the_records():
    assert scripts.TABLE.read_text() == scripts.table(RECORDS)
    assert {each.name for each in SITUATIONS} == set(RECORDS)
    for name, found in RECORDS.items():
        assert {*found} == {"before", "after", "plain"}, name
        assert found["plain"].kind == "worked", name


@pytest.mark.parametrize("each", SITUATIONS, ids=lambda each: each.name)
def test_the_script_without_cbnn_has_nothing_of_it(each):
    assert "cbnn" not in each.plain.lower()
    assert "CBNNCallback(" in each.changed
    compile(each.plain, each.name, "exec")


# What goes through several processes, and what other tests do not have as a
# whole; `python benchmarks/scripts.py` runs the others too.
IN_CI = [
    each
    for each in SITUATIONS
    if each.commands
    or each.name.startswith("runs/")
    or each.name in ("fit/early_stopping", "fit/forgotten", "models/distiller")
]


@pytest.mark.large
@pytest.mark.parametrize("each", IN_CI, ids=lambda each: each.name)
def test_situation(each):
    found = scripts.outcome(each, ROOT, is_compared=False)
    recorded = RECORDS[each.name]["after"]
    assert found.kind == recorded.kind, found.sentence
    assert found.sentence == recorded.sentence
    assert found.members == recorded.members
