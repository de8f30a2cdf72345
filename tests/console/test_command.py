"""`orderlymq console` and `orderlymq up --console`: what they print, and how they end."""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from orderlymq.cli import cli
from orderlymq_runtime.process.logs import TextFormatter
from tests.operator.local.conftest import ports
from tests.operator.local.manifests import text
from tests.trouble.stubborn import stubborn_callers

__all__ = ["ports"]  # fixture


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--listen", "0.0.0.0:0"), "the console needs accounts: pass --accounts FILE"),
        (("--listen", "here"), "'here' is not an address to listen on"),
        (("--accounts", "nowhere.toml"), "the accounts in nowhere.toml cannot be read"),
        (("--name-server", "x"), "the name server address"),
        (("--tls-key", "key.pem"), "pass --tls-certificate and --tls-key together"),
        (
            ("--listen", "127.0.0.1:0", "--tls-key", "k", "--tls-certificate", "c"),
            "TLS: c or a file that belongs to it cannot be used",
        ),
    ],
)
def test_what_it_cannot_be_started_with_is_said_in_a_sentence(
    arguments: tuple[str, ...], said: str
) -> None:
    """Law: a wrong argument gives one sentence, never a traceback."""
    answer = CliRunner().invoke(cli, ["console", *arguments])

    assert answer.exit_code == 2
    assert answer.output.startswith("Error: ")
    assert said in answer.output


def test_a_taken_port_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a taken port is reported with what to pass instead."""
    # The command configures the log of its process, which is this one.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = CliRunner().invoke(cli, ["console", "--listen", f"127.0.0.1:{port}"])

    assert answer.exit_code == 2
    assert "pass another --listen" in answer.output
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler.formatter, TextFormatter)


def test_without_its_libraries_it_says_what_to_install() -> None:
    """Law: without its libraries the command says what to install, and --help works."""
    program = (
        "import sys; sys.modules['jinja2'] = None; from orderlymq.cli import cli; "
        "cli(['console', *sys.argv[1:]])"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert "the console needs jinja2; install orderlymq-console" in run().stderr
    assert run("--help").returncode == 0


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_a_link_that_signs_in_and_ends_with_a_signal(number: signal.Signals) -> None:
    """Law: the command prints a link that signs in, serves until a signal, and idle callers do not delay its end;
    the cluster may be away.
    """
    command = [sys.executable, "-m", "orderlymq_console", "--listen", "127.0.0.1:0"]
    command += ["--name-server", "127.0.0.1:1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        link = re.findall(r"http://127\.0\.0\.1:\d+/sign-in\?token=\S+", second)[0]
        with urllib.request.urlopen(link) as answer:
            assert answer.status == 200
        asking = b"GET /static/console.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        with stubborn_callers(urlsplit(link).port or 0, asking):
            process.send_signal(number)
            code = process.wait(timeout=15)

    assert re.match(r"The console is at http://127\.0\.0\.1:\d+\. Ctrl-C stops it\.", first)
    assert code == 0


@pytest.mark.cluster
def test_programs_get_the_link_as_json() -> None:
    """Law: with JSON output the link is one line, printed when the address answers."""
    command = [sys.executable, "-m", "orderlymq_console", "--listen", "127.0.0.1:0", "--json"]
    command += ["--name-server", "127.0.0.1:1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        with urllib.request.urlopen(told["signIn"]) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)

    assert told["signIn"].startswith(f"{told['url']}/sign-in?token=")


@pytest.mark.cluster
def test_a_console_beside_a_cluster_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Law: a console beside a cluster ends with the process that started it, even if that is killed."""
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio
            from pathlib import Path

            from orderlymq_operator.local.console import console_beside
            from orderlymq_operator.local.directory import DataDirectory


            async def main():
                async with console_beside(DataDirectory(Path("data")), ["127.0.0.1:1"]):
                    await asyncio.sleep(600)


            asyncio.run(main())
            """
        )
    )
    environment = {**os.environ, "ORDERLYMQ_CONSOLE_LISTEN": "127.0.0.1:0"}
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path,
    ) as parent:
        assert parent.stdout is not None
        first = parent.stdout.readline()
        (url,) = re.findall(r"The console is at (http://127\.0\.0\.1:\d+)\.", first)
        with urllib.request.urlopen(f"{url}/healthz") as answer:
            assert answer.status == 200
        parent.kill()
        # The console has the same output: it ends with the last of them.
        parent.stdout.read()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}/healthz")


def test_up_with_the_console_does_not_go_with_detach() -> None:
    answer = CliRunner().invoke(cli, ["up", "--console", "--detach"])

    assert answer.exit_code == 2
    assert "run `orderlymq console`" in answer.output


@pytest.mark.cluster
@pytest.mark.long
def test_up_serves_the_console_beside_the_cluster(tmp_path: Path, ports: int) -> None:
    """Law: `orderlymq up --console` serves the console beside the cluster, and both end together."""
    manifest = tmp_path / "cluster.yaml"
    manifest.write_text(text(ports))
    command = [sys.executable, "-m", "orderlymq", "up", "-f", str(manifest), "--console"]
    command += ["--data-dir", str(tmp_path / "data")]
    environment = {**os.environ, "ORDERLYMQ_CONSOLE_LISTEN": "127.0.0.1:0"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        url = ""
        for line in process.stdout:
            found = re.search(r"The console is at (http://127\.0\.0\.1:\d+)\.", line)
            if found:
                url = found[1]
                break
        with urllib.request.urlopen(f"{url}/api/raft") as answer:
            assert b'"unknown":""' in answer.read()
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(timeout=50) == 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}/healthz")
