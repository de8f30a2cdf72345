"""What `orderlymq send` prints about its message."""

import asyncio

import pytest
from click.testing import CliRunner, Result

from orderlymq.cli import cli
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.message.properties import UNIQ_KEY, decode_properties
from tests.client.fakecluster import FakeCluster, refuse, running


async def send(cluster: FakeCluster, topic: str, *arguments: str) -> Result:
    command = ["send", topic, "x", *arguments, "--name-server", cluster.address]
    return await asyncio.to_thread(CliRunner().invoke, cli, command)


async def test_a_send_prints_the_message_id_that_cancel_wants() -> None:
    """Law: a send prints the message id, which cancel needs, and the offset message id, which cancel refuses."""
    async with running(topics={"alarms": 1}) as cluster:
        sent = await send(cluster, "alarms")
        (stored,) = cluster.logs["alarms", 0]
        wrong = sent.stdout.split()[-1]
        refused = await send(cluster, "alarms", "--delay", "1h", "--cancel", wrong)

    message_id = decode_properties(stored.properties)[UNIQ_KEY]
    assert f"offset 0 message id {message_id} offset message id {wrong}" in sent.stdout
    assert (refused.exit_code, len(cluster.logs["alarms", 0])) == (2, 1)
    assert f"{wrong} is an offset message id" in refused.stderr


@pytest.mark.parametrize(
    ("how", "words"),
    [(["--delay", "1h"], "waits until 2"), (["--delay-level", "3"], "waits by delay level 3")],
)
async def test_a_message_that_waits_has_no_offset_in_its_topic(how: list[str], words: str) -> None:
    """Law: a delayed message has no offset in its topic; that of the timers' queue is not shown."""
    async with running(topics={"alarms": 1}) as cluster:
        sent = await send(cluster, "alarms", *how)

    assert words in sent.stdout
    assert "offset" not in sent.stdout
    assert " message id " in sent.stdout


async def test_a_send_asks_what_its_producer_asks_alone() -> None:
    """Law: a send needs one connection, one route and only the right to send."""
    async with running(topics={"orders": 1}) as cluster:
        sent = await send(cluster, "orders")

    assert sent.exit_code == 0, sent.output
    assert cluster.codes().count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == 1


async def test_a_send_that_makes_a_topic_says_so() -> None:
    """Law: a send that creates a topic says so, with the nearest name, because the new topic is not ordered."""
    async with running(topics={"orders": 1, "TBW102": 4}) as cluster:
        made = await send(cluster, "order")
        again = await send(cluster, "order")

    assert (
        "Note: this created the topic order: normal, without order across failures" in made.stderr
    )
    assert "failures; did you mean orders? For order delete it and run" in made.stderr
    assert "`orderlymq topic create order --ordered`" in made.stderr
    assert "Note" not in again.output


async def test_a_key_beside_a_queue_is_refused() -> None:
    """Law: --key together with --queue is refused; the queue once won silently."""
    async with running(topics={"alarms": 2}) as cluster:
        refused = await send(cluster, "alarms", "--key", "k", "--queue", "1")

    assert (refused.exit_code, len(cluster.logs)) == (2, 0)
    assert "use --key or --queue, not both" in refused.stderr


async def test_a_row_of_sends_that_ends_midway_says_how_many_are_stored() -> None:
    """Law: several sends that end midway say how many are stored, so that the command is not simply repeated."""
    refuses = refuse(ResponseCode.MESSAGE_ILLEGAL, "the topic is too long")
    async with running(topics={"orders": 1}) as cluster:
        cluster.faults[RequestCode.SEND_MESSAGE_V2] = [cluster.serve, cluster.serve, refuses]
        sent = await send(cluster, "orders", "--count", "5")

    assert sent.exit_code == 1
    assert "2 of 5 messages are stored" in sent.stderr
