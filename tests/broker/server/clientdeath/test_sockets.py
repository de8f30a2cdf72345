"""Which process holds the other end of a connection, and when that must not be concluded."""

import os
import platform
import signal
import subprocess
import sys
import time

import psutil
import pytest

from orderlymq_broker.server.clientdeath.sockets import (
    Holding,
    Process,
    View,
    proof_of_death,
    read_process,
)
from tests.broker.server.clientdeath.children import (
    SAME_PORT_CLIENT,
    Broker,
    client,
    killed_during_a_look,
    listening,
)

NOBODY = 2**22 + 1

# Programs that forward another program's bytes, by the way in which they get them.
FORWARDERS = {
    "accepts": "served = socket.create_server(('127.0.0.1', 0))",
    "accepted and does not listen": """
served = socket.create_server(('127.0.0.1', 0))
other = socket.create_connection(served.getsockname())
inner, _ = served.accept()
served.close()
""",
    "dials another program, as the end of a tunnel does": """
far = socket.create_server(('127.0.0.1', 0))
tunnel = socket.create_connection(far.getsockname())
fork(tunnel, *socks)
far.close()
""",
    "speaks UDP": "datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "has a Unix socket": "one, two = socket.socketpair()",
    "reads a named pipe": """
import tempfile
path = os.path.join(tempfile.mkdtemp(), 'pipe')
os.mkfifo(path)
fifo = os.open(path, os.O_RDWR)
""",
    "reads a terminal": "pair = os.openpty()",
    "shares memory": "memory = os.memfd_create('shared')",
}


def look(broker: Broker, pid: int | None = None) -> Holding | str:
    """Look for the client of the first connection, in the TCP tables and by both ends."""
    end = broker.ends[0]
    found = View().client_of(end, pid)
    assert View([(end, broker.ours)]).client_of(end, pid) == found

    return found


def test_the_only_process_that_holds_the_other_end_is_the_client() -> None:
    """Law: the only process that holds the other end is the client, whatever its client id says."""
    with listening() as broker, client(broker) as process:
        found = look(broker)
        named = look(broker, process.pid)

        assert isinstance(found, Holding)
        assert found.owners == {read_process(process.pid)}
        assert named == found


@pytest.mark.parametrize(
    ("listens", "dials"), [("::", "127.0.0.1"), ("::", "::1"), ("127.0.0.1", "::ffff:127.0.0.1")]
)
def test_both_families_are_understood(listens: str, dials: str) -> None:
    """Law: IPv4 connections through sockets of both families, as Java's, are found."""
    with listening(listens) as broker, client(broker, host=dials) as process:
        found = look(broker)

        assert isinstance(found, Holding)
        assert found.owners == {read_process(process.pid)}


@pytest.mark.parametrize("by", ["both ends", "the tables"])
def test_a_client_that_is_killed_during_the_look_is_known(by: str) -> None:
    """Law: a client killed during a look (0.1 s on a busy machine) is known, because it is read when it is found."""
    with listening() as broker, client(broker) as process:
        living = read_process(process.pid)
        with killed_during_a_look(process):
            view = View([(broker.ends[0], broker.ours if by == "both ends" else None)])

        found = view.client_of(broker.ends[0], process.pid if by == "both ends" else None)

        assert process.returncode is not None
        assert isinstance(found, Holding)
        assert found.owners == {living}


def test_a_number_that_is_no_holder_of_the_socket_names_no_process() -> None:
    """Law: a process number that does not hold the socket is ignored; it may be of a container or part of a name."""
    with listening() as broker, client(broker):
        found = look(broker, os.getpid())

        assert found == look(broker)


@pytest.mark.parametrize("way", FORWARDERS)
def test_a_process_that_may_speak_for_another_program_is_no_client(way: str) -> None:
    """Law: a process that may forward for another program is no client, because its death would prove nothing."""
    with listening() as broker, client(broker, FORWARDERS[way]) as process:
        found = look(broker)
        named = look(broker, process.pid)

        assert isinstance(found, str)
        assert "may act for another program" in found
        # If the client itself names this process, that is enough; a forwarder does not know the client's number.
        assert isinstance(named, Holding)


def test_a_process_that_reads_what_another_one_writes_is_no_client() -> None:
    """Law: a process that reads another one's output, as `ssh -W` or netcat, is no client."""
    with listening() as broker, client(broker, stdin=subprocess.PIPE):
        found = look(broker)

        assert isinstance(found, str)
        assert "reads from pipe:" in found


def test_a_consumer_of_the_java_client_may_have_other_connections() -> None:
    """Law: a Java consumer, known by its threads, may have other connections; if it also listens,
    it may be RocketMQ's proxy.
    """
    threads = """
import ctypes
def run(name):
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
    time.sleep(60)
for name in (b'RebalanceServic', b'PullMessageServ'):
    threading.Thread(target=run, args=(name,), daemon=True).start()
database = socket.create_server(('127.0.0.1', 0))
dialled = socket.create_connection(database.getsockname())
fork(dialled, *socks)
database.close()
one, two = socket.socketpair()
"""
    with listening() as broker:
        with client(broker, threads):
            assert isinstance(look(broker), Holding)
        broker.ends.clear()
        with client(broker, threads + FORWARDERS["accepts"]):
            found = look(broker)
            assert isinstance(found, str)
            assert "it listens" in found


def test_a_socket_with_several_holders_has_them_all() -> None:
    """Law: a socket inherited by fork has several holders, and each may be the client."""
    with listening() as broker, client(broker, "fork()") as process:
        (child,) = psutil.Process(process.pid).children()
        found = look(broker, process.pid)

        assert isinstance(found, Holding)
        assert found.owners == {read_process(process.pid), read_process(child.pid)}
        child.kill()


def test_a_client_is_found_also_when_its_port_is_another_connections_too() -> None:
    """Law: a client is found even if its port is used by another connection with a different end."""
    serve = """
import socket
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
accepted, (_, port) = listener.accept()
print(port, flush=True)
accepted.recv(1)
"""
    words = (sys.executable, "-c", serve, "-m", "orderlymq_broker")
    with listening() as broker, subprocess.Popen(words, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        same_port = SAME_PORT_CLIENT.format(int(other.stdout.readline()))
        try:
            with client(broker, connect=same_port) as process:
                (end,) = broker.ends
                assert end[1] == int(other.stdout.readline())

                found = View().client_of(end, None)
                forwarded = View().client_of(end, None, forwarded=True)

                assert isinstance(found, Holding)
                assert isinstance(forwarded, Holding)
                assert found.owners == forwarded.owners == {read_process(process.pid)}
                assert found.inode != forwarded.inode
        finally:
            other.kill()


def test_who_inherits_a_socket_holds_it() -> None:
    """Law: a process that inherited the socket after the look still holds it."""
    with listening() as broker:
        when_told = "signal.signal(signal.SIGUSR1, lambda *_: fork())"
        with client(broker, when_told) as process:
            found = look(broker)
            assert isinstance(found, Holding)
            assert len(found.owners) == 1
            process.send_signal(signal.SIGUSR1)
            while not (children := psutil.Process(process.pid).children()):
                time.sleep(0.02)
            process.kill()
            process.wait()

            assert View().is_held(found)
            children[0].kill()
            children[0].wait()
            assert not View().is_held(found)


def test_an_end_that_is_not_connected_with_us_has_no_client() -> None:
    """Law: an address that is not connected with this machine has no client."""
    with listening() as broker, client(broker):
        assert isinstance(View().client_of(("192.0.2.7", broker.ends[0][1]), None), str)
        assert isinstance(View().client_of(("127.0.0.1", broker.port), None), str)
        assert isinstance(View().client_of(("2001:db8::1%lo", 7), None), str)


def test_a_living_process_is_not_dead_and_a_later_one_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: start time and number together identify a process, also if the clock is set."""
    me = read_process(os.getpid())
    assert me is not None
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 1.0)

    assert proof_of_death(me) is None
    assert "later process" in (proof_of_death(me._replace(started=0)) or "")
    assert "does not exist" in (proof_of_death(Process(NOBODY, 1, 0)) or "")
    assert read_process(NOBODY) is None


def test_a_zombie_is_dead_when_all_of_its_threads_have_ended() -> None:
    """Law: a process whose first thread has ended is alive until all its threads have."""
    exit_call = {"x86_64": 60, "aarch64": 93}[platform.machine()]
    program = (
        "import ctypes, threading, time;"
        "threading.Thread(target=time.sleep, args=(60,)).start();"
        f"ctypes.CDLL(None).syscall({exit_call}, 0)"
    )
    # A plain child of this process, because it must not be collected before the end of the test.
    child = subprocess.Popen([sys.executable, "-c", program])
    try:
        process = read_process(child.pid)
        assert process is not None
        while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)

        assert proof_of_death(process) is None

        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert "not collected" in (proof_of_death(process) or "")
    finally:
        child.kill()
        child.wait()
