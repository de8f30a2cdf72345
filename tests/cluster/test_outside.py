"""Clients that reach a cluster only through an outside listener: another address, with its own TLS."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from orderlymq import (
    AdminClient,
    ClientSettings,
    Producer,
)
from orderlymq.cli import cli
from orderlymq.errors import OrderlyMQError
from orderlymq_protocol.body.catalogue import SubscriptionGroupConfig
from orderlymq_protocol.message.ids import encode_offset_message_id
from tests.cluster.orderedload import ordered_load
from tests.cluster.outside import OUTSIDE, bootstrap, called, listen_outside, tell_addresses
from tests.cluster.processes import Group
from tests.cluster.sniproxy import gateway, resolve
from tests.waiting import until

DOMAIN: Final = "mq.test"
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.fixture
def make_outside(tmp_path: Path) -> Iterator[Callable[..., Group]]:
    groups: list[Group] = []

    def make(replicas: int, **options: Any) -> Group:
        group = listen_outside(tmp_path / f"group-{len(groups)}", replicas, **options)
        groups.append(group)
        group.start()
        _wait_until_listening(group)
        return group

    yield make
    for group in groups:
        group.stop()


def _wait_until_listening(group: Group) -> None:
    """Wait until the leader listens at both addresses, which it binds after it has begun to serve."""
    for host in ("127.0.0.1", OUTSIDE):
        while True:
            try:
                socket.create_connection((host, group.port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.02)


@pytest.mark.parametrize("tls", [False, True])
async def test_order_is_kept_outside_while_the_leader_is_killed(
    make_outside: Callable[..., Group], tls: bool
) -> None:
    """Law: clients of an outside listener get the same order, and connect to no inner address."""
    group = make_outside(3, tls=tls)
    async with AdminClient(group.name_server_address) as admin:
        await admin.create_topic("orders", queues=4, ordered=True)
    await until(lambda: not called(group, os.getpid()))
    settings = ClientSettings(use_tls=tls)
    async with ordered_load(group, bootstrap(group), settings):
        found = called(group, os.getpid())

    assert found == {OUTSIDE}


async def test_order_is_kept_through_a_gateway_while_the_leader_is_killed(
    make_outside: Callable[..., Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a gateway routes by server name to each part of a cluster, and certificates are checked by these names."""
    group = make_outside(3, tls=True, host=f"*.{DOMAIN}")
    async with AdminClient(group.name_server_address) as admin:
        await admin.create_topic("orders", queues=4, ordered=True)
    routes = {
        f"shop-0.{DOMAIN}": (OUTSIDE, group.port),
        f"shop-nameserver.{DOMAIN}": (OUTSIDE, group.name_server_port),
    }
    resolve(monkeypatch, DOMAIN)
    async with gateway(routes) as made:
        tell_addresses(group, {"g": f"shop-0.{DOMAIN}:{made.port}"})
        settings = ClientSettings(use_tls=True, tls_ca_file=str(group.directory / "ca.pem"))
        async with ordered_load(group, f"shop-nameserver.{DOMAIN}:{made.port}", settings):
            seen = set(made.seen)

    assert seen == set(routes)


async def test_a_route_waits_for_the_address_of_its_group(
    make_outside: Callable[..., Group],
) -> None:
    """Law: without an outside address the refusal names the group; the same client continues when the address is there."""
    group = make_outside(1)
    tell_addresses(group, {})
    async with AdminClient(group.name_server_address) as admin:
        await admin.create_topic("orders", queues=1)

    async with AdminClient(bootstrap(group)) as outside:
        refusal = await _refusal_of(outside)
        tell_addresses(group, {"g": f"{OUTSIDE}:{group.port}"})
        async with Producer("p", bootstrap(group)) as producer:
            sent = await _send_when_told(producer)
        brokers = await outside.brokers()
        seen = await outside.view_message(sent)

    assert "OutsideAddressMissing: the broker group g " in refusal
    assert brokers == {"g": f"{OUTSIDE}:{group.port}"}
    # The message id has the group's inner address, so that it is the same for all readers.
    assert (seen.text, seen.offset_message_id) == ("first", sent)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["status"], 0),
        (["trace", "NO-ID"], 3),
        (["message", "show", encode_offset_message_id("127.0.0.1", 1, 7)], 3),
    ],
)
async def test_commands_answer_outside_as_inside(
    make_outside: Callable[..., Group], words: list[str], code: int
) -> None:
    """Law: commands that need no queue lists give the same results through an outside listener."""
    group = make_outside(1)

    found = [
        await asyncio.to_thread(CliRunner().invoke, cli, [*words, "--name-server", address])
        for address in (bootstrap(group), group.name_server_address)
    ]

    assert [each.exit_code for each in found] == [code, code], found[0].output


async def test_groups_are_changed_outside(make_outside: Callable[..., Group]) -> None:
    """Law: consumer groups can be changed through an outside listener, too."""
    group = make_outside(1)
    async with AdminClient(bootstrap(group)) as outside:
        await outside.set_group(SubscriptionGroupConfig("billing"))
        made = await outside.groups()
        await outside.delete_group("billing")
        left = await outside.groups()

    assert "billing" in made
    assert "billing" not in left


async def _refusal_of(admin: AdminClient) -> str:
    """Return the reason why there is no route, as soon as the name server has read its file again."""
    async with asyncio.timeout(20.0):
        while True:
            try:
                await admin.route("orders")
            except OrderlyMQError as error:
                return str(error)
            await asyncio.sleep(0.05)


async def _send_when_told(producer: Producer) -> str:
    async with asyncio.timeout(20.0):
        while True:
            try:
                return (await producer.send("orders", "first")).offset_message_id
            except OrderlyMQError:
                await asyncio.sleep(0.05)
