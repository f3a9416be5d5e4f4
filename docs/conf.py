"""The documentation: `sphinx-build -W -b html docs docs/_build`."""

import pathlib
import re
import sys

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from numpy.typing import ArrayLike
from sphinx.util.typing import stringify_annotation

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from cbnn_keras.version import __version__  # noqa: E402

project = "cbnn_keras"
copyright = "the authors of cbnn_keras; Apache-2.0"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["attrs_block", "dollarmath"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "cbnn_keras"
html_static_path = ["_static"]
html_css_files = ["cbnn.css"]
html_show_sphinx = False
html_copy_source = False
html_math_renderer = "mathml"
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # Keras documents its own hooks
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False


def from_markdown(app, what, name, obj, options, lines):
    """Turns the little Markdown of docstrings into reStructuredText.

    Single backticks mean code, and so does an indented block below a paragraph.
    """
    text = "\n".join(lines)
    text = re.sub(r"(?m)^(\S.*)(?=\n\n {4,})", r"\1\n\n::", text)
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)(\w?)", _as_literal, text)
    lines[:] = text.split("\n")


def _as_literal(match):
    code = " ".join(match[1].split())
    return f"``{code}``" + (rf"\ {match[2]}" if match[2] else "")


def with_short_types(app, what, name, obj, options, signature, returned):
    """Writes NumPy's types as people do."""

    def shortened(text):
        spelled_out = stringify_annotation(ArrayLike, "smart")
        text = text.replace(spelled_out, "ArrayLike")
        return re.sub(
            r"~numpy\.ndarray\[tuple\[.*?\], ~numpy\.dtype\[(.*?)\]\]",
            r"~numpy.ndarray[\1]",
            text,
        )

    return signature and shortened(signature), returned and shortened(returned)


def visit_math(self, node):
    self.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def visit_math_block(self, node):
    mathml = tex2mathml(node.astext(), as_block=True)
    self.body.append(f'<div class="math">{mathml}</div>')
    raise nodes.SkipNode


def setup(app):
    # Before napoleon, which knows reStructuredText only.
    app.connect("autodoc-process-docstring", from_markdown, priority=400)
    app.connect("autodoc-process-signature", with_short_types)
    # MathML, which browsers draw themselves: nothing is fetched to read a page.
    app.add_html_math_renderer(
        "mathml", (visit_math, None), (visit_math_block, None)
    )
