"""The pages in a real Chromium: they follow the cluster, run no foreign script, and fit on phones."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pytest

from orderlymq import Producer
from orderlymq_console.app import Console
from orderlymq_console.settings import Account, ConsoleSettings
from orderlymq_testing.cluster import Cluster
from tests.console.chromium import NEEDS_CHROMIUM
from tests.console.conftest import HOSTILE_ERROR, HOSTILE_KEY, PICTURES
from tests.console.pipelines.leavings import BREAK, manifest, status

if TYPE_CHECKING:
    from playwright.async_api import Browser, ConsoleMessage, Page

pytestmark = NEEDS_CHROMIUM
PATHS: Final = (
    "/",
    "/blocked",
    "/topics",
    "/topics/orders",
    "/topics/orders/messages",
    "/groups",
    "/groups/billing",
    "/key?topic=orders&key=order-3",
    "/message?topic=orders&queue=broker-a:0&offset=0",
    "/groups/billing/member?client=nobody",
    "/dead-letters",
    "/dead-letters/billing",
    "/waiting",
    "/pipelines",
    "/raft",
    "/sign-in",
    "/nowhere",
)
# axe's own best practices and WCAG 2.2 AA, with no exception.
AXE: Final = {"resultTypes": ["violations"]}
# The names that a screen reader needs; returns the address of each element without one.
UNNAMED: Final = """() => {
  const bare = [];
  for (const each of document.querySelectorAll("input:not([type=hidden]), select")) {
    if (!each.labels.length && !each.getAttribute("aria-label")) bare.push(each.outerHTML);
  }
  for (const each of document.querySelectorAll("a, button")) {
    if (!each.textContent.trim() && !each.getAttribute("aria-label")) bare.push(each.outerHTML);
  }
  if (document.querySelectorAll("h1").length !== 1) bare.push("not one h1");
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  if (new Set(ids).size !== ids.length) bare.push("an id twice");
  if (!document.documentElement.lang) bare.push("no language");
  return bare;
}"""


LIVE: Final = "#connection:text-is('live')"
# What the browser does when another tab is chosen, or this one again.
TURN: Final = """(isHidden) => {
  Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


class Wire:
    """A connection to a console that the test can make silent while it stays open."""

    def __init__(self, console: Console) -> None:
        self._port = int(console.url.rpartition(":")[2])
        self.lets = asyncio.Event()
        self.lets.set()
        self.url = ""
        self._ends = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._ends.callback(server.close)
        self.url = "http://{}:{}".format(*server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ends.aclose()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_console, from_console = await asyncio.open_connection("127.0.0.1", self._port)
        self._ends.callback(writer.transport.abort)
        self._ends.callback(from_console.transport.abort)
        await asyncio.gather(
            self._carry(reader, from_console),
            self._carry(to_console, writer),
            return_exceptions=True,
        )

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await self.lets.wait()
            writer.write(data)
            await writer.drain()
        writer.close()


class Complaints:
    """A browser's complaints: refused by the policy, script errors, failed requests."""

    def __init__(self, page: Page) -> None:
        self.texts: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.texts.append(str(error)))
        page.on("dialog", lambda dialog: self.texts.append(dialog.message))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "404" not in message.text:
            self.texts.append(message.text)


@pytest.fixture
def pictures(request: pytest.FixtureRequest) -> Path | None:
    """Return the folder for pictures of the pages, or None."""
    folder: Path | None = request.config.getoption(PICTURES)
    return folder


async def judge(page: Page, console: Console, path: str, pictures: Path | None) -> None:
    """Open a page and check that it is not too wide, its controls have names, and axe finds nothing."""
    await page.goto(console.url + path)
    await inspect(page, path, pictures)


async def inspect(page: Page, path: str, pictures: Path | None) -> None:
    """Check the open page."""
    overflow = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert overflow <= 0, f"{path} is {overflow} px too wide"
    assert await page.evaluate(UNNAMED) == [], path
    from axe_playwright_python.async_playwright import Axe  # noqa: PLC0415 every worker would load it

    found = (await Axe().run(page, options=AXE)).response["violations"]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == [], path
    if pictures is not None:
        width = await page.evaluate("innerWidth")
        name = re.sub(r"\W+", "-", path).strip("-") or "overview"
        await page.screenshot(path=pictures / f"{name}-{width}.png", full_page=True)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (820, "dark"), (390, "light")])
async def test_pages_fit_and_the_browser_complains_of_nothing(
    console: Console, chromium: Browser, width: int, scheme: str, pictures: Path | None
) -> None:
    """Law: pages fit a desktop, a tablet and a phone, in light and dark, each control has a name,
    and the browser has no complaint.
    """
    context = await chromium.new_context(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = await context.new_page()
    complaints = Complaints(page)
    for path in PATHS:
        await judge(page, console, path, pictures)

    assert complaints.texts == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (820, "dark"), (390, "light")])
async def test_pages_of_pipelines_fit_and_show_the_texts_of_strangers_as_texts(
    troubled: Cluster,
    chromium: Browser,
    tmp_path: Path,
    width: int,
    scheme: str,
    pictures: Path | None,
) -> None:
    """Law: pages of pipelines (a dead stream, findings, an unknown one) fit as well, and show foreign text as text."""
    here = {"topic": "orders", "bootstrap": troubled.name_server}
    found = {**BREAK, "key": HOSTILE_KEY}
    (tmp_path / "found.jsonl").write_text(json.dumps(found) + "\n")
    manifest(tmp_path, "archive", source=here)
    status(tmp_path, "archive", last_error=HOSTILE_ERROR)
    manifest(tmp_path, "audit", type="order-audit", findings=str(tmp_path / "found.jsonl"))
    manifest(tmp_path, "silent", source=here)
    settings = ConsoleSettings(name_servers=troubled.name_server, port=0, pipelines=(tmp_path,))
    context = await chromium.new_context(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = await context.new_page()
    complaints = Complaints(page)
    async with Console(settings) as console:
        for path in ("/pipelines", "/pipelines/archive", "/pipelines/audit", "/pipelines/silent"):
            await judge(page, console, path, pictures)
        assert "owned" not in await page.title()

    assert complaints.texts == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (820, "dark"), (390, "light")])
async def test_pages_of_actions_fit_and_the_keyboard_is_enough(
    troubled: Cluster, chromium: Browser, width: int, scheme: str, pictures: Path | None
) -> None:
    """Law: all pages of actions fit and work by keyboard, from the sign-in over a preview to a mistyped key."""
    alice = Account("alice", "act", "a" * 24)
    settings = ConsoleSettings(name_servers=troubled.name_server, port=0, accounts=(alice,))
    context = await chromium.new_context(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = await context.new_page()
    async with Console(settings, io.StringIO()) as console:
        await page.goto(f"{console.url}/sign-in?next=/blocked")
        await page.focus("input[name=token]")
        await page.keyboard.type(alice.token)
        await page.keyboard.press("Enter")
        await page.get_by_text("Skip…").first.focus()
        await inspect(page, "/blocked", pictures)
        await page.get_by_text("Skip…").first.focus()
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/release?*")
        await inspect(page, "preview", pictures)
        await page.focus("#confirm")
        await page.keyboard.type("another key")
        await page.keyboard.press("Enter")
        await page.locator("[role=alert]").wait_for()
        await inspect(page, "mistyped", pictures)
        for path in (
            "/groups/billing/release?topic=orders&key=order-3&how=retry",
            "/groups/billing/reset?topic=orders&to=earliest",
            "/groups/billing/reset?topic=orders&queue=broker-a:0&to=offset&offset=1",
            "/dead-letters/billing",
            "/groups/billing",
            "/audit",
        ):
            await judge(page, console, path, pictures)


async def test_an_open_page_follows_the_cluster_and_keeps_the_readers_place(
    console: Console, chromium: Browser, troubled: Cluster
) -> None:
    """Law: an open page shows new messages by itself, and the focus stays where it was."""
    page = await chromium.new_page()
    await page.goto(f"{console.url}/topics/orders")
    kept = page.locator(".figures dd").nth(1)
    before = int((await kept.inner_text()).split()[0])
    link = page.locator("#live td a").first
    await link.focus()
    address = await link.get_attribute("href")

    async with Producer(name_servers=troubled.name_server) as producer:
        await producer.send("orders", "one more", key="order-1")
    await page.wait_for_function(
        "count => document.querySelectorAll('.figures dd')[1].innerText.startsWith(String(count))",
        arg=before + 1,
    )

    assert await page.inner_text("#connection") == "live"
    assert await page.evaluate("document.activeElement.getAttribute('href')") == address


async def test_a_page_that_is_cut_off_says_so(console: Console, chromium: Browser) -> None:
    """Law: a page that loses its connection says so, and never shows old figures as present ones."""
    context = await chromium.new_context()
    page = await context.new_page()
    await page.goto(console.url)
    await page.wait_for_function("document.getElementById('connection').innerText === 'live'")

    await console.close()
    await page.wait_for_selector("body.stale")

    assert (await page.inner_text("#connection")).startswith("not live since ")


async def test_a_tab_that_nobody_looks_at_keeps_no_connection(
    console: Console, chromium: Browser
) -> None:
    """Law: a hidden tab keeps no connection; a browser has six per host, so a seventh page would hang."""
    page = await chromium.new_page()
    await page.goto(f"{console.url}/topics")
    await page.locator(LIVE).wait_for()

    for is_hidden, count in ((True, 0), (False, 1)):
        await page.evaluate(TURN, is_hidden)
        async with asyncio.timeout(20.0):
            while console.viewers.count != count:  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.05)

    await page.locator(LIVE).wait_for()


async def test_a_connection_that_is_silent_is_not_live(console: Console, chromium: Browser) -> None:
    """Law: a silent connection counts as not live, even if it is open; when data comes the page is live again."""
    async with Wire(console) as wire:
        page = await chromium.new_page()
        await page.clock.install()
        await page.goto(f"{wire.url}/topics")
        await page.locator(LIVE).wait_for()

        wire.lets.clear()
        await page.clock.run_for(6_000)
        assert (await page.inner_text("#connection")).startswith("not live since ")
        assert (await page.inner_text("#connection")).endswith("Z")

        wire.lets.set()
        await page.locator(LIVE).wait_for()
        assert await page.locator("body.stale").count() == 0


async def test_hostile_texts_stay_texts(console: Console, chromium: Browser) -> None:
    """Law: foreign keys, bodies and errors stay text on all pages, also after live updates."""
    page = await chromium.new_page()
    complaints = Complaints(page)
    await page.goto(f"{console.url}/topics/orders/messages")
    await page.fill("#keyfield", HOSTILE_KEY)
    await page.select_option("#queue", index=0)
    for path in (
        f"/topics/orders/messages?key={HOSTILE_KEY}",
        f"/key?topic=orders&key={HOSTILE_KEY}",
        "/blocked",
        "/groups/billing",
    ):
        await page.goto(console.url + path)
        await page.wait_for_load_state("load")
        assert "owned" not in await page.title()
        assert await page.locator("main script, main img, main b").count() == 0

    assert complaints.texts == []


async def test_from_the_first_page_to_cause_and_cure_in_three_clicks(
    console: Console, chromium: Browser
) -> None:
    """Law: for a held lane three clicks lead to key, error and what to do."""
    page = await chromium.new_page()
    await page.goto(console.url)
    await page.wait_for_function(
        "document.querySelector('.health h1').innerText.includes('waits for a release')"
    )
    await page.click("a[href='/blocked'] >> nth=0")
    await page.wait_for_selector("article.still")

    text = await page.inner_text("article.still")
    assert "order-3" in text
    assert "the card service refuses" in text
    assert "Repair the cause" in text


async def test_the_form_of_messages_finds_a_key_in_its_own_queue_and_a_time(
    console: Console, chromium: Browser
) -> None:
    """Law: the form of messages finds a key in its own queue, and a time, whatever queue and offset the page shows."""
    page = await chromium.new_page()
    for number in range(4):
        await page.goto(f"{console.url}/topics/orders/messages?queue=broker-a:{number}&offset=5")
        await page.fill("#keyfield", "order-3")
        await page.click("text=Find")
        await page.wait_for_url("**key=order-3**")
        assert "6 of the " in await page.inner_text(".count")
    await page.fill("#time", "2020-01-01T00:00:00")
    await page.click("text=Show")
    await page.wait_for_url("**time=2020**")
    assert (await page.inner_text("article h2 a >> nth=0")) == "0"


async def test_the_keyboard_reaches_pages_and_the_search(
    console: Console, chromium: Browser
) -> None:
    """Law: `/` focuses the search, and g with a letter opens a page; inside a field they are normal letters."""
    page = await chromium.new_page()
    await page.goto(f"{console.url}/topics")
    await page.keyboard.press("/")
    await page.keyboard.type("g/b")
    assert await page.input_value("input[type=search]") == "g/b"
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/topics?q=*")
    await page.locator("main").click(position={"x": 1, "y": 1})
    await page.keyboard.press("g")
    await page.keyboard.press("b")
    await page.wait_for_url("**/blocked")
