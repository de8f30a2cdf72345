"""A process that cannot start with its settings prints one sentence, exits with 2, and changes no file."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import orderlymq_broker.__main__
import orderlymq_nameserver.__main__
from orderlymq_broker.store import layout
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.rocks import RocksStore
from orderlymq_broker.store.snapshot import store_path
from tests.cluster.bareclient import send_command
from tests.cluster.processes import Group
from tests.ports import free_ports
from tests.trouble.inspection import wait_until_open
from tests.trouble.rawsocket import RawSocket

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]

START_TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def running(make_group: Callable[..., Group]) -> Group:
    """Return a running group."""
    return make_group(1)


@pytest.fixture(scope="module")
def stopped(make_group: Callable[..., Group], running: Group) -> Group:
    """Return a group that has stored messages and was stopped in order.

    The other group runs already, so that it does not get the ports of this one.
    """
    group = make_group(1)
    with RawSocket(group.port) as connection:
        for _ in range(2):
            assert connection.call(send_command("orders", 0, b"kept")) is not None
    group.brokers[1].signal(signal.SIGTERM)
    assert group.brokers[1].wait() == 0
    return group


@pytest.fixture
def taken() -> Iterator[int]:
    """Return a port on which another socket listens."""
    with closing(socket.socket()) as listener:
        # `free_ports` checks with this option, too: the port may have been in use a moment ago.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", free_ports(1)[0]))
        listener.listen()
        yield listener.getsockname()[1]


def start(module: str, path: Path) -> tuple[int, str]:
    """Start a process that ends by itself; return its exit code and its whole output."""
    done = subprocess.run(
        [sys.executable, "-m", module, "--settings", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=START_TIMEOUT_S,
    )
    return done.returncode, (done.stdout + done.stderr).strip()


def refused(module: str, path: Path) -> str:
    """Return the one sentence of a process that did not start."""
    code, text = start(module, path)
    assert code == 2, text
    assert "Traceback" not in text
    lines = [line for line in text.splitlines() if " INFO " not in line]
    assert len(lines) == 1, text
    return lines[0]


def refused_settings(module: str, path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one sentence that refuses settings before a process begins.

    The check runs in this process, because there are many settings.
    """
    main = {
        "orderlymq_broker": orderlymq_broker.__main__.main,
        "orderlymq_nameserver": orderlymq_nameserver.__main__.main,
    }[module]
    code = main(["--settings", str(path)])
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    (line,) = said.err.splitlines()
    return line


def settings_file(tmp_path: Path, settings: object) -> Path:
    path = tmp_path / "settings.json"
    path.write_text(settings if isinstance(settings, str) else json.dumps(settings))
    return path


def fresh(group: Group, tmp_path: Path, /, **changes: Any) -> Path:
    """Write settings of a replica with its own directory and ports, and with *changes*."""
    raft, http, port = free_ports(3)
    own = {
        "data_dir": str(tmp_path / "data"),
        "peers": {"1": {"host": "127.0.0.1", "port": raft}},
        "http": {"host": "127.0.0.1", "port": http},
        "address": {"host": "127.0.0.1", "port": port},
    }
    return settings_file(tmp_path, group.settings(1) | own | changes)


def contents(directory: Path) -> dict[str, bytes]:
    """Return every file below *directory* except RocksDB's log, which each start begins again."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.startswith(("LOG", "replica.lock"))
    }


@pytest.mark.parametrize("kind", ["peers", "http"])
def test_a_broker_names_the_port_that_is_taken(
    kind: str, taken: int, stopped: Group, tmp_path: Path
) -> None:
    """The sentence names the raft or HTTP port that is in use and says what to do."""
    where = {"host": "127.0.0.1", "port": taken}
    change = {"1": where} if kind == "peers" else where

    text = refused("orderlymq_broker", fresh(stopped, tmp_path, **{kind: change}))

    assert str(taken) in text
    assert "in use" in text


@pytest.mark.parametrize("kind", ["listen", "http"])
def test_a_name_server_names_the_port_that_is_taken(kind: str, taken: int, tmp_path: Path) -> None:
    """The sentence names the port of the name server that is in use, for both of its ports."""
    free = {"host": "127.0.0.1", "port": free_ports(1)[0]}
    ports = {"listen": free} | {kind: {"host": "127.0.0.1", "port": taken}}

    text = refused("orderlymq_nameserver", settings_file(tmp_path, ports))

    assert str(taken) in text
    assert "in use" in text


def test_a_leader_whose_address_is_taken_says_so_and_binds_it_later(
    taken: int, make_group: Callable[..., Group], tmp_path: Path
) -> None:
    """A leader does not end because the group's address is in use, as a former leader may hold it; the log names it."""
    # `test_address` checks this from inside; here the log line matters, which comes after three seconds.
    path = fresh(Group(tmp_path / "g", 1), tmp_path, address={"host": "127.0.0.1", "port": taken})
    words = f"port {taken} of 127.0.0.1 is in use"
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "orderlymq_broker", "--settings", str(path)], stderr=log
        ) as process,
    ):
        ends = time.monotonic() + 60
        while words not in (tmp_path / "log").read_text() and time.monotonic() < ends:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        code = process.wait(20.0)

    text = (tmp_path / "log").read_text()
    assert code == 0
    assert words in text
    assert text.count("cannot be reached") < 5


@pytest.mark.parametrize(
    "change", [{"cluster": "D"}, {"group": "h"}, {"node_id": 2}], ids=lambda each: next(iter(each))
)
def test_a_directory_of_somebody_else_is_not_touched(
    change: dict[str, Any], stopped: Group, tmp_path: Path
) -> None:
    """The directory of another cluster, group or node is refused; the sentence has both names, and no file changes."""
    directory = stopped.data_dir(1)
    before = contents(directory)
    peers = {str(node): {"host": "127.0.0.1", "port": stopped.raft_ports[1]} for node in (1, 2)}
    own = {"data_dir": str(directory), "peers": peers}

    text = refused("orderlymq_broker", fresh(stopped, tmp_path, **(own | change)))

    assert "belongs to node 1 of group 'g' in cluster 'C'" in text
    assert str(directory) in text
    assert contents(directory) == before


def test_a_directory_in_use_is_refused_and_its_user_is_named(
    running: Group, tmp_path: Path
) -> None:
    """A second process on a directory is refused; the sentence names the process that uses it, which continues."""
    text = refused("orderlymq_broker", fresh(running, tmp_path, data_dir=str(running.data_dir(1))))

    assert f"in use by process {running.brokers[1].pid}" in text
    with RawSocket(running.port) as connection:
        assert connection.call(send_command("orders", 0, b"unharmed")) is not None


def test_a_format_of_a_later_release_is_not_touched(stopped: Group, tmp_path: Path) -> None:
    """The directory of a newer release is refused; the sentence has both versions, and no file changes."""
    directory = stopped.data_dir(1)
    plate = directory / "identity.json"
    present = plate.read_bytes()
    was, later = (f'"format":{layout.FORMAT_VERSION + more}'.encode() for more in (0, 1))
    assert was in present
    plate.write_bytes(present.replace(was, later))
    before = contents(directory)

    try:
        text = refused("orderlymq_broker", fresh(stopped, tmp_path, data_dir=str(directory)))
        after = contents(directory)
    finally:
        plate.write_bytes(present)

    assert f"format {layout.FORMAT_VERSION + 1}" in text
    assert "run the release that wrote it" in text
    assert after == before


def test_a_store_of_a_later_release_is_refused_without_its_plate(
    stopped: Group, tmp_path: Path
) -> None:
    """If the version file is missing, the broker reads the version from the store itself, which keeps its data."""
    directory = tmp_path / "data"
    shutil.copytree(stopped.data_dir(1), directory)
    (directory / "identity.json").unlink()
    store = RocksStore(store_path(directory))
    batch = Batch()
    batch.put(Family.META, layout.META_FORMAT, layout.encode_u64(layout.FORMAT_VERSION + 1))
    store.write(batch, sync=True)
    store.close()

    text = refused("orderlymq_broker", fresh(stopped, tmp_path))

    assert f"format {layout.FORMAT_VERSION + 1}" in text
    assert not (directory / "identity.json").exists()


def test_a_damaged_directory_is_refused_with_the_way_out(stopped: Group, tmp_path: Path) -> None:
    """The sentence about a store that cannot be opened says what to do, and not where the code failed."""
    directory = tmp_path / "data"
    (directory / "store").mkdir(parents=True)
    (directory / "store" / "CURRENT").write_bytes(b"MANIFEST-000099\n")

    text = refused("orderlymq_broker", fresh(stopped, tmp_path))

    assert str(directory) in text
    assert "orderlymq doctor" in text


def test_a_data_dir_that_is_a_file_is_refused(stopped: Group, tmp_path: Path) -> None:
    """A file in place of the directory is refused and kept."""
    (tmp_path / "data").write_text("precious")

    text = refused("orderlymq_broker", fresh(stopped, tmp_path))

    assert str(tmp_path / "data") in text
    assert (tmp_path / "data").read_text() == "precious"


BROKEN_SETTINGS: dict[str, tuple[str, str]] = {
    "not JSON": ("{", ""),
    "no object": ("[]", "object"),
    "empty": ("", ""),
    "not UTF-8 in a name": ('{"cluster": "\\ud800"}', ""),
    "nothing in it": ("{}", "required"),
}


@pytest.mark.parametrize(
    ("text", "named"), BROKEN_SETTINGS.values(), ids=list(BROKEN_SETTINGS.keys())
)
@pytest.mark.parametrize("module", ["orderlymq_broker", "orderlymq_nameserver"])
def test_settings_that_are_none_are_refused(
    module: str, text: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence names the settings file that cannot be read."""
    if module == "orderlymq_nameserver" and text == "{}":
        text = '{"listen": {}}'  # a name server has a default for everything
    path = settings_file(tmp_path, text)

    sentence = refused_settings(module, path, capsys)

    assert str(path) in sentence
    assert named in sentence or module == "orderlymq_nameserver"


WRONG_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"grup": "g"}, "grup"),
    ({"raft": {"electon_ms": 200}}, "electon_ms"),
    ({"cluster": 5}, "cluster"),
    ({"node_id": "one"}, "node_id"),
    ({"node_id": 7}, "node_id 7"),
    ({"bind": "sometimes"}, "bind"),
    ({"http": {"host": "127.0.0.1"}}, "port"),
    ({"http": {"host": "127.0.0.1", "port": 70_000}}, "$.http.port"),
    ({"http": {"host": "127.0.0.1", "port": -1}}, "$.http.port"),
    ({"log_level": "LOUD"}, "LOUD"),
    ({"raft": {"election_ms": 10}}, "election_ms"),
    ({"raft": {"tick_ms": 0}}, "tick_ms"),
    ({"timers": {"delay_levels": "1s 5 parsecs"}}, "delay"),
    ({"storage": {"disk_refuse_ratio": 1.5}}, "disk_refuse_ratio"),
    ({"storage": {"disk_refuse_ratio": 0.5, "disk_resume_ratio": 0.9}}, "disk_resume_ratio"),
    ({"storage": {"body_size_max": -1}}, "body_size_max"),
    ({"storage": {"flush": "NEVER"}}, "flush"),
]


@pytest.mark.parametrize(
    ("change", "named"), WRONG_SETTINGS, ids=[str(change) for change, _ in WRONG_SETTINGS]
)
def test_a_setting_that_is_wrong_is_named(
    change: dict[str, Any],
    named: str,
    stopped: Group,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The sentence names the setting with a wrong name, type, range or contradiction; no directory is made."""
    path = fresh(stopped, tmp_path, **change)

    sentence = refused_settings("orderlymq_broker", path, capsys)

    assert named in sentence
    assert str(path) in sentence
    assert not (tmp_path / "data").exists()


def test_a_mistake_in_the_settings_ends_a_real_process_with_2(
    stopped: Group, tmp_path: Path
) -> None:
    """A real process exits with 2, too, also for an unknown host, which is noticed only by listening."""
    host = "no-such-host.invalid"

    assert "grup" in refused("orderlymq_broker", fresh(stopped, tmp_path, grup="g"))
    listening = fresh(stopped, tmp_path, http={"host": host, "port": 80})
    assert host in refused("orderlymq_broker", listening)


def test_a_settings_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence names the path of a missing file or of a directory in its place."""
    for module in ("orderlymq_broker", "orderlymq_nameserver"):
        missing = refused_settings(module, tmp_path / "none", capsys)
        assert str(tmp_path / "none") in missing
        assert str(tmp_path) in refused_settings(module, tmp_path, capsys)


def test_what_was_refused_all_the_time_still_starts(stopped: Group) -> None:
    """After all refusals of this module, the directory still serves its messages."""
    stopped.brokers[1].start()
    stopped.wait_for_leader()
    wait_until_open(stopped)

    with RawSocket(stopped.port) as connection:
        answer = connection.call(send_command("orders", 0, b"after"))
        assert answer is not None
        assert int(answer.ext["queueOffset"]) == 2
