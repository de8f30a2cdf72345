"""A headless Chromium (Debian: `apt-get install chromium`; or the one in ORDERLYMQ_CHROMIUM), and the mark of tests that need it."""

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser

CHROMIUM: Final = os.environ.get("ORDERLYMQ_CHROMIUM") or shutil.which("chromium")
NEEDS_CHROMIUM: Final = [
    pytest.mark.cluster,
    pytest.mark.chromium,
    pytest.mark.skipif(
        CHROMIUM is None,
        reason="Chromium is missing: apt-get install chromium, or name one with ORDERLYMQ_CHROMIUM",
    ),
]


@contextlib.asynccontextmanager
async def launched() -> "AsyncIterator[Browser]":
    """Run a browser."""
    from playwright.async_api import async_playwright  # noqa: PLC0415 every worker would load it

    async with async_playwright() as playwright:
        # For root, as in a container of CI, there is no sandbox; the pages are all ours.
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield browser
        await browser.close()
