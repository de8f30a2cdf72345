"""Which groups have consumed a message, and messages that wait for a time, with a real broker."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import ip_address

import pytest
from click.testing import CliRunner

from orderlymq import (
    AdminClient,
    BrokerError,
    ConcurrentResult,
    Consumer,
    Message,
    MessageTrack,
    Producer,
    ReceivedMessage,
    SettingError,
    TrackType,
    message_track,
)
from orderlymq.cli import cli
from orderlymq_protocol.message.ids import UniqueKeyFactory, encode_offset_message_id
from tests.cluster.processes import Group
from tests.waiting import until

MOMENT = datetime(2026, 1, 31, tzinfo=UTC)
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]


class Inbox:
    """A consumer that consumes everything immediately."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def __call__(
        self, messages: Sequence[ReceivedMessage], _context: object
    ) -> ConcurrentResult:
        self.texts += [message.text for message in messages]
        return ConcurrentResult.SUCCESS


async def states(admin: AdminClient, message: ReceivedMessage) -> dict[str, TrackType]:
    return {each.group: each.state for each in await message_track(admin, message)}


async def committed(admin: AdminClient, message: ReceivedMessage, *, groups: int) -> None:
    """Wait until so many groups have committed an offset behind the message; they commit every few seconds."""
    async with asyncio.timeout(20):
        while True:
            found = await states(admin, message)
            if len(found) == groups and TrackType.NOT_CONSUME_YET not in found.values():
                return
            await asyncio.sleep(0.2)


async def test_a_track_shows_for_each_group_what_it_has_done(
    group: Group, admin: AdminClient
) -> None:
    """Law: a track shows RocketMQ's state for each group (consumed, filtered out,
    not online) and the offset that proves it.
    """
    await admin.create_topic("parcels", queues=1)
    where = group.name_server_address
    all_of, some = Inbox(), Inbox()
    async with Producer("p", where) as producer:
        result = await producer.send("parcels", "one", tags="red")
        seen = await admin.view_message(result.offset_message_id)
        assert await message_track(admin, seen) == []
        reading = {"topics": "parcels", "consume_from": "first"}
        async with (
            Consumer("every", where, **reading, listener=all_of),  # type: ignore[arg-type] # texts
            Consumer(
                "blue", where, topics={"parcels": "blue"}, listener=some, consume_from="first"
            ),
        ):
            await producer.send("parcels", "two", tags="blue")
            await until(lambda: len(all_of.texts) == 2 and some.texts == ["two"], 10)

            await committed(admin, seen, groups=2)
            assert await states(admin, seen) == {
                "every": TrackType.CONSUMED,
                "blue": TrackType.CONSUMED_BUT_FILTERED,
            }
        assert await states(admin, seen) == {
            "every": TrackType.NOT_ONLINE,
            "blue": TrackType.NOT_ONLINE,
        }
        assert MessageTrack("every", TrackType.NOT_ONLINE, 2) in await message_track(admin, seen)
        result = await producer.send("parcels", "three")
        shown = await asyncio.to_thread(
            CliRunner().invoke,
            cli,
            [
                *("message", "track", result.offset_message_id),
                *("--name-server", where, "--output", "json"),
            ],
        )
    assert {each["group"]: each["offset"] for each in json.loads(shown.stdout)} == {
        "every": 2,
        "blue": 2,
    }


async def test_a_message_waits_for_its_time_and_can_be_cancelled(
    group: Group, admin: AdminClient
) -> None:
    """Law: a message waits for a delay or a time; a cancelled one and its cancellation are never delivered."""
    await admin.create_topic("alarms", queues=1)
    inbox = Inbox()
    async with (
        Consumer(
            "clock",
            group.name_server_address,
            topics="alarms",
            listener=inbox,
            consume_from="first",
        ),
        Producer("p", group.name_server_address) as producer,
    ):
        later = Message(topic="alarms", body=b"never", delay=1.0)
        await producer.send(later)
        await producer.send(Message(topic="alarms", body=b"in half a second", delay=0.5))
        await producer.send(
            Message(topic="alarms", body=b"cancels", delay=1.0, cancels=later.unique_key)
        )
        await producer.send(Message(topic="alarms", body=b"last", delay=1.5))
        await until(lambda: "last" in inbox.texts, 10)

    assert inbox.texts == ["in half a second", "last"]


async def test_a_message_that_waits_is_recalled_by_the_handle_of_its_send(
    group: Group, admin: AdminClient
) -> None:
    """Law: a delayed message is recalled by the handle of its send; a late,
    wrong or foreign handle is refused with the reason.
    """
    await admin.create_topic("appointments", queues=1)
    inbox = Inbox()
    where = group.name_server_address
    async with (
        Consumer("diary", where, topics="appointments", listener=inbox, consume_from="first"),
        Producer("p", where) as producer,
    ):
        first = await producer.send(Message(topic="appointments", body=b"never", delay=1.0))
        second = await producer.send(Message(topic="appointments", body=b"nor this", delay=1.0))
        last = await producer.send(Message(topic="appointments", body=b"last", delay=1.5))
        plain = await producer.send("appointments", "now")

        assert await producer.recall("appointments", first.recall_handle) == first.message_id
        assert await producer.recall("appointments", first.recall_handle) == first.message_id
        said = await asyncio.to_thread(
            CliRunner().invoke,
            cli,
            ["message", "recall", "appointments", second.recall_handle, "--name-server", where],
        )
        assert (said.exit_code, second.message_id in said.output) == (0, True), said.output
        await until(lambda: "last" in inbox.texts, 10)

        assert plain.recall_handle == ""
        with pytest.raises(BrokerError, match="timestamp invalid"):
            await producer.recall("appointments", last.recall_handle)
        with pytest.raises(SettingError, match="recall handle is invalid"):
            await producer.recall("appointments", "x")
        with pytest.raises(
            SettingError, match="belongs to a message of appointments, not of others"
        ):
            await producer.recall("others", last.recall_handle)
        with pytest.raises(SettingError, match="topic is not supported"):
            await producer.recall("%RETRY%diary", last.recall_handle)
    assert inbox.texts == ["now", "last"]


@pytest.mark.parametrize(
    "asked",
    [{"delay": 1, "delay_level": 2}, {"delay": 1, "deliver_at": MOMENT}, {"cancels": "K"}],
)
def test_times_that_contradict_each_other_are_refused(asked: dict[str, object]) -> None:
    """Law: contradicting times are refused before anything is sent."""
    with pytest.raises(SettingError):
        Message(topic="alarms", body=b"", **asked)  # type: ignore[arg-type] # mixed on purpose


@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::7"])
def test_an_offset_message_id_cancels_nothing(host: str) -> None:
    """Law: an offset message id is refused for a cancellation, and a unique key is never taken for one."""
    key = UniqueKeyFactory(ip_address(host).packed, 4711, 0).next(1_700_000_000_000)
    assert Message(topic="alarms", body=b"", delay=1, cancels=key).cancels == key

    with pytest.raises(SettingError, match=r"is an offset message id, .* needs the message id"):
        Message(
            topic="alarms",
            body=b"",
            delay=1,
            cancels=encode_offset_message_id(host, 10911, 4711),
        )
