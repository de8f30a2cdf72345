"""Hostile callers: foreign host names, foreign sites, forged forms, and texts that try to be markup."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from urllib.parse import quote, urlsplit

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from orderlymq_console.app import CONNECTIONS_MAX, Console
from orderlymq_console.settings import Account, ConsoleSettings
from orderlymq_console.web import guard
from orderlymq_console.web.guard import FORM_S, is_known_host
from orderlymq_console.web.signin import local_target
from orderlymq_console.web.views import VIEWS
from orderlymq_runtime.process.logs import TextFormatter
from orderlymq_runtime.process.openfiles import raise_limit
from tests.runtime.pages.turns import turns_for

ACT, VIEW = "a" * 24, "v" * 24


@pytest.fixture
async def guarded() -> AsyncIterator[Console]:
    """A console that other machines may reach; its cluster does not answer."""
    accounts = (Account("alice", "act", ACT), Account("bob", "view", VIEW))
    settings = ConsoleSettings(
        name_servers="127.0.0.1:1", port=0, accounts=accounts, hosts=("console.example",)
    )
    async with Console(settings) as running:
        yield running


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:9870", True),
        ("[::1]:9870", True),
        ("localhost", True),
        ("LOCALHOST:1", True),
        ("console.example:443", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("console.example.evil", False),
        ("localhost.", False),
        ("", False),
        ("[::1", False),
        ("evil@127.0.0.1", True),
    ],
)
def test_only_addresses_and_given_names_are_answered(host: str, known: bool) -> None:
    """Law: only IP addresses and the given host names are answered, which stops DNS rebinding."""
    assert is_known_host(host, ("console.example",)) is known


async def test_however_many_pages_one_connection_asks_for_the_loop_turns_between_two(
    lonely: Console,
) -> None:
    """Law: with many requests on one connection the loop turns between two answers, so other viewers do not wait."""
    where = urlsplit(lonely.url)
    request = f"GET /static/console.css HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode()

    assert await turns_for(str(where.hostname), int(where.port or 0), request, 32) >= 32


async def test_a_page_under_a_foreign_name_gets_nothing(
    lonely: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: under a foreign host name there is no page, JSON or event."""
    for path in ("/", "/api/overview", "/events/overview", "/static/console.js", "/healthz"):
        async with browser.get(lonely.url + path, headers={"Host": "evil.example"}) as answer:
            assert answer.status == 421
            assert "127.0.0.1:1" not in await answer.text()


async def test_every_answer_forbids_foreign_scripts_styles_and_frames(
    lonely: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: each answer, also a refusal, has headers that forbid foreign scripts, styles and frames."""
    for path in (
        "/",
        "/blocked",
        "/no/such/page",
        "/topics?page=x",
        "/static/console.css",
        "/api/raft",
    ):
        async with browser.get(lonely.url + path) as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"
            assert "Access-Control-Allow-Origin" not in answer.headers


async def test_pages_hold_no_script_style_or_handler_of_their_own(
    lonely: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: pages have no inline script, style or handler, which the policy forbids."""
    for view in VIEWS:
        path = view.path.replace("{topic}", "orders").replace("{group}", "billing")
        async with browser.get(lonely.url + path) as answer:
            html = await answer.text()
        assert re.findall(r"<script(?! src=\"/static/)", html) == []
        assert re.findall(r"<style|\sstyle=|\son[a-z]+=|javascript:", html) == []
        assert "https://" not in html


HOSTILE = "\"'><script>alert(1)</script>{{7*7}}"


@pytest.mark.parametrize(
    "path",
    [
        "/topics",
        "/groups",
        "/dead-letters",
        "/key",
        "/blocked",
        "/topics/x/messages",
        "/sign-in",
        "/no",
    ],
)
@pytest.mark.parametrize("name", ["q", "topic", "key", "page", "next", "queue", "form", "time"])
async def test_parameters_never_become_markup(
    lonely: Console, browser: aiohttp.ClientSession, path: str, name: str
) -> None:
    """Law: parameters become neither markup nor templates."""
    async with browser.get(lonely.url + path, params={name: HOSTILE}) as answer:
        html = await answer.text()

    assert answer.status in (200, 400, 404, 503)
    assert "<script>" not in html
    assert "49" not in html.replace("9149", "")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/topics/%00", 400),
        ("/topics/" + "x" * 300, 400),
        ("/topics/..%2f..%2fetc%2fpasswd", 400),
        ("/groups/a%20b", 400),
        ("/groups/%F0%9F%92%A9", 400),
        ("/topics?page=0", 400),
        ("/topics?page=99999999999999999999999", 400),
        ("/topics?q=" + "x" * 300, 400),
        ("/topics/orders/messages?offset=-1", 400),
        ("/topics/orders/messages?count=1000000", 400),
        ("/topics/orders/messages?form=exe", 400),
        ("/static/..%2fapp.py", 404),
        ("/static/app.py", 404),
        ("/nowhere", 404),
        ("/" + "x" * 9_000, 400),
    ],
)
async def test_what_cannot_be_asked_is_refused_with_a_sentence(
    lonely: Console, browser: aiohttp.ClientSession, path: str, status: int
) -> None:
    """Law: an impossible request is refused with a sentence and without a traceback."""
    from yarl import URL  # noqa: PLC0415 - as it stands, without another encoding

    async with browser.get(URL(lonely.url + path, encoded=True)) as answer:
        text = await answer.text()

    assert answer.status == status
    assert "Traceback" not in text


async def test_without_a_cluster_everything_is_unknown_and_nothing_is_zero(
    lonely: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: without a cluster every figure is unknown with its reason, and none is zero."""
    async with browser.get(f"{lonely.url}/api/overview") as answer:
        page = await answer.json()
    async with browser.get(lonely.url) as answer:
        html = await answer.text()
    async with browser.get(f"{lonely.url}/groups/billing") as answer:
        group = await answer.text()

    assert (answer.status, page["state"]) == (200, "unknown")
    for figure in ("messagesIn", "messagesOut", "lag", "oldestSeconds", "blocked", "members"):
        assert page[figure]["value"] is None, figure
        assert "no name server answers" in page[figure]["unknown"]
    assert "The state of the cluster is unknown" in html
    assert "no name server answers" in group
    assert "No member is online" not in group


async def test_without_an_account_nobody_looks(
    guarded: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: without an account pages lead to the sign-in and programs are told what to send;
    only the sign-in's style is open.
    """
    async with browser.get(f"{guarded.url}/groups?page=2", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (
            303,
            "/sign-in?next=/groups?page%3D2",
        )
    for path in ("/api/overview", "/events/overview"):
        async with browser.get(guarded.url + path) as answer:
            assert answer.status == 401
            assert "Bearer" in (await answer.json())["error"]
    async with browser.get(f"{guarded.url}/static/console.css") as answer:
        assert answer.status == 200
    async with browser.get(f"{guarded.url}/sign-in") as answer:
        assert "127.0.0.1:1" not in await answer.text()


async def test_a_token_signs_in_and_out(guarded: Console, browser: aiohttp.ClientSession) -> None:
    """Law: a token signs in and out; the cookie is hidden from scripts and other sites, and the old session ends."""
    form = {"token": ACT, "next": "/raft"}
    async with browser.post(f"{guarded.url}/sign-in", data=form, allow_redirects=False) as answer:
        cookie = answer.headers["Set-Cookie"]
        assert (answer.status, answer.headers["Location"]) == (303, "/raft")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    async with browser.get(guarded.url) as answer:
        html = await answer.text()
    assert "alice" in html
    proof = re.findall(r'name="proof" value="([^"]+)"', html)[0]
    async with browser.post(f"{guarded.url}/sign-out", data={"proof": proof}) as answer:
        assert answer.url.path == "/sign-in"


async def test_under_a_name_of_a_proxy_with_tls_the_session_is_for_tls_alone() -> None:
    """Law: under a proxy's TLS name the cookie is for TLS only; otherwise a browser would also send it in clear."""
    settings = ConsoleSettings(
        port=0, accounts=(Account("alice", "act", ACT),), https_hosts=("shop.example",)
    )
    secure = {}
    async with Console(settings) as running, aiohttp.ClientSession() as session:
        for host in ("shop.example", "SHOP.EXAMPLE:443", "localhost", "127.0.0.1:9870"):
            async with session.post(
                f"{running.url}/sign-in",
                data={"token": ACT},
                headers={"Host": host},
                allow_redirects=False,
            ) as answer:
                secure[host] = "Secure" in answer.headers["Set-Cookie"]

    assert [host for host, is_secure in secure.items() if is_secure] == [
        "shop.example",
        "SHOP.EXAMPLE:443",
    ]


async def test_a_wrong_token_signs_nobody_in(
    guarded: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: a wrong token signs nobody in, by form or header; after too many a caller must wait,
    but a right one is accepted.
    """
    for number in range(20):
        async with browser.post(f"{guarded.url}/sign-in", data={"token": f"x{number}"}) as answer:
            assert answer.status == 403
            assert "Set-Cookie" not in answer.headers
    for token, status in (("x", 429), (VIEW, 200)):
        bearer = {"Authorization": f"Bearer {token}"}
        async with browser.get(f"{guarded.url}/api/raft", headers=bearer) as answer:
            assert answer.status == status
    form = {"token": ACT}
    async with browser.post(f"{guarded.url}/sign-in", data=form, allow_redirects=False) as answer:
        assert answer.status == 303


async def test_a_program_shows_its_token_and_changes_nothing(
    guarded: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: a program's token header reads JSON but never makes a change."""
    bearer = {"Authorization": f"Bearer {ACT}"}
    async with browser.get(f"{guarded.url}/api/raft", headers=bearer) as answer:
        assert answer.status == 200
    async with browser.post(f"{guarded.url}/sign-out", headers=bearer) as answer:
        assert answer.status == 401


async def test_a_change_from_elsewhere_is_refused(
    guarded: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: a change from another origin or site, without the form's proof or with another session's, is refused."""
    await browser.post(f"{guarded.url}/sign-in", data={"token": ACT}, allow_redirects=False)
    async with browser.get(guarded.url) as answer:
        proof = re.findall(r'name="proof" value="([^"]+)"', await answer.text())[0]
    for headers, given in (
        ({"Origin": "https://evil.example"}, proof),
        ({"Origin": "null"}, proof),
        ({"Sec-Fetch-Site": "cross-site"}, proof),
        ({"Sec-Fetch-Site": "same-site"}, proof),
        ({}, ""),
        ({}, "x" * 43),
    ):
        form = {"proof": given}
        async with browser.post(f"{guarded.url}/sign-out", data=form, headers=headers) as answer:
            assert answer.status == 403, headers
    async with browser.get(f"{guarded.url}/api/raft") as answer:
        assert answer.status == 200  # Still signed in.


async def test_who_signs_in_through_a_proxy_that_changes_the_host_learns_so(
    guarded: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: a sign-in through a proxy that changes the Host header (nginx by default) is refused with that reason."""
    async with browser.post(
        f"{guarded.url}/sign-in", data={"token": ACT}, headers={"Origin": "https://shop.example<b>"}
    ) as answer:
        html = await answer.text()

    assert answer.status == 403
    assert "from https://shop.example&lt;b&gt;, to 127.0.0.1:" in html
    assert "must pass on the header Host" in html


@pytest.mark.parametrize("site", [None, "none", "same-origin", "cross-site"])
async def test_no_link_signs_in_where_there_are_accounts(
    guarded: Console, browser: aiohttp.ClientSession, site: str | None
) -> None:
    """Law: with accounts no link signs in, because another site could sign a person in to a wrong account over plain http."""
    headers = {} if site is None else {"Sec-Fetch-Site": site}
    link = f"{guarded.url}/sign-in?token={ACT}&next=/audit"
    async with browser.get(link, headers=headers, allow_redirects=False) as answer:
        assert (answer.status, "Set-Cookie" in answer.headers) == (403, False)


async def test_a_link_with_a_token_works_only_where_nobody_referred_to_it(
    lonely: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: a sign-in link works only without a referring site."""
    assert lonely.local is not None
    link = f"{lonely.url}/sign-in?token={lonely.local.token}"
    foreign = {"Sec-Fetch-Site": "cross-site"}
    async with browser.get(link, headers=foreign, allow_redirects=False) as answer:
        assert answer.status == 403
    async with browser.get(link, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "/")


async def test_a_form_that_is_too_large_is_refused(
    guarded: Console, browser: aiohttp.ClientSession
) -> None:
    async with browser.post(f"{guarded.url}/sign-in", data={"token": "x" * 100_000}) as answer:
        assert answer.status == 413


async def test_a_session_that_ends_ends_its_events(
    guarded: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: when a session ends its event stream ends."""
    await browser.post(f"{guarded.url}/sign-in", data={"token": ACT}, allow_redirects=False)
    async with browser.get(guarded.url) as answer:
        proof = re.findall(r'name="proof" value="([^"]+)"', await answer.text())[0]
    async with browser.get(f"{guarded.url}/events/overview") as events:
        assert events.status == 200
        await events.content.readline()
        await browser.post(f"{guarded.url}/sign-out", data={"proof": proof}, allow_redirects=False)
        async with asyncio.timeout(20):
            await events.content.read()


async def test_no_request_makes_a_line_of_the_audit_log(
    guarded: Console, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: a failed request is logged on one line and cannot forge a line of the audit log,
    as both may share standard error.
    """
    forged = "\n" + '{"audit":{}}'

    async def fail(_: web.Request) -> web.Response:
        raise RuntimeError(forged)

    path = "/sign-in" + quote(forged)
    request = make_mocked_request(
        "GET", path, headers={"Host": "localhost"}, app=guarded._runner.app
    )
    answer = await guard.guard(request, fail)

    assert answer.status == 500
    (line,) = map(TextFormatter("console").format, caplog.records)
    assert "%0A" in line
    assert not [each for each in line.splitlines() if each.startswith("{")]


FORM = "Content-Type: application/x-www-form-urlencoded"
MULTIPART = "Content-Type: multipart/form-data"
PART = "--x\r\nContent-Disposition: form-data; name=a\r\n"


@pytest.mark.parametrize(
    ("start", "headers", "body"),
    [
        ("POST /sign-in", f"{FORM}\r\nOrigin: http://[", b"token=a"),
        ("POST /sign-in", f"{FORM}\r\nOrigin: http://\xff", b"token=a"),
        ("POST /sign-in", FORM, b"\xff\xfe"),
        ("POST /sign-in", f"{FORM}; charset=nonsense", b"token=a"),
        ("POST /sign-in", f"{FORM}; charset=hex", b"token=a"),
        ("POST /sign-in", f"{FORM}\r\nContent-Encoding: gzip", b"token=a"),
        ("POST /sign-in", f"{FORM}\r\nContent-Encoding: deflate", b"token=a"),
        ("POST /sign-in", MULTIPART, b"token=a"),
        ("POST /sign-in", f"{MULTIPART}; boundary=x", b"--x\r\n\r\na\r\n--x--\r\n"),
        (
            "POST /sign-in",
            f"{MULTIPART}; boundary=x",
            f"{PART}Content-Transfer-Encoding: zzz\r\n\r\na\r\n--x--\r\n".encode(),
        ),
        ("POST /sign-in", f"{FORM}\r\nTransfer-Encoding: chunked", b"zz\r\n\r\n"),
        ("POST /sign-in", "Content-Type: application/json", b"{}"),
        ("GET /sign-in?next=//[", "", b""),
        ("GET /sign-in?next=/%0d%0aX:y", "", b""),
        ("GET /\xff", "", b""),
        ("GET /?q=\xff", "", b""),
        ("GET /api/overview", "Authorization: Bearer \xff", b""),
        ("GET /", "Cookie: session=\xff", b""),
        ("GET / HTTP/9", "", b""),
        ("GET /", "no header", b""),
    ],
)
async def test_what_no_browser_sends_is_refused_without_a_line_of_the_log(
    guarded: Console,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    start: str,
    headers: str,
    body: bytes,
) -> None:
    """Law: malformed requests, which no browser sends, are refused without a traceback in the log."""
    monkeypatch.setattr(guard, "FORM_S", 1.0)  # aiohttp waits for more after an invalid chunk.
    port = int(guarded.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"{start} HTTP/1.1", "Host: localhost", "Connection: close"]
    if body and "chunked" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join([*lines, *filter(None, [headers])])
    writer.write(head.encode("latin-1") + b"\r\n\r\n" + body)
    async with asyncio.timeout(10.0):
        answer = await reader.read()
    writer.close()

    refusals = b"HTTP/1.1 4", b"HTTP/1.0 4"
    pages = b"HTTP/1.1 200", b"HTTP/1.1 303"
    assert answer.startswith(refusals if start.startswith("POST") else (*refusals, *pages))
    assert caplog.records == []


@pytest.mark.parametrize(
    "target",
    ["/\x00", "/\r\nX: y", "/a\x7f", "//[", "//evil", "/\\evil", "\t/", "http:/x", "", "/\t/evil"],
)
def test_whoever_signs_in_goes_to_a_page_of_the_console(target: str) -> None:
    """Law: after the sign-in only a page of the console follows; another site or a control character leads to the first
    page.
    """
    assert local_target(target) == "/"
    assert local_target("/groups?page=2&q=ü#x") == "/groups?page=2&q=ü#x"


STALLED = (
    b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken="
)


async def test_strangers_that_send_half_a_form_keep_nobody_out(
    guarded: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: many half sent forms keep nobody out: at the limit the oldest connection is closed."""
    raise_limit()
    port = int(guarded.url.rpartition(":")[2])
    crowd = []
    for _ in range(CONNECTIONS_MAX + 1):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(STALLED)
        crowd.append((reader, writer))
    try:
        async with asyncio.timeout(FORM_S / 2):
            with contextlib.suppress(ConnectionResetError):
                assert await crowd[0][0].read() == b""
            async with browser.get(guarded.url + "/healthz") as answer:
                assert answer.status == 200
    finally:
        for _, writer in crowd:
            writer.transport.abort()


async def test_strangers_that_send_half_of_their_headers_are_hung_up_on(guarded: Console) -> None:
    """Law: a connection with more than 64 KiB of incomplete headers is closed, so 512 of them fit into the pod's memory."""
    port = int(guarded.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
    writer.writelines(b"x-%d: %s\r\n" % (number, b"a" * 8_000) for number in range(100))

    async with asyncio.timeout(5.0):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()


async def test_a_form_that_does_not_come_is_not_waited_for(
    guarded: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a form that does not arrive completely is answered with 408 within seconds, and closed."""
    monkeypatch.setattr(guard, "FORM_S", 0.1)
    port = int(guarded.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(STALLED)

    async with asyncio.timeout(5.0):
        answer = await reader.read()

    assert answer.startswith(b"HTTP/1.1 408")
    writer.close()
