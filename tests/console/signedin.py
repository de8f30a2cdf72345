"""Accounts of a console, how they sign in and confirm actions, and an audit log that can be full."""

import io
import json
import re
from html import unescape
from typing import Any

import aiohttp

from orderlymq_console.app import Console
from orderlymq_console.settings import Account

ALICE, BOB = Account("alice", "act", "a" * 24), Account("bob", "view", "b" * 24)
SKIP = "/groups/billing/release?topic=orders&key=order-3&how=skip"
RETRY = "/groups/billing/release?topic=orders&key=order-3&how=retry"
RESET = "/groups/billing/reset?topic=orders"


class Log(io.StringIO):
    """An audit log that can be full."""

    is_full = False
    lines_max = 100

    def write(self, text: str) -> int:
        if self.is_full or len(self.lines) == self.lines_max:
            raise OSError(28, "No space left on device")
        return super().write(text)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line)["audit"] for line in self.getvalue().splitlines()]


async def sign_in(browser: aiohttp.ClientSession, console: Console, account: Account) -> None:
    form = {"token": account.token}
    async with browser.post(f"{console.url}/sign-in", data=form, allow_redirects=False) as answer:
        assert answer.status == 303


async def fields(browser: aiohttp.ClientSession, console: Console, path: str) -> dict[str, str]:
    """Return the hidden fields of a preview's form."""
    async with browser.get(console.url + path) as answer:
        html = await answer.text()
        assert answer.status == 200, html
    form = html[html.index('<form class="confirm"') :]
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form)
    return {name: unescape(value) for name, value in found}


async def post(
    browser: aiohttp.ClientSession, console: Console, path: str, form: dict[str, str]
) -> tuple[int, str]:
    async with browser.post(console.url + path.partition("?")[0], data=form) as answer:
        return answer.status, await answer.text()
