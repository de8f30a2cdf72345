"""Transactions and requests of the SDK with real brokers, also when the leader dies."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from orderlymq import (
    AdminClient,
    ConcurrentResult,
    Consumer,
    LitePullConsumer,
    Message,
    Producer,
    ReceivedMessage,
    ReplyTimeout,
    SendRefused,
    SettingError,
    TransactionProducer,
    TransactionState,
    blocking,
)
from orderlymq.cli import cli
from tests.cluster.processes import Group

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]

COMMIT, ROLLBACK, UNKNOWN = TransactionState

FAST = {
    "timers": {
        "transaction_timeout_ms": 500,
        "transaction_check_interval_ms": 500,
        "transaction_check_max": 2,
        "transaction_scan_ms": 100,
    }
}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A name server and one broker with short time-outs for checks."""
    directory = tmp_path_factory.mktemp("transactions")
    with Group(directory, replicas=1, overrides=FAST) as found:
        yield found


@pytest.fixture
async def topic(group: Group, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.replace("[", "-").replace("]", "")[:60].rstrip("-_")
    async with AdminClient(group.name_server_address) as admin:
        await admin.create_topic(name, queues=1, ordered=True)
    return name


def nobody(message: ReceivedMessage) -> TransactionState:
    raise AssertionError(f"nobody should be asked about {message}")


@asynccontextmanager
async def reading(group: Group, topic: str) -> AsyncIterator[LitePullConsumer]:
    """Return a consumer that begins at the first message."""
    consumer = LitePullConsumer(f"readers-{topic}", group.name_server_address, consume_from="first")
    consumer.subscribe(topic)
    async with consumer:
        yield consumer


async def seen(group: Group, topic: str, count: int, *, patience_s: float = 0.8) -> list[str]:
    """Return the messages that a consumer gets; wait a little for more than expected."""
    found: list[str] = []
    async with reading(group, topic) as consumer, asyncio.timeout(30):
        while len(found) < count:
            found += [message.text for message in await consumer.poll(0.5)]
        found += [message.text for message in await consumer.poll(patience_s)]
    return found


async def first_of(group: Group, topic: str) -> ReceivedMessage:
    """Return the first message of a topic."""
    async with reading(group, topic) as consumer:
        while True:
            for message in await consumer.poll(0.5):
                return message


async def test_commit_is_seen_and_rollback_is_not(group: Group, topic: str) -> None:
    """Law: committed messages are delivered once, in the order of their commits; rolled-back ones are not."""
    async with TransactionProducer("tx", group.name_server_address, check=nobody) as producer:
        first = await producer.send_in_transaction(topic, "A", key="k", execute=lambda _: COMMIT)
        second = await producer.send_in_transaction(topic, "B", key="k", execute=lambda _: ROLLBACK)
        await producer.send(topic, "C", key="k")
        third = await producer.send_in_transaction(topic, "D", key="k", execute=lambda _: COMMIT)

    assert [(each.state, each.reported, each.error) for each in (first, second, third)] == [
        (COMMIT, True, None),
        (ROLLBACK, True, None),
        (COMMIT, True, None),
    ]
    assert await seen(group, topic, 3) == ["A", "C", "D"]


async def test_what_was_unknown_is_decided_by_a_check(group: Group, topic: str) -> None:
    """Law: a check gets the message as it was sent, with key and id, and decides."""
    asked: list[ReceivedMessage] = []

    async def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message)
        return COMMIT

    async def execute(_: Message) -> TransactionState:
        return UNKNOWN

    async with TransactionProducer("tx2", group.name_server_address, check=check) as producer:
        result = await producer.send_in_transaction(topic, "A", key="k", tags="t", execute=execute)
        assert await seen(group, topic, 1) == ["A"]

    (message,) = asked
    assert (message.topic, message.text, message.key, message.tags) == (topic, "A", "k", "t")
    assert message.message_id == result.send.message_id


async def test_a_local_transaction_that_raises_is_unknown_and_reported_to_the_caller(
    group: Group, topic: str
) -> None:
    """Law: a local transaction that raises is unknown and reported in the result; a check decides."""
    failure = RuntimeError("the database is away")

    def execute(_: Message) -> TransactionState:
        raise failure

    async with TransactionProducer(
        "tx3", group.name_server_address, check=lambda _: ROLLBACK
    ) as producer:
        result = await producer.send_in_transaction(topic, "A", key="k", execute=execute)
        await producer.send(topic, "B", key="k")
        assert await seen(group, topic, 1, patience_s=1.5) == ["B"]

    assert (result.state, result.error) == (UNKNOWN, failure)


async def test_a_transaction_that_nobody_decides_is_put_aside_and_can_be_resumed(
    group: Group, topic: str
) -> None:
    """Law: a transaction that nobody decides is put aside; resumed by the command, it is delivered once."""
    answers = [UNKNOWN, UNKNOWN]
    async with TransactionProducer(
        "undecided", group.name_server_address, check=lambda _: answers.pop() if answers else COMMIT
    ) as producer:
        result = await producer.send_in_transaction(topic, "A", key="k", execute=lambda _: UNKNOWN)
        shown = await asyncio.to_thread(_run, group, "group", "show", "undecided")
        assert "1 open" in shown
        (copy,) = await seen(group, "TRANS_CHECK_MAX_TIME_TOPIC", 1)
        assert copy == "A"
        shown = await asyncio.to_thread(_run, group, "status")
        assert "undecided" in shown
        resumed = await asyncio.to_thread(
            _run, group, "message", "check-transaction", result.send.offset_message_id
        )
        assert "asks a producer of its group again" in resumed
        assert await seen(group, topic, 1) == ["A"]


def _run(group: Group, *arguments: str) -> str:
    result = CliRunner().invoke(cli, [*arguments, "--name-server", group.name_server_address])
    assert result.exit_code == 0, result.output
    return result.output


async def test_the_end_is_reported_to_the_next_leader(tmp_path: Path) -> None:
    """Law: if the leader dies during the local transaction, the commit goes to the next one."""
    found = Group(tmp_path, replicas=3, overrides=FAST)
    try:
        await asyncio.to_thread(found.start)
        async with AdminClient(found.name_server_address) as admin:
            await admin.create_topic("orders", queues=1, ordered=True)

        def execute(_: Message) -> TransactionState:
            found.brokers[found.wait_for_leader()].kill()
            return COMMIT

        async with TransactionProducer(
            "tx", found.name_server_address, check=lambda _: COMMIT
        ) as producer:
            result = await producer.send_in_transaction("orders", "A", key="k", execute=execute)
            assert await seen(found, "orders", 1, patience_s=2) == ["A"]

        assert result.state is COMMIT
    finally:
        await asyncio.to_thread(found.stop)


def test_transactions_without_asyncio(group: Group) -> None:
    """Law: transactions work without asyncio."""
    with blocking.AdminClient(group.name_server_address) as admin:
        admin.create_topic("plain", queues=1)
    with blocking.TransactionProducer("tx4", group.name_server_address, check=nobody) as producer:
        result = producer.send_in_transaction("plain", "A", execute=lambda _: COMMIT)

    assert (result.state, result.reported) == (COMMIT, True)


async def test_a_transactional_message_takes_no_delay_level(group: Group, topic: str) -> None:
    """Law: a transactional message refuses a delay level; delay and deliver_at begin with the commit."""
    async with TransactionProducer("tx", group.name_server_address, check=nobody) as producer:
        with pytest.raises(SettingError, match="give delay or deliver_at"):
            await producer.send_in_transaction(
                Message(topic=topic, body=b"A", delay_level=1), execute=lambda _: COMMIT
            )


# -- requests ----------------------------------------------------------------------------------------


async def test_each_request_gets_its_own_reply(group: Group, topic: str) -> None:
    """Law: each of many concurrent requests gets its own reply with the replier's properties."""
    async with Producer("rpc", group.name_server_address) as producer:

        async def listener(messages: Sequence[ReceivedMessage], _: object) -> ConcurrentResult:
            for message in messages:
                await producer.reply(
                    message, f"re:{message.text}" * 1000, properties={"from": "desk"}
                )
            return ConcurrentResult.SUCCESS

        async with Consumer(
            f"desk-{topic}",
            group.name_server_address,
            topics=topic,
            consume_from="first",
            listener=listener,
        ):
            replies = await asyncio.gather(
                *(producer.request(topic, f"q{n}", timeout=20) for n in range(20))
            )

    assert [reply.text for reply in replies] == [f"re:q{n}" * 1000 for n in range(20)]
    assert {reply.properties["from"] for reply in replies} == {"desk"}
    assert not any("OMQ_BODY_CRC" in reply.properties for reply in replies)


async def test_a_request_without_a_reply_times_out_and_a_late_reply_is_refused(
    group: Group, topic: str
) -> None:
    """Law: a request without a reply times out; a late replier is told that nobody waits."""
    async with Producer("rpc", group.name_server_address) as producer:
        with pytest.raises(ReplyTimeout, match=r"no reply within 0\.3 s"):
            await producer.request(topic, "q", timeout=0.3)
        late = await first_of(group, topic)

        with pytest.raises(SendRefused, match="push reply message"):
            await producer.reply(late, "too late")


async def test_only_a_request_can_be_replied_to(group: Group, topic: str) -> None:
    """Law: only a request can be replied to; the error says what is missing."""
    async with Producer("rpc", group.name_server_address) as producer:
        await producer.send(topic, "no question", key="k")
        plain = await first_of(group, topic)
        with pytest.raises(SettingError, match="CORRELATION_ID"):
            await producer.reply(plain, "but why")


async def test_a_key_beside_a_queue_cannot_be_transactional(group: Group, topic: str) -> None:
    """Law: a key together with a queue is refused."""
    async with TransactionProducer("tx", group.name_server_address, check=nobody) as producer:
        with pytest.raises(SettingError, match="key or queue, not both"):
            await producer.send_in_transaction(
                topic, b"A", key="k", queue=0, execute=lambda _: COMMIT
            )
