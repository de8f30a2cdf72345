"""The audit log on a full disk: a line is complete or absent, and a refused action has no line."""

import json
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from orderlymq_console.app import Console
from orderlymq_console.audit import Audit, AuditFailed
from orderlymq_console.settings import ConsoleSettings
from orderlymq_testing.cluster import Cluster
from tests.console.signedin import ALICE, RESET, Log, fields, post, sign_in

SCRIPT = """
import json, os, resource, signal, sys
from orderlymq_console.audit import Audit, AuditFailed
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path, told = sys.argv[1], []
with open(path, "a") as log:
    audit = Audit(log)
    audit.begin("alice", "1", "skip", {})
    full = os.path.getsize(path) + 10
    resource.setrlimit(resource.RLIMIT_FSIZE, (full, resource.RLIM_INFINITY))
    told.append(audit.end("alice", "1", "skip", {}, "done: 1 lane or key released"))
    try:
        audit.begin("bob", "1", "reset", {})
    except AuditFailed as error:
        told.append(str(error))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    audit.begin("carol", "1", "retry", {})
print(json.dumps([told, [[each.account, each.outcome] for each in audit.lines]]))
"""


def test_a_line_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """Law: if there is only room for a part of a line, nothing of it stays and the action is not done."""
    path = tmp_path / "audit"
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT, path], capture_output=True, text=True, check=True
    )
    told, shown = json.loads(found.stdout)
    lines = [json.loads(line)["audit"] for line in path.read_text().splitlines()]

    assert [(each["account"], each["outcome"]) for each in lines] == [
        ("alice", "begins"),
        ("carol", "begins"),
    ]
    assert ["nothing was done" in each for each in told] == [False, True]
    assert shown == [
        ["carol", "begins"],
        ["alice", "done: 1 lane or key released"],
        ["alice", "begins"],
    ]


def test_a_log_that_is_closed_lets_nothing_begin(tmp_path: Path) -> None:
    """Law: with a closed log no action begins."""
    with (tmp_path / "audit").open("a") as log:
        audit = Audit(log)
    with pytest.raises(AuditFailed, match="nothing was done"):
        audit.begin("alice", "1", "skip", {})


@pytest.mark.cluster
async def test_what_is_done_is_called_done_when_its_log_is_full(
    troubled: Cluster, browser: aiohttp.ClientSession
) -> None:
    """Law: an action that began stays done if the log becomes full; the page says that its end is not in the log."""
    log = Log()
    log.lines_max = 1
    settings = ConsoleSettings(name_servers=troubled.name_server, port=0, accounts=(ALICE,))
    async with Console(settings, log) as console:
        await sign_in(browser, console, ALICE)
        form = await fields(browser, console, f"{RESET}&to=earliest")
        status, html = await post(browser, console, RESET, {**form, "confirm": "billing"})

    assert (status, "Done: 4 queues moved" in html) == (200, True), html
    assert "the change was made, but the audit log cannot be written" in html
    assert "Nothing was done" not in html
    assert [line["outcome"] for line in log.lines] == ["begins"]


@pytest.mark.cluster
async def test_a_console_at_the_addresses_of_both_families_notes_callers_as_they_are_called(
    troubled: Cluster, browser: aiohttp.ClientSession
) -> None:
    """Law: a console that listens on IPv4 and IPv6 logs each caller by its plain address."""
    log = Log()
    settings = ConsoleSettings(
        name_servers=troubled.name_server, host="::", port=0, accounts=(ALICE,)
    )
    async with Console(settings, log) as console:
        for host in ("127.0.0.1", "[::1]"):
            console.url = f"http://{host}:{console.url.rpartition(':')[2]}"
            await sign_in(browser, console, ALICE)
            form = await fields(browser, console, f"{RESET}&to=earliest")
            status, html = await post(browser, console, RESET, {**form, "confirm": "billing"})
            assert status == 200, html

    assert {line["address"] for line in log.lines} == {"127.0.0.1", "::1"}
