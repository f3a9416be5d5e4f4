"""Tests of what a person sees."""

import io
import re

import pytest
import rich.console

from cbnn_keras.support.console import Reporter, paragraph, printable


def on_terminal(reporter):
    """Makes the reporter write to a terminal that can be read back."""
    screen = io.StringIO()
    reporter._console = rich.console.Console(
        file=screen,
        force_terminal=True,
        force_interactive=True,
        width=80,
        markup=False,
        highlight=False,
        _environ={"TERM": "xterm"},
    )
    return screen


def test_silent_with_verbose_0(capsys):
    reporter = Reporter(verbose=0)
    reporter.line("a line")
    reporter.line("another", during_epoch=True)
    assert list(reporter.track([1, 2], 2, "scoring")) == [1, 2]
    assert reporter.is_silent
    assert capsys.readouterr() == ("", "")


def test_silent_on_a_terminal_too():
    reporter = Reporter(verbose=0)
    screen = on_terminal(reporter)
    reporter.line("a line", during_epoch=True)
    assert list(reporter.track([1, 2], 2, "scoring")) == [1, 2]
    assert screen.getvalue() == ""


@pytest.mark.parametrize(
    ("verbose", "lead"), [(1, "\n"), ("auto", "\n"), (2, "")]
)
def test_a_line_break_after_a_bar_alone(verbose, lead, capsys):
    reporter = Reporter(verbose)
    assert not reporter.is_silent
    reporter.line("first")
    assert capsys.readouterr().out == "first\n"
    reporter.line("second", during_epoch=True)
    assert capsys.readouterr().out == lead + "second\n"


def test_lines_are_printed_as_they_are(capsys):
    text = "[bold]runs/a[/bold] " + "long " * 60 + ":tada: 0.25"
    Reporter(verbose=2).line(text)
    assert capsys.readouterr().out == text + "\n"


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_track_passes_the_items_on(verbose, capsys):
    items = (c for c in "abc")
    tracked = Reporter(verbose).track(items, 3, "scoring")
    assert next(tracked) == "a"
    assert list(tracked) == ["b", "c"]
    # Not interactive: neither a bar nor an empty line.
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal_goes_away():
    reporter = Reporter(verbose=1)
    screen = on_terminal(reporter)
    assert list(reporter.track(range(3), 3, "scoring step 7")) == [0, 1, 2]
    shown = screen.getvalue()
    assert "scoring step 7" in shown
    assert "100%" in shown
    # Its line is cleared at the end, and the cursor is back.
    assert shown.rindex("\x1b[2K") > shown.rindex("100%")
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


@pytest.mark.parametrize("how", ["stops early", "fails", "source fails"])
def test_the_cursor_is_back_however_it_ends(how):
    reporter = Reporter(verbose=1)
    screen = on_terminal(reporter)

    def source():
        yield 1
        if how == "source fails":
            raise OSError("disk")
        yield 2

    tracked = reporter.track(source(), 2, "scoring")
    assert next(tracked) == 1
    if how == "stops early":
        tracked.close()
    elif how == "fails":
        with pytest.raises(KeyError):
            tracked.throw(KeyError("consumer"))
    else:
        with pytest.raises(OSError, match="disk"):
            next(tracked)
    shown = screen.getvalue()
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    # Another bar can be shown: the first no longer holds the screen.
    assert list(reporter.track([5], 1, "again")) == [5]
    assert "again" in screen.getvalue()


# --- Work of unknown length ---


@pytest.mark.parametrize("terminal", [False, True])
def test_status_is_silent_with_verbose_0(terminal, capsys):
    reporter = Reporter(verbose=0)
    screen = on_terminal(reporter) if terminal else None
    done = []
    with reporter.status("converting"):
        done.append(1)
    assert done == [1]
    assert capsys.readouterr() == ("", "")
    assert not terminal or screen.getvalue() == ""


@pytest.mark.parametrize("verbose", [1, 2, "auto"])
def test_status_is_a_line_where_nothing_can_move(verbose, capsys):
    with Reporter(verbose).status("[b]converting[/b] :tada: a.onnx"):
        # It is there while the work goes on, and only once.
        shown = capsys.readouterr()
        assert shown == ("[b]converting[/b] :tada: a.onnx ...\n", "")
    assert capsys.readouterr() == ("", "")


def without_colours(shown):
    return re.sub(r"\x1b\[[0-9;]*m", "", shown)


def test_status_on_a_terminal_goes_away():
    reporter = Reporter(verbose=1)
    screen = on_terminal(reporter)
    with reporter.status("converting to ONNX"):
        during = screen.getvalue()
        assert "\x1b[?25l" in during and "\x1b[?25h" not in during
    shown = without_colours(screen.getvalue())
    # What, and for how long.
    assert re.search(r"converting to ONNX.*0:00:00", shown)
    assert "converting to ONNX ..." not in shown
    assert shown.rindex("\x1b[2K") > shown.rindex("converting to ONNX")
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("verbose", [0, 1])
def test_failure_of_the_work_is_passed_on(verbose, terminal, capsys):
    reporter = Reporter(verbose)
    screen = on_terminal(reporter) if terminal else io.StringIO()
    with pytest.raises(OSError, match="disk"):
        with reporter.status("converting"):
            raise OSError("disk")
    shown = screen.getvalue()
    assert shown.count("\x1b[?25h") >= shown.count("\x1b[?25l")
    # Another can be shown: the first no longer holds the screen.
    with reporter.status("again"):
        pass
    if terminal and verbose:
        assert "again" in screen.getvalue()


def test_status_says_brackets_as_they_are_on_a_terminal_too():
    reporter = Reporter(verbose=1)
    screen = on_terminal(reporter)
    with reporter.status("writing [bold]runs/a[/bold]"):
        pass
    assert "writing [bold]runs/a[/bold]" in without_colours(screen.getvalue())


# --- What is shown and not obeyed ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain größe 青い \U0001f600 [bold] \\x1b", None),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\rb\tc\nd\0\x7f", r"a\rb\tc\nd\x00\x7f"),
        ("\x9b2J\x85", r"\x9b2J\x85"),
        ("\u202etxt\u2066\u2069\u200f", r"\u202etxt\u2066\u2069\u200f"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\udcff", r"\udcff"),
    ],
)
def test_control_characters_are_shown(text, expected):
    assert printable(text) == (text if expected is None else expected)


def test_characters_that_are_kept():
    assert printable("a\n\x1b", keep="\n") == "a\n\\x1b"
    assert printable(3) == "3"


def test_an_error_is_one_paragraph():
    assert paragraph(ValueError(" a  b\n\n  c\x1b\n")) == r"a  b c\x1b"


def test_lines_are_shown_and_not_obeyed(capsys):
    Reporter(2).line("a\x1b[2J\nb")
    with Reporter(2).status("c\x1b[2J"):
        pass
    assert capsys.readouterr().out == "a\\x1b[2J\nb\nc\\x1b[2J ...\n"
