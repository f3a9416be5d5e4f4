"""Ordinary Keras scripts, and the lines that CBNN changes: what happens?

    git worktree add --detach ../before f1cfec2
    python benchmarks/scripts.py --plain --package before=../before \\
        --package after=.
    python benchmarks/scripts.py --package after=. runs/two_fits data

Every file below `benchmarks/scripts/` is a situation: a script with the lines
of CBNN. Lines that end in `# +` are those, what stands after `# -` was there
before them, and commands after `$` in the docstring follow the script. Each is
run in processes and a directory of its own, with each package; with `--plain`
also the script without CBNN, which has to work.

`results/scripts.jsonl` gets what came of it, and `results/scripts.md` the
table. An hour for two packages on one core; names of situations, or of their
folders, measure those alone again.
"""

import argparse
import dataclasses
import difflib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile

import numpy as np
from PIL import Image
from rich.progress import Progress

HERE = pathlib.Path(__file__).parent
SCRIPTS = HERE / "scripts"
RECORDS = HERE / "results" / "scripts.jsonl"
TABLE = HERE / "results" / "scripts.md"
TIME_LIMIT = 300  # seconds, for one process
MAX_LENGTH = 700  # of a sentence, in characters
# Keras says this of every dataset.
IGNORED = re.compile(
    r"(`shuffle=True` was passed, but will be ignored) since.*?`\)\."
)

# The last exception of a traceback, or what the command line says.
ERROR = re.compile(
    r"^(?:[\w.]+(?:Error|Exception|Interrupt)|cbnn(?: \w+)?)(?:: error)?: ",
    re.MULTILINE,
)
# What nobody wrote a sentence for, wherever it comes from.
CARELESS = re.compile("(Attribute|Index|Key|Name|Type)Error: ")
WARNING = re.compile(r"^\S+:\d+: \w+Warning: (.*)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a script.

    Attributes:
        kind: `"worked"`, `"refused"` (by a sentence of CBNN) or `"failed"`
            (elsewhere).
        sentence: The error, or the warnings of a script that worked.
        members: How many members the run has.
        is_boosted: Whether its final member is another one where boosting is
            asked for; None if that was not tried or is refused.
    """

    kind: str
    sentence: str = ""
    members: int = 0
    is_boosted: bool | None = None


@dataclasses.dataclass(frozen=True)
class Situation:
    """A script without CBNN and with it.

    Attributes:
        name: The path of its file below `scripts/`, without `.py`.
        title: What is special about it.
        plain: The script without CBNN.
        changed: The script with it.
        commands: What is typed after it.
    """

    name: str
    title: str
    plain: str
    changed: str
    commands: tuple[str, ...]

    @classmethod
    def read(cls, path: pathlib.Path) -> "Situation":
        _, doc, text = path.read_text().split('"""', 2)
        lines = text.strip().splitlines()
        before = re.compile(r"^(\s*)# - ")
        plain = [before.sub(r"\1", x) for x in lines if not x.endswith("  # +")]
        changed = [
            x.removesuffix("  # +") for x in lines if not before.match(x)
        ]
        return cls(
            path.relative_to(SCRIPTS).with_suffix("").as_posix(),
            doc.partition("\n")[0],
            "\n".join(plain) + "\n",
            "\n".join(changed) + "\n",
            tuple(re.findall(r"^\$ (.*)$", doc, re.MULTILINE)),
        )

    @property
    def num_changed(self) -> int:
        """Lines that are new, gone or other ones; blank ones aside."""
        plain, changed = (
            [line for line in text.splitlines() if line.strip()]
            for text in (self.plain, self.changed)
        )
        found = difflib.SequenceMatcher(None, plain, changed, autojunk=False)
        return sum(
            max(plain_end - plain_start, end - start)
            for kind, plain_start, plain_end, start, end in found.get_opcodes()
            if kind != "equal"
        )

    @property
    def boosted(self) -> str:
        """The changed script with weights that change a lot."""
        calls = re.compile(r"CBNNCallback\((.*?)\)")
        text = calls.sub(r"CBNNCallback(\1, deviation_rate=0.1)", self.changed)
        return text.replace("(, ", "(")


def situations(names: list[str] | None = None) -> list[Situation]:
    """All of them, or those of these names or folders."""
    found = [Situation.read(path) for path in sorted(SCRIPTS.rglob("*.py"))]
    return [
        each
        for each in found
        if not names or {each.name, each.name.partition("/")[0]} & {*names}
    ]


def plain_outcome(situation: Situation) -> Outcome:
    with tempfile.TemporaryDirectory() as directory:
        work = Work(directory, situation)
        return work.run(situation.plain, [])


def outcome(
    situation: Situation, package: pathlib.Path, *, is_compared: bool = True
) -> Outcome:
    """What comes of the changed script.

    If it worked and has code of its own, which may be on the way to the loss,
    it is run once more with boosting, to see whether weights do anything.
    """
    with tempfile.TemporaryDirectory() as directory:
        work = Work(directory, situation, package)
        found = work.run(situation.changed, situation.commands)
        members = work.members()
    found = dataclasses.replace(found, members=len(members))
    if found.kind != "worked" or len(members) < 2 or not is_compared:
        return found
    if "def " not in situation.changed:  # all of it is Keras'
        return found
    with tempfile.TemporaryDirectory() as directory:
        work = Work(directory, situation, package)
        if work.run(situation.boosted, []).kind != "worked":
            return found
        is_boosted = work.members()[-1:] != members[-1:]
    return dataclasses.replace(found, is_boosted=is_boosted)


class Work:
    """A directory in which a script and commands are run."""

    def __init__(
        self,
        directory: str,
        situation: Situation,
        package: pathlib.Path | None = None,
    ) -> None:
        self.directory = pathlib.Path(directory)
        self.script = situation.name.rpartition("/")[2] + ".py"
        self.environment = os.environ | {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_NUM_INTRAOP_THREADS": "1",  # sums in the same order
            "COLUMNS": "5000",  # sentences on one line
            "PYTHONPATH": "" if package is None else str(package.resolve()),
        }
        _make_data(self.directory)

    def run(self, text: str, commands: tuple[str, ...] | list[str]) -> Outcome:
        """Runs a script, and commands until one fails."""
        (self.directory / self.script).write_text(text)
        said = ""
        for command in [f"python {self.script}", *commands]:
            program, *arguments = shlex.split(command)
            module = ["-m", "cbnn_keras"] if program == "cbnn" else []
            code, errors = self._process(*module, *arguments)
            if code:
                return self._failure(errors)
            said += errors
        warnings = dict.fromkeys(WARNING.findall(said))
        return Outcome("worked", self._sentence(" ".join(warnings)))

    def members(self) -> list[str]:
        """The hash of every member of the run."""
        path = self.directory / "run" / "manifest.json"
        content = json.loads(path.read_text()) if path.exists() else {}
        return [
            content["files"][f"members/{step}.weights.h5"]["sha256"]
            for step in content.get("members", [])
        ]

    def _process(self, *arguments: str) -> tuple[int, str]:
        """The exit code, and what was said; what is killed starts again."""
        for _ in range(2):
            try:
                found = subprocess.run(
                    [sys.executable, *arguments],
                    cwd=self.directory,
                    env=self.environment,
                    capture_output=True,
                    text=True,
                    timeout=TIME_LIMIT,
                )
            except subprocess.TimeoutExpired:
                return 1, f"TimeoutError: no end after {TIME_LIMIT} s"
            if found.returncode != -signal.SIGKILL:
                break
        return found.returncode, found.stderr

    def _failure(self, errors: str) -> Outcome:
        *_, last = [None, *ERROR.finditer(errors)]
        sentence = errors[last.start() :] if last else errors[-500:]
        *_, place = ["", *re.findall(r'^ +File "(.*?)", line', errors, re.M)]
        is_ours = "/cbnn_keras/" in place and not CARELESS.match(sentence)
        is_ours |= bool(re.match("cbnn: (?!error)", sentence))
        return Outcome(
            "refused" if is_ours else "failed", self._sentence(sentence)
        )

    def _sentence(self, text: str) -> str:
        text = " ".join(text.replace(f"{self.directory}/", "").split())
        if len(text) <= MAX_LENGTH:
            return text
        return f"{text[:MAX_LENGTH]} ... ({len(text):,} characters)"


def _make_data(directory: pathlib.Path) -> None:
    """Directories of photos and of reviews, one for each class."""
    generator = np.random.default_rng(0)
    for number, name in enumerate(("daisy", "rose", "tulip")):
        (directory / "photos" / name).mkdir(parents=True)
        for i in range(40):
            pixels = generator.integers(0, 156, (24, 24, 3))
            pixels[..., number] += 100
            image = Image.fromarray(pixels.astype("uint8"))
            image.save(directory / "photos" / name / f"{i}.png")
    words = np.array(["plot", "music", "cast", "long", "short", "old", "new"])
    for name, word in (("negative", "poor"), ("positive", "great")):
        (directory / "reviews" / name).mkdir(parents=True)
        for i in range(60):
            text = [word, *generator.choice(words, 5)]
            path = directory / "reviews" / name / f"{i}.txt"
            path.write_text(" ".join(generator.permutation(text)))


def read_records() -> dict[str, dict[str, Outcome]]:
    """Outcomes by situation and package."""
    found: dict[str, dict[str, Outcome]] = {}
    lines = RECORDS.read_text().splitlines() if RECORDS.exists() else []
    for content in map(json.loads, lines):
        name, package = content.pop("situation"), content.pop("package")
        found.setdefault(name, {})[package] = Outcome(**content)
    return found


def write_records(records: dict[str, dict[str, Outcome]]) -> None:
    lines = [
        json.dumps({"situation": name, "package": package, **vars(found)})
        for name, by_package in sorted(records.items())
        for package, found in sorted(by_package.items())
    ]
    RECORDS.write_text("\n".join(lines) + "\n")


def table(records: dict[str, dict[str, Outcome]]) -> str:
    """Markdown: a line for each situation, a table for each folder."""
    packages = ["before", "after"]
    lines, folder = [_summary(records, packages)], ""
    for situation in situations():
        if folder != (folder := situation.name.partition("/")[0]):
            heads = [folder.capitalize(), "lines changed", *packages]
            lines += ["", _row(heads), _row(["---"] * len(heads))]
        found = records.get(situation.name, {})
        cells = [
            _cell(found[p], situation) if p in found else "" for p in packages
        ]
        title = f"{situation.title} `{situation.name}`"
        lines.append(_row([title, str(situation.num_changed), *cells]))
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _summary(
    records: dict[str, dict[str, Outcome]], packages: list[str]
) -> str:
    parts = []
    for package in packages:
        found = [r[package] for r in records.values() if package in r]
        kinds = [each.kind for each in found]
        num_silent = sum(each.is_boosted is False for each in found)
        parts.append(
            f"**{package}**: {kinds.count('worked')} worked"
            + f" ({num_silent} of them not boosted)" * bool(num_silent)
            + f", {kinds.count('refused')} refused, "
            + f"{kinds.count('failed')} failed"
        )
    return f"{len(situations())} situations. {'; '.join(parts)}."


def _cell(found: Outcome, situation: Situation) -> str:
    sentence = IGNORED.sub(r"\1 ...", found.sentence)
    sentence = sentence.replace("|", r"\|").replace("<", "&lt;")
    if found.kind != "worked":
        return f"**{found.kind}**: {sentence}"
    done = [f"{found.members} member{'s' * (found.members != 1)}"]
    if found.is_boosted is False:
        done.append("**not boosted**: the same with any `deviation_rate`")
    typed = " ".join([situation.changed, *situation.commands])
    done += ["exported"] * ("export" in typed)
    done += ["verified"] * ("cbnn verify" in typed)
    return ", ".join(done) + (f"; warning: {sentence}" if sentence else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="SITUATION")
    parser.add_argument(
        "--package", action="append", default=[], metavar="NAME=DIRECTORY"
    )
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    packages = dict(package.split("=", 1) for package in options.package)
    records = read_records()
    with Progress() as progress:
        chosen = situations(options.names)
        for situation in progress.track(chosen, description="situations"):
            found = {
                name: outcome(situation, pathlib.Path(directory))
                for name, directory in packages.items()
            }
            if options.plain:
                found["plain"] = plain_outcome(situation)
            for name, each in found.items():
                line = f"{situation.name}, {name}: {_cell(each, situation)}"
                progress.console.print(line, markup=False, highlight=False)
            records.setdefault(situation.name, {}).update(found)
            write_records(records)
    TABLE.write_text(table(records))


if __name__ == "__main__":
    main()
