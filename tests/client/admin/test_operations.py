"""The admin client's other requests, with a real broker."""

import asyncio
from collections.abc import Sequence

import pytest

from orderlymq import (
    AdminClient,
    BrokerError,
    ConcurrentResult,
    Consumer,
    Producer,
    ReceivedMessage,
)
from tests.cluster.processes import Group
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]


async def test_settings_and_figures(admin: AdminClient) -> None:
    """Law: settings and statistics of broker and name servers have RocketMQ's names; unknown ones are refused."""
    address = (await admin.brokers())["g"]

    assert (await admin.broker_config(address))["brokerName"] == "g"
    with pytest.raises(BrokerError):
        await admin.update_broker_config(address, {"noSuchSetting": "1"})
    (config,) = (await admin.name_server_config()).values()
    assert config["listenPort"]
    assert "putTps" in await admin.broker_runtime(address)


async def test_kv_configuration(admin: AdminClient) -> None:
    """Law: key-value entries can be set, read, listed and removed."""
    await admin.put_kv("shops", "north", "open")

    assert await admin.get_kv("shops", "north") == "open"
    assert await admin.list_kv("shops") == {"north": "open"}
    await admin.delete_kv("shops", "north")
    assert await admin.get_kv("shops", "north") is None
    assert await admin.list_kv("nowhere") == {}


async def test_clients_and_queues_of_a_topic(group: Group, admin: AdminClient) -> None:
    """Law: the client shows producers, consumers, a consumer's running info, and the messages in queues."""
    await admin.create_topic("parts", queues=1)
    where = group.name_server_address
    texts: list[str] = []

    async def listener(messages: Sequence[ReceivedMessage], _: object) -> ConcurrentResult:
        texts.extend(message.text for message in messages)
        return ConcurrentResult.SUCCESS

    async with (
        Producer("makers", where) as producer,
        Consumer(
            "users", where, topics="parts", consume_from="first", listener=listener
        ) as consumer,
    ):
        sent = await producer.send("parts", "bolt", tags="small")
        await until(lambda: texts == ["bolt"], 15)
        (queue,) = await producer.queues("parts")
        seen = await admin.view_message(sent.offset_message_id)

        assert (await admin.min_offset(queue), await admin.max_offset(queue)) == (0, 1)
        assert await admin.earliest_store_time(queue) == seen.store_timestamp
        assert await admin.search_offset(queue, seen.store_timestamp) == 0
        (entry,) = await admin.consume_queue(queue)
        assert entry.physic_offset == seen.physical_offset
        # A broker knows a producer by its heartbeat, which follows the first send.
        async with asyncio.timeout(30):
            while not (found := await admin.producers("makers")):  # noqa: ASYNC110 - the broker's to know
                await asyncio.sleep(0.05)
        (makers,) = found
        assert [each.client_id for each in makers.connection_set] == [producer.client_id]
        info = await admin.running_info("users", consumer.client_id)
        assert "PROP_CONSUME_TYPE" in info["properties"]
        done = await admin.consume_directly("users", consumer.client_id, seen)
        assert (done.consume_result, texts) == ("CR_SUCCESS", ["bolt", "bolt"])
        wanted = await admin.subscription("users", "parts")
        assert wanted is not None
        assert wanted.sub_string == "*"

    assert await admin.producers("nobody") == []
    assert "parts" in await admin.topics_of_group("users")
    async with asyncio.timeout(30):  # The consumer commits at its end; its broker may be busy.
        while await committed(admin, "users") != {0: 1}:  # noqa: ASYNC110 - the broker's to know
            await asyncio.sleep(0.05)
    await admin.clone_offsets("users", "heirs", "parts")
    assert await committed(admin, "heirs") == {0: 1}
    (span,) = await admin.consume_time_span("parts", "users")
    assert span.min_time_stamp == seen.store_timestamp


async def committed(admin: AdminClient, group: str) -> dict[int, int]:
    """Return a group's offsets in the test's topic, by queue."""
    found = await admin.progress(group)
    return {q.queue_id: o.consumer_offset for q, o in found.items() if q.topic == "parts"}


async def test_a_broker_is_taken_out_of_writing_and_back(admin: AdminClient) -> None:
    """Law: while a broker's write permission is removed, its route has no queue to write to."""
    await admin.create_topic("gates", queues=2)

    assert await admin.wipe_write_permission("g") > 0
    assert (await admin.route("gates")).publish == ()
    assert await admin.add_write_permission("g") > 0
    assert len((await admin.route("gates")).publish) == 2
    await admin.delete_expired((await admin.brokers())["g"])
