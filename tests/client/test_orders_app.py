"""The application of examples/orders-app."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_ports

ORDERS = Path(__file__).parents[2] / "examples" / "orders-app"
SERVE = "import asyncio, sys, history; history.PORT = int(sys.argv[1]); asyncio.run(history.serve(history.Path(sys.argv[2])))"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_history_ends_with_a_signal_and_calls_nobody_dead(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Law: the code is 0, what was answered stands in the file, and a process that lives on has not died."""
    [port] = free_ports(1)
    file = tmp_path / "events.jsonl"
    command = [sys.executable, "-c", SERVE, str(port), str(file)]
    with subprocess.Popen(command, cwd=ORDERS) as process, _connected(port) as client:
        client.sendall(b'{"at":1,"kind":"deliver","process":"consumer"}\n')
        assert client.recv(1) == b"\n"
        process.send_signal(number)
        code = process.wait(timeout=15)

    assert code == 0
    assert [json.loads(line)["kind"] for line in file.read_text().splitlines()] == ["deliver"]


def _connected(port: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=15)
        except ConnectionRefusedError:
            continue
