"""Debian's Chromium, headless, for tests that look at pages."""

import contextlib
import shutil

import pytest
from playwright.sync_api import sync_playwright

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = [
    "--no-sandbox",  # or it refuses to run as root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
needed = pytest.mark.skipif(
    PROGRAM is None, reason="there is no `chromium` on the PATH"
)


@contextlib.contextmanager
def launched():
    """A browser of Playwright."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=PROGRAM, args=_FLAGS
        )
        yield browser
        browser.close()
