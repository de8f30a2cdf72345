"""The application of examples/orders-app."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orderlymq.blocking import AdminClient, Producer
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from tests.cluster.processes import Group
from tests.ports import free_ports

ORDERS = Path(__file__).parents[2] / "examples" / "orders-app"
SERVE = "import asyncio, sys, history; history.PORT = int(sys.argv[1]); asyncio.run(history.serve(history.Path(sys.argv[2])))"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_history_ends_with_a_signal_and_calls_nobody_dead(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Law: a signal ends the application with code 0; its history is complete and reports no death."""
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


@pytest.mark.cluster
def test_the_producer_is_ready_once_a_message_of_its_own_was_acknowledged(tmp_path: Path) -> None:
    """Law: the producer is ready only when one of its messages was acknowledged."""
    [port] = free_ports(1)
    with (
        Group(tmp_path, replicas=1) as group,
        socket.create_server(("127.0.0.1", 0)) as history,
    ):
        history.settimeout(60)
        environment = {
            **os.environ,
            "ORDERS_NAME_SERVERS": group.name_server_address,
            "ORDERS_HISTORY": f"127.0.0.1:{history.getsockname()[1]}",
            "ORDERS_READY_PORT": str(port),
            "ORDERS_AT_ONCE": "1",
        }
        command = [sys.executable, "orders.py", "produce"]
        with subprocess.Popen(command, cwd=ORDERS, env=environment) as process:
            try:
                kinds = (event["kind"] for event in _recorded(history))
                while next(kinds) != "ack":
                    assert not _is_open(port)
                assert not _is_open(port)
                assert next(kinds) == "send"  # Of the next step.
                assert _is_open(port)
            finally:
                process.kill()


@pytest.mark.cluster
def test_a_consumer_by_key_names_its_attempts(tmp_path: Path) -> None:
    """Law: a consumer by key records its attempts, by which the oracle judges lanes."""
    with (
        Group(tmp_path, replicas=1) as group,
        AdminClient(group.name_server_address) as admin,
        Producer("orders", group.name_server_address) as producer,
        socket.create_server(("127.0.0.1", 0)) as history,
    ):
        history.settimeout(60)
        admin.create_topic("orders", queues=1, ordered=True)
        admin.set_group(SubscriptionGroupConfig("billing", concurrency="Key"))
        producer.send("orders", "paid", key="order-1")
        environment = {
            **os.environ,
            "ORDERS_NAME_SERVERS": group.name_server_address,
            "ORDERS_HISTORY": f"127.0.0.1:{history.getsockname()[1]}",
            "ORDERS_BY_KEY": "1",
        }
        command = [sys.executable, "orders.py", "consume"]
        with subprocess.Popen(command, cwd=ORDERS, env=environment) as process:
            try:
                told = _recorded(history)
                events = [next(told), next(told)]
            finally:
                process.kill()

    found = [(each["kind"], each["key"], each.get("attempt")) for each in events]
    assert found == [("deliver", "order-1", 1), ("done", "order-1", 1)]


def _recorded(history: socket.socket) -> Iterator[dict[str, Any]]:
    """Yield each event; the application goes on when the next one is asked for."""
    told, _ = history.accept()
    told.settimeout(60)
    with told, told.makefile("rb") as lines:
        for line in lines:
            yield json.loads(line)
            told.sendall(b"\n")


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
