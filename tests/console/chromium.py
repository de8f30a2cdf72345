"""A headless Chromium (Debian: `apt-get install chromium`; another one by ORDERLYMQ_CHROMIUM), and the mark of tests that need it."""

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
    """Run one."""
    from playwright.async_api import async_playwright  # noqa: PLC0415 every worker would load it

    async with async_playwright() as playwright:
        # Root, as in a container of CI, has no sandbox; the pages are ours alone.
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield browser
        await browser.close()
