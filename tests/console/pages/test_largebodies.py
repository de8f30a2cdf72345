"""Small messages that decompress to large bodies: a page decompresses only what it shows."""

import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from orderlymq.admin.client import AdminClient
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq_console.cluster import Answers
from orderlymq_console.pages.bodies import READ_MAX, SHOWN_MAX, WHOLE_MAX
from orderlymq_console.pages.message import of_group
from orderlymq_console.pages.messages import messages, newest_of
from orderlymq_console.parameters import Parameters
from orderlymq_protocol.body.lanes import LaneTable
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message import properties
from orderlymq_protocol.message.compression import CompressionType, compress
from orderlymq_protocol.message.sysflag import with_compression
from tests.client.fakecluster import running
from tests.client.messages import message
from tests.console.readings import Readings, told

MIB = 1024 * 1024
SIZE, COUNT = 32 * MIB, 8
# Less than one body.
PEAK_MAX = 16 * MIB
LETTERS = "%DLQ%shipping"
SAID = {properties.SHARDING_KEY: "k", properties.UNIQ_KEY: "M9"}


@contextmanager
def bounded() -> Iterator[None]:
    """Check that the block needs little memory."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < PEAK_MAX


@pytest.fixture
async def reader() -> AsyncIterator[Readings]:
    """A topic and a queue of dead letters with such messages."""
    body, flag = compress(bytes(SIZE)), with_compression(0, CompressionType.ZLIB)
    async with (
        running(topics={"orders": 1, LETTERS: 1}) as cluster,
        AdminClient(cluster.address) as admin,
    ):
        for topic in ("orders", LETTERS):
            for _ in range(COUNT):
                said = properties.encode_properties(SAID)
                cluster.append(topic, 0, body, said, sys_flag=flag)
        reader = Readings(told())
        reader.admin, reader.pulls = admin, QueueReader(admin.instance, "tools")
        reader.answers = {"locks": {}, "lanes": LaneTable(), "parked": [], "progress": {}}
        yield reader
        await reader.collector.close()


@pytest.mark.parametrize("key", ["", "k"])
async def test_a_page_of_messages_takes_what_it_shows(reader: Readings, key: str) -> None:
    """Law: a page decompresses only a part of each body, and shows the size as a lower bound."""
    with bounded():
        page = await messages(reader, Parameters({"topic": "orders", "key": key}))

    assert len(page.rows) == COUNT
    for row in page.rows:
        assert (row.body.size_bytes, row.body.at_least, row.body.cut) == (READ_MAX, True, True)
        assert len(row.body.text) <= 5 * SHOWN_MAX


async def test_one_message_alone_shows_more_of_its_body(reader: Readings) -> None:
    """Law: the page of one message shows more of its body, up to the limit for text."""
    with bounded():
        wanted = {"topic": "orders", "count": "1", "form": "text"}
        (row,) = (await messages(reader, Parameters(wanted))).rows

    assert (len(row.body.text), row.body.cut, row.body.at_least) == (WHOLE_MAX, True, True)


async def test_messages_whose_bodies_are_not_shown_are_not_inflated(reader: Readings) -> None:
    """Law: bodies that are not shown (the newest of a key, the dead letters of a message) are not decompressed."""
    queue = MessageQueue("orders", "broker-a", 0)
    with bounded():
        found, _ = await newest_of(reader.pulls, queue, "k", head=0, end=COUNT, count=COUNT)
        place = await of_group(reader, Answers({}), "shipping", message(9))

    assert [(each.queue_offset, each.body) for each in found] == [
        (offset, b"") for offset in reversed(range(COUNT))
    ]
    assert place.state == "It is a dead letter of the group."
