"""A cluster with IPv6 addresses only: name server, broker, pages and SDK."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from orderlymq import (
    AdminClient,
    Consumer,
    OrderedContext,
    OrderedResult,
    Producer,
    ReceivedMessage,
)
from orderlymq_broker.settings import Address, BrokerSettings
from orderlymq_nameserver.app import NameServer
from orderlymq_nameserver.settings import NameServerSettings
from orderlymq_runtime.settingsfile import ServerAddress
from tests.broker.test_app import ready, running
from tests.ports import free_ports
from tests.runtime.sockets.test_listener import needs_ipv6

HOST = "::1"


@needs_ipv6
@pytest.mark.timeout(60)
async def test_messages_go_round_over_ipv6_alone(tmp_path: Path) -> None:
    """Law: over IPv6 alone, messages are sent and received, and addresses in routes and message ids can be read."""
    server = NameServer(NameServerSettings(listen=ServerAddress(HOST, 0)))
    await server.start()
    client, http, raft = (Address(HOST, port) for port in free_ports(3))
    settings = BrokerSettings(
        cluster="C",
        group="g",
        node_id=1,
        peers={1: raft},
        address=client,
        http=http,
        data_dir=tmp_path / "data",
        name_servers=[Address(HOST, server.address.port)],
    )
    came: asyncio.Queue[str] = asyncio.Queue()

    async def listener(
        messages: Sequence[ReceivedMessage], _context: OrderedContext
    ) -> OrderedResult:
        for message in messages:
            came.put_nowait(message.text)
        return OrderedResult.SUCCESS

    async with running(settings):
        await ready(settings)
        where = str(server.address)
        async with AdminClient(where) as admin:
            await admin.create_topic("orders", queues=2, ordered=True)
            brokers = await admin.brokers()
            async with (
                Producer("p", where) as producer,
                Consumer(
                    "billing",
                    where,
                    topics="orders",
                    ordered=True,
                    consume_from="first",
                    listener=listener,
                ),
            ):
                sent = await producer.send("orders", "first", key="k")
                text = await came.get()
            seen = await admin.view_message(sent.offset_message_id)
    await server.close()

    assert where.startswith("[::1]:")
    assert brokers == {"g": f"[::1]:{client.port}"}
    assert (text, seen.text, seen.store_host) == ("first", "first", (HOST, client.port))
