"""The page of a web export: one file, with nothing from elsewhere in it."""

import base64
import hashlib
import html
import json
import pathlib
import re

from cbnn_keras.support.aliases import Json

# What every page begins with.
MARK = "<!-- Written by cbnn export. -->"
_TEMPLATE = pathlib.Path(__file__).with_name("web_template")
_MOST_BARS = 12  # of classes; of more, the most likely ones are shown


def page_text(title: str, config: Json) -> str:
    """The page as HTML.

    It may run its own script and the one beside it, and load what is beside
    it; the browser refuses everything else (Content-Security-Policy). Whatever
    names are in `config`, they end neither the script nor the page.

    Args:
        title: Its heading.
        config: What the script has to know.
    """
    script, style = (_read(name) for name in ("page.js", "page.css"))
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src 'self' 'wasm-unsafe-eval' {_hash(script)}",
            f"style-src {_hash(style)}",
            "connect-src 'self'",
            "img-src 'self' blob: data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    num = len(config["members"])
    parts = {
        "title": html.escape(title),
        "subtitle": html.escape(_subtitle(num, len(config["classes"]))),
        "policy": policy,
        "style": style,
        "script": script,
        "config": _as_script_data(config | {"most_bars": _MOST_BARS}),
    }
    # All at once: what is put in is not looked at again.
    return re.sub(
        r"{{ (\w+) }}", lambda match: parts[match[1]], _read("page.html")
    )


def _subtitle(num_members: int, num_classes: int) -> str:
    members = "One network" if num_members == 1 else f"{num_members} networks"
    verb = "tells" if num_members == 1 else "that were trained in one run tell"
    return f"{members} {verb} {num_classes} classes apart."


def _as_script_data(config: Json) -> str:
    """JSON that cannot end the element it is in."""
    return json.dumps(config).replace("<", "\\u003c")


def _read(name: str) -> str:
    return (_TEMPLATE / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
