import contextlib
import errno
import json
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import psutil
import pytest
from click.testing import CliRunner, Result

from orderlymq_operator.commands import _wait_until_settled, apply, demo, down, plan, up
from orderlymq_operator.local.directory import Contact, DataDirectory
from tests.operator.local.conftest import directory, ports, stub_brokers
from tests.operator.local.manifests import normal_topic, text
from tests.operator.local.supervision import is_supervised

__all__ = ["directory", "ports", "stub_brokers"]  # fixtures

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("stub_brokers"),
    pytest.mark.timeout(60),
]

_CODE = """
import click
from orderlymq_operator.commands import apply, demo, down, plan, up
click.Group(commands=[up, down, plan, apply, demo])()
"""


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", _CODE, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)


def _answer(*arguments: str) -> Result:
    """Run a command that starts no process, inside this one; a new interpreter takes a second of CPU time."""
    return CliRunner().invoke(click.Group(commands=[up, down, plan, apply, demo]), arguments)


@pytest.fixture
def manifest(tmp_path: Path, ports: int) -> Path:
    file = tmp_path / "cluster.yaml"
    file.write_text(text(ports))
    return file


@pytest.mark.long
@pytest.mark.timeout(180)  # A dozen programs, one after the other.
def test_up_detached_apply_and_down(directory: DataDirectory, manifest: Path, ports: int) -> None:
    """Law: a cluster's whole life works by commands, with JSON results and the documented exit codes."""
    place = ("--data-dir", str(directory))

    begun = _run("up", "-f", str(manifest), "--detach", *place, "--json")
    snapshot = json.loads(begun.stdout)
    again = _run("up", "-f", str(manifest), *place)
    manifest.write_text(text(ports, extra=normal_topic(4)))
    planned = _run("plan", "-f", str(manifest), *place)
    applied = _run("apply", "-f", str(manifest), *place, "--output", "json")
    done = _run("plan", "-f", str(manifest), *place, "--json")
    manifest.write_text(text(ports, queues=9))
    unplanned = _run("plan", "-f", str(manifest), *place)
    refused = _run("apply", "-f", str(manifest), *place, "--output", "json")
    ended = _run("down", *place)
    nothing = _run("down", *place)
    nobody = _run("apply", "-f", str(manifest), *place)
    short = _run("down", *place, "--json")
    short_failure = _run("apply", "-f", str(manifest), *place, "--json")

    assert (begun.returncode, snapshot["cluster"], snapshot["settled"]) == (0, "demo", True)
    assert snapshot["nameServers"][0]["address"] == f"127.0.0.1:{ports}"
    assert again.returncode == 3
    assert "orderlymq apply" in again.stderr
    assert (planned.returncode, planned.stdout) == (
        6,
        "Topic clicks\n    Creates: is created with 4 queues: 4 on demo-0\n"
        "Nothing happens to Cluster demo, Topic orders, ConsumerGroup billing.\n",
    )
    assert (done.returncode, json.loads(done.stdout)["changes"]) == (0, False)
    assert unplanned.returncode == 3
    assert (
        "Topic orders is refused, spec.queues: an Ordered topic keeps its 8 queues"
        in unplanned.stdout
    )
    assert json.loads(applied.stdout) == {
        "applied": True,
        "actions": ["create topic clicks with 4 queues on demo-0"],
    }
    failure = json.loads(refused.stdout)
    assert (refused.returncode, failure["exitCode"]) == (3, 3)
    assert "keeps its 8 queues" in failure["error"]
    assert (ended.returncode, ended.stdout.split(".")[0]) == (0, "Stopped")
    assert (nothing.returncode, nothing.stdout) == (0, f"Nothing runs on {directory}.\n")
    assert nobody.returncode == 4
    assert "orderlymq up -f FILE" in nobody.stderr
    assert (short.returncode, list(json.loads(short.stdout))) == (0, ["supervisor", "orphans"])
    assert (short_failure.returncode, json.loads(short_failure.stdout)["exitCode"]) == (4, 4)


def _start_in_foreground(directory: DataDirectory, manifest: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", _CODE, "up", "-f", str(manifest)]
    command += ["--data-dir", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "stays up" in line:
            return process
    raise AssertionError(f"it ended with {process.wait()}")


def _children(directory: DataDirectory) -> list[int]:
    return [json.loads(path.read_text())["pid"] for path in directory.run_records()]


def test_ctrl_c_ends_everything_within_seconds(directory: DataDirectory, manifest: Path) -> None:
    """Law: Ctrl-C ends everything within seconds, leaves no process or lock, and the exit code is 0."""
    process = _start_in_foreground(directory, manifest)
    children = _children(directory)
    began = time.monotonic()

    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)

    assert process.returncode == 0
    assert time.monotonic() - began < 20
    assert len(children) == 4
    assert not any(psutil.pid_exists(pid) for pid in children)
    assert not is_supervised(directory)


@pytest.mark.long
def test_a_supervisor_that_was_killed_leaves_nothing_that_stands_in_the_way(
    directory: DataDirectory, manifest: Path
) -> None:
    """Law: after the supervisor was killed its children live on; the next `up` ends them and begins again."""
    process = _start_in_foreground(directory, manifest)
    children = _children(directory)
    process.kill()
    process.communicate(timeout=20)
    assert all(psutil.pid_exists(pid) for pid in children)

    again = _run("up", "--detach", "--data-dir", str(directory))

    assert again.returncode == 0
    assert not any(psutil.pid_exists(pid) for pid in children)


@pytest.mark.parametrize("command", ["up", "apply"])
def test_bad_manifests_are_reported_without_asking_anybody(
    directory: DataDirectory, manifest: Path, command: str
) -> None:
    """Law: bad manifests give exit code 2 with file and line, without asking a supervisor."""
    manifest.write_text(manifest.read_text().replace("replicasPerGroup", "replicaPerGroup"))

    result = _answer(command, "-f", str(manifest), "--data-dir", str(directory))

    assert result.exit_code == 2
    assert f"{manifest}:6: spec.replicaPerGroup: unknown field; did you mean" in result.stderr
    assert not directory.path.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("up", "-f", "{manifest}", "--data-dir", "{directory}", "--from-backup", "\udcff"),
        ("demo", "--data-dir", "{directory}", "--topic", "\udcff"),
        ("plan", "-f", "{manifest}", "--data-dir", "{directory}", "--kubernetes", "-n", "\udcff"),
    ],
)
def test_an_argument_that_is_not_utf_8_is_refused(
    tmp_path: Path, manifest: Path, arguments: tuple[str, ...]
) -> None:
    """Law: an argument that is not UTF-8 is refused before anything is made, as in all commands."""
    directory = tmp_path / "data"

    found = _answer(
        *(each.format(manifest=manifest, directory=directory) for each in arguments), "--json"
    )

    assert found.exit_code == 2
    assert "'\\udcff' is not UTF-8" in json.loads(found.output)["error"]
    assert not directory.exists()


@pytest.mark.parametrize(
    ("words", "companion"),
    [
        (("up", "--timeout", "5s"), "--detach"),
        (("plan", "--context", "kind"), "--kubernetes"),
        (("plan", "-n", "shop"), "--kubernetes"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    directory: DataDirectory, manifest: Path, words: tuple[str, ...], companion: str
) -> None:
    """Law: an option without effect is refused, with the option that it needs."""
    result = _answer(*words, "-f", str(manifest), "--data-dir", str(directory))

    assert result.exit_code == 2
    assert re.search(rf"needs? {companion}\b", result.stderr)


def test_up_without_a_file_needs_a_directory_with_a_cluster(directory: DataDirectory) -> None:
    """Law: `up` without a file in an empty directory says how to begin."""
    result = _answer("up", "--data-dir", str(directory))

    assert (result.exit_code, "orderlymq up -f FILE" in result.stderr) == (4, True)


@pytest.fixture
def dying_broker(stub_brokers: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let each broker exit at its start, in place of the stand-in."""
    package = tmp_path / "stubs" / "orderlymq_broker"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("raise SystemExit('no disk')")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))


@pytest.mark.usefixtures("dying_broker")
def test_what_cannot_come_up_is_said_after_the_time_out(
    directory: DataDirectory, manifest: Path
) -> None:
    """Law: a cluster that cannot come up (its broker dies) gives exit code 1 after the timeout,
    with the reason and the logs' place.
    """
    result = _run(
        "up", "-f", str(manifest), "--detach", "--data-dir", str(directory), "--timeout", "10"
    )

    assert result.returncode == 1
    assert re.search(r"after 10 s \(.*demo-0.*logs", result.stderr.replace("\n", " "))
    assert "no disk" in directory.log("demo-0-1").read_text()


@pytest.mark.long
@pytest.mark.usefixtures("dying_broker")
def test_ctrl_c_while_a_start_is_waited_for_says_what_goes_on(
    directory: DataDirectory, manifest: Path
) -> None:
    """Law: Ctrl-C while `up --detach` waits gives code 130, and says which process goes on and how to stop it."""
    command = [sys.executable, "-c", _CODE, "up", "-f", str(manifest), "--detach"]
    command += ["--data-dir", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "demo-0-1" in line:
            break

    process.send_signal(signal.SIGINT)
    said += process.communicate(timeout=20)[1].splitlines()

    contact = directory.contact()
    assert contact is not None, said
    assert process.returncode == 130
    assert f"process {contact.pid}" in said[-1]
    assert "continues to start" in said[-1]
    assert "`orderlymq down` stops it" in said[-1]
    assert is_supervised(directory)


def test_one_late_answer_of_the_supervisor_does_not_end_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: one late answer of the supervisor does not end a waiting command, which asks again until its timeout."""
    monkeypatch.setattr("orderlymq_operator.local.control._TIMEOUT_S", 0.2)
    directory = DataDirectory(tmp_path)
    snapshot = {"settled": True, "events": [], "problem": None, "resources": []}
    body = json.dumps(snapshot).encode()

    def serve(listener: socket.socket) -> None:
        unanswered, _ = listener.accept()
        with unanswered, contextlib.suppress(OSError):  # The test closes the listener.
            while True:
                answered, _ = listener.accept()
                with answered, contextlib.suppress(OSError):  # The command no longer waits.
                    answered.recv(65536)
                    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
                    answered.sendall(head + body)

    with ThreadPoolExecutor() as threads, socket.create_server(("127.0.0.1", 0)) as listener:
        directory.publish(Contact(1, "127.0.0.1", listener.getsockname()[1], "token"))
        threads.submit(serve, listener)

        assert _wait_until_settled(directory, 60.0, "json") == snapshot
        listener.shutdown(socket.SHUT_RDWR)


def test_the_demo_needs_a_cluster(directory: DataDirectory) -> None:
    """Law: the demo without a cluster gives exit code 4 and says what to do."""
    result = _run("demo", "--data-dir", str(directory), "--output", "json")

    found: dict[str, Any] = json.loads(result.stdout)
    assert (result.returncode, found["exitCode"]) == (4, 4)
    assert os.fspath(directory.path) in found["error"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("demo", "--seconds", "3s"), 4),
        (("demo", "--seconds", "2s"), 2),
        (("demo", "--seconds", "2h"), 2),
        (("apply", "--timeout", "2m"), 4),
        (("apply", "--timeout", "500ms"), 2),
    ],
)
def test_times_have_units_as_in_other_commands(
    directory: DataDirectory, manifest: Path, words: tuple[str, ...], code: int
) -> None:
    """Law: times have units, and one out of range is wrong usage (code 2)."""
    files = ("-f", str(manifest)) if words[0] == "apply" else ()

    result = _answer(*words, *files, "--data-dir", str(directory))

    assert (result.exit_code, "must be at least" in result.stderr) == (code, code == 2)


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_full_disk_is_one_sentence(directory: DataDirectory, more: tuple[str, ...]) -> None:
    """Law: a full disk gives exit code 1 and one sentence, without a traceback."""
    command = [sys.executable, "-c", _CODE, "down", "--data-dir", str(directory), *more]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert (done.returncode, done.stderr) == (1, "Error: [Errno 28] No space left on device\n")


def test_what_the_system_refuses_is_one_json_value(tmp_path: Path) -> None:
    """Law: with JSON output an error of the system is one JSON value."""
    result = _answer("down", "--data-dir", str(tmp_path / ("a" * 300)), "--json")

    found: dict[str, Any] = json.loads(result.stdout)
    assert (result.exit_code, found["exitCode"], result.stderr) == (1, 1, "")
    assert "File name too long" in found["error"]


@pytest.mark.parametrize(
    ("number", "file"),
    [
        (errno.EACCES, "cluster.json"),
        (errno.EACCES, ".cluster.json.8b5711e3c2a199cc"),
        (errno.EPERM, "logs/supervisor.log"),
        (errno.EROFS, "supervisor.lock"),
    ],
)
def test_a_file_that_may_not_be_used_names_the_folder_and_the_user(
    directory: DataDirectory, monkeypatch: pytest.MonkeyPatch, number: int, file: str
) -> None:
    """Law: if the data directory may not be used, one sentence says which folder must be writable and by whom."""
    path = directory.path / file

    def refuse(self: DataDirectory) -> None:
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(DataDirectory, "is_ours", refuse)
        result = _answer("down", "--data-dir", str(directory))

    user = pwd.getpwuid(os.geteuid()).pw_name
    assert (result.exit_code, "Errno" in result.stderr) == (1, False)
    said = " ".join(result.stderr.split())
    assert f"a file in {path.parent} ({os.strerror(number)})" in said
    assert f"must be readable and writable by the user {user!r}" in said


def test_kubectl_finds_the_same_command(tmp_path: Path, ports: int) -> None:
    """Law: `kubectl orderlymq plan` runs the same command with the API server of KUBECONFIG, and says if there is none."""
    file = tmp_path / "cluster.yaml"
    file.write_text(text(ports))
    code = "from orderlymq_operator.commands import kubectl; kubectl()"
    settings = {**os.environ, "KUBECONFIG": str(tmp_path / "none")}
    settings.pop("KUBERNETES_SERVICE_HOST", None)
    command = [sys.executable, "-c", code, "plan", "-f", str(file), "--json"]

    found = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=50, env=settings
    )

    assert found.returncode == 4, found.stderr
    assert "KUBECONFIG cannot be used" in json.loads(found.stdout)["error"]
