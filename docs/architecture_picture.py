"""The picture of the package's folders, drawn from its imports.

    python docs/architecture_picture.py

writes `docs/images/folders.svg`. Modules, summaries (the docstrings of the
folders) and imports are read from the code; only the columns are written here.
`tests/docs/test_pages.py` compares the file with the code.
"""

import ast
import dataclasses
import html
import pathlib
import textwrap

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "cbnn_keras"
PICTURE = ROOT / "docs" / "images" / "folders.svg"

ARITHMETIC = "arithmetic"  # stands for the modules beside the folders
_SUMMARY = "The method's arithmetic, with NumPy alone: modules without a folder"
_NOT_DRAWN = {"__init__", "__main__", "version"}

# Rows follow from the imports. In a column each folder imports the one below,
# if only through others, so that no two stand in the same place.
COLUMNS = {
    "baselines": 0,
    "training": 0,
    "data": 0,
    "models": 0,
    "commands": 1,
    "analysis": 1,
    "ensemble": 1,
    "runs": 1,
    "support": 1,
    "export": 2,
    ARITHMETIC: 2,
}
_LEGEND = (
    "An arrow leads from a folder to one that it imports. An arrow that "
    "follows from others is left out; the last lines of a box name all that "
    "the folder imports."
)

_WIDTH, _GAP, _ROW_GAP, _PADDING = 186, 22, 42, 12
_STYLE = """
.folders { font: 12px system-ui, sans-serif; }
.folders rect { fill: var(--color-background-secondary, #f6f7f9);
  stroke: var(--color-background-border, #c3c8d0); }
.folders text { fill: var(--color-foreground-secondary, #4b525d); }
.folders .name { font-size: 15px; font-weight: 600;
  fill: var(--color-brand-content, #2a5db0); }
.folders .modules { font-family: ui-monospace, monospace; font-size: 11px;
  fill: var(--color-foreground-primary, #16181d); }
.folders .imports, .folders .legend { font-style: italic; }
.folders .legend { fill: var(--color-foreground-muted, #6b7280); }
.folders path { fill: none; stroke: var(--color-foreground-muted, #6b7280);
  stroke-width: 1.4; }
.folders marker path { fill: var(--color-foreground-muted, #6b7280);
  stroke: none; }
"""


@dataclasses.dataclass
class Folder:
    """What the code says about a folder."""

    summary: str
    modules: list[str]
    imports: set[str]


def read_folders(package: pathlib.Path = PACKAGE) -> dict[str, Folder]:
    """Reads the folders of the package, by name."""
    paths = {path.name: path for path in package.iterdir() if _is_package(path)}
    singles = [p for p in package.glob("*.py") if p.stem not in _NOT_DRAWN]
    homes = {name: name for name in paths} | {
        path.stem: ARITHMETIC for path in singles
    }
    folders = {
        name: Folder(
            (ast.get_docstring(_parse(path / "__init__.py")) or "")
            .split("\n")[0]
            .rstrip(".")
            .replace("`", ""),
            _modules(path),
            _imported(path.rglob("*.py"), homes) - {name},
        )
        for name, path in paths.items()
    }
    folders[ARITHMETIC] = Folder(
        _SUMMARY,
        sorted(path.stem for path in singles),
        _imported(singles, homes) - {ARITHMETIC},
    )
    return folders


def _is_package(path: pathlib.Path) -> bool:
    return (path / "__init__.py").is_file()


def _modules(folder: pathlib.Path) -> list[str]:
    files = [p.stem for p in folder.glob("*.py") if p.stem != "__init__"]
    inner = [f"{p.name}/" for p in folder.iterdir() if _is_package(p)]
    return sorted(files) + sorted(inner)


def _imported(paths, homes: dict[str, str]) -> set[str]:
    found = set()
    for path in paths:
        for node in ast.walk(_parse(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                first, *rest = node.module.split(".")
                if first == PACKAGE.name:
                    found |= set(rest[:1] or (a.name for a in node.names))
    return {homes[name] for name in found if name in homes}


def _parse(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def direct(folders: dict[str, Folder]) -> dict[str, set[str]]:
    """The imports that do not follow from others."""

    def reach(name: str) -> set[str]:
        inner = folders[name].imports
        return inner.union(*map(reach, inner))

    return {
        name: folder.imports - set().union(*map(reach, folder.imports))
        for name, folder in folders.items()
    }


def places(folders: dict[str, Folder]) -> dict[str, tuple[int, int]]:
    """The row of each folder, from the bottom, and its column."""
    if set(folders) != set(COLUMNS):
        raise ValueError(
            f"The folders are {sorted(folders)}, but COLUMNS has "
            f"{sorted(COLUMNS)}: give each folder its column."
        )

    def row(name: str) -> int:
        return max((row(n) + 1 for n in folders[name].imports), default=0)

    found = {name: (row(name), COLUMNS[name]) for name in folders}
    if len(set(found.values())) < len(found):
        raise ValueError(f"Two folders stand in one place: {found}.")
    return found


def _lines(name: str, folder: Folder) -> list[tuple[str, str]]:
    """The text of a box, as (class, line)."""
    title = name if name == ARITHMETIC else f"{name}/"
    imports = ", ".join(sorted(folder.imports)) or "nothing of the package"
    return [
        ("name", title),
        *(("summary", line) for line in textwrap.wrap(folder.summary, 25)),
        *(
            ("modules", line)
            for line in textwrap.wrap(", ".join(folder.modules), 23)
        ),
        *(
            ("imports", line)
            for line in textwrap.wrap(f"imports {imports}", 26)
        ),
    ]


def _text(lines: list[tuple[str, str]], x: float, y: float) -> tuple[str, int]:
    """Lines of text from (x, y) downward, and how high they are."""
    parts, height, before = [], 0, None
    for kind, line in lines:
        height += 18 if kind == "name" else 15
        if before not in (None, "name", kind):
            height += 5
        parts.append(
            f'<text class="{kind}" x="{x}" y="{y + height}">'
            f"{html.escape(line)}</text>"
        )
        before = kind
    return "\n".join(parts), height


def picture(package: pathlib.Path = PACKAGE) -> str:
    """The picture as SVG, light or dark as the page around it."""
    folders = read_folders(package)
    placed = places(folders)
    content = {name: _lines(name, folder) for name, folder in folders.items()}
    heights = {
        name: _text(lines, 0, 0)[1] + 2 * _PADDING
        for name, lines in content.items()
    }
    tops, bottoms, y = {}, {}, 1
    for row in sorted({row for row, _ in placed.values()}, reverse=True):
        inside = [n for n, (place, _) in placed.items() if place == row]
        tops[row] = y
        bottoms[row] = y + max(heights[name] for name in inside)
        y = bottoms[row] + _ROW_GAP
    corners = {
        name: (1 + column * (_WIDTH + _GAP), tops[row])
        for name, (row, column) in placed.items()
    }

    arrows = []
    for name, others in sorted(direct(folders).items()):
        for other in sorted(others):
            (row, _), (other_row, column) = placed[name], placed[other]
            between = {(r, column) for r in range(other_row + 1, row)}
            # To the other column at once, unless something stands there.
            turn = other_row + 1 if between & set(placed.values()) else row
            x1, x2 = (corners[n][0] + _WIDTH // 2 for n in (name, other))
            start, end = bottoms[turn], bottoms[turn] + _ROW_GAP - 12
            middle = (start + end) // 2
            arrows.append(
                f'<path marker-end="url(#tip)" '
                f'd="M{x1} {corners[name][1] + heights[name]} V{start} '
                f"C{x1} {middle} {x2} {middle} {x2} {end} "
                f'V{corners[other][1] - 3}"/>'
            )

    boxes = []
    for name, (x, top) in corners.items():
        text, _ = _text(content[name], x + _PADDING, top + _PADDING - 4)
        boxes.append(
            f'<rect x="{x}" y="{top}" width="{_WIDTH}" '
            f'height="{heights[name]}" rx="6"/>\n{text}'
        )
    # Beside the uppermost folder, which is in the middle.
    legend, _ = _text(
        [("legend", line) for line in textwrap.wrap(_LEGEND, 25)], 1, 0
    )
    width, height = 3 * _WIDTH + 2 * _GAP + 2, y - _ROW_GAP + 1
    return "\n".join(
        [
            f'<svg class="folders" xmlns="http://www.w3.org/2000/svg" '
            f'viewBox="0 0 {width} {height}" role="img" '
            'aria-label="The folders of the package and their imports">',
            f"<style>{_STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" '
            'markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>',
            *arrows,
            *boxes,
            legend,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
