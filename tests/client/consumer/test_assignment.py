"""Assignment of queues: the same results as RocketMQ's strategies for the same sorted input."""

import inspect
from collections.abc import Callable, Sequence
from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq.consumer.assignment import (
    STRATEGIES,
    AssignmentStrategy,
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    assign,
    uneven_shares,
)
from orderlymq.consumer.listeners.context import ConcurrentContext
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import ConsumeFrom, ConsumerSettings
from orderlymq.errors import SettingError
from orderlymq.message import ReceivedMessage
from orderlymq.observers import Observer
from orderlymq.producer.producer import Producer
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import BROKER, refuse, running
from tests.waiting import until


def _queues(count: int, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue("T", broker, number) for number in range(count)]


def _shares(
    strategy: AssignmentStrategy, queues: list[MessageQueue], members: list[str]
) -> list[list[int]]:
    return [
        [queue.queue_id for queue in assign(strategy, "G", member, queues, members)]
        for member in sorted(members)
    ]


@pytest.mark.parametrize(
    ("queues", "members", "shares"),
    [
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (4, 4, [[0], [1], [2], [3]]),
        (2, 4, [[0], [1], [], []]),
        (5, 2, [[0, 1, 2], [3, 4]]),
        (3, 1, [[0, 1, 2]]),
        (0, 2, [[], []]),
    ],
)
def test_averagely_gives_contiguous_shares(
    queues: int, members: int, shares: list[list[int]]
) -> None:
    """Law: AVG gives contiguous shares: 8 queues over 3 members are 3, 3, 2 (RBL-01, GRP-04)."""
    names = [f"c{number}" for number in range(members)]

    assert _shares(Averagely(), _queues(queues), names) == shares


def _java_averagely(index: int, queues: int, members: int) -> list[int]:
    """The arithmetic of RocketMQ's AllocateMessageQueueAveragely."""
    rest = queues % members
    if queues <= members:
        average = 1
    elif rest > 0 and index < rest:
        average = queues // members + 1
    else:
        average = queues // members
    start = index * average if rest > 0 and index < rest else index * average + rest
    return [(start + i) % queues for i in range(max(0, min(average, queues - start)))]


@given(st.integers(1, 40), st.integers(1, 12))
def test_averagely_agrees_with_javas_arithmetic(queues: int, members: int) -> None:
    """Law: a Java member computes the same shares."""
    names = [f"c{number:02}" for number in range(members)]

    assert _shares(Averagely(), _queues(queues), names) == [
        _java_averagely(index, queues, members) for index in range(members)
    ]


def test_by_circle_deals_like_cards() -> None:
    """Law: AVG_BY_CIRCLE deals the queues out in turn (AllocateMessageQueueAveragelyByCircle)."""
    assert _shares(AveragelyByCircle(), _queues(7), ["a", "b", "c"]) == [
        [0, 3, 6],
        [1, 4],
        [2, 5],
    ]


def test_the_consistent_ring_is_rocketmqs() -> None:
    """Law: the consistent ring is RocketMQ's: MD5 of `client-0`..`client-9`, queues by their Java text."""

    def point(text: str) -> int:
        return int.from_bytes(md5(text.encode()).digest()[:4], "big")

    members = ["192.0.2.1@11", "192.0.2.2@22", "192.0.2.3@33"]
    ring = sorted((point(f"{member}-{i}"), member) for member in members for i in range(10))
    expected: dict[str, list[int]] = {member: [] for member in members}
    for queue in _queues(16):
        text = f"MessageQueue [topic=T, brokerName=broker-a, queueId={queue.queue_id}]"
        at = point(text)
        owner = next((member for place, member in ring if place >= at), ring[0][1])
        expected[owner].append(queue.queue_id)

    assert _shares(ConsistentHash(), _queues(16), members) == [expected[m] for m in sorted(members)]


def test_a_leaving_member_moves_only_its_own_queues() -> None:
    """Law: with consistent hashing a leaving member's queues move, and no others."""
    queues = _queues(32)
    before = {
        member: set(assign(ConsistentHash(), "G", member, queues, ["a", "b", "c"]))
        for member in "abc"
    }

    after = {
        member: set(assign(ConsistentHash(), "G", member, queues, ["a", "b"])) for member in "ab"
    }

    assert before["a"] <= after["a"]
    assert before["b"] <= after["b"]


def test_config_takes_what_it_names_as_far_as_it_exists() -> None:
    """Law: ByConfig takes the named queues that exist (AllocateMessageQueueByConfig)."""
    wanted = (MessageQueue("T", "broker-a", 2), MessageQueue("T", "broker-a", 9))

    assert _shares(ByConfig(wanted), _queues(4), ["a"]) == [[2]]


def test_machine_room_divides_the_room_and_gives_the_rest_to_the_first() -> None:
    """Law: ByMachineRoom divides its rooms' queues and gives the rest to the first members;
    other name forms do not count (AllocateMessageQueueByMachineRoom).
    """
    queues = [*_queues(5, "r1@b"), *_queues(3, "r2@b"), *_queues(2, "plain"), *_queues(2, "r1@b@c")]
    strategy = ByMachineRoom(frozenset({"r1"}))

    assert _shares(strategy, queues, ["a", "b"]) == [[0, 1, 4], [2, 3]]


def test_nearby_serves_the_own_room_and_shares_rooms_without_members() -> None:
    """Law: MachineRoomNearby serves the member's own room and shares rooms without members (AllocateMachineRoomNearby)."""
    queues = [*_queues(2, "r1-b"), *_queues(2, "r2-b"), *_queues(2, "r3-b")]
    strategy = MachineRoomNearby(
        Averagely(), lambda queue: queue.broker_name[:2], lambda member: member[:2]
    )
    members = ["r1-c", "r2-c"]

    found = {member: assign(strategy, "G", member, queues, members) for member in members}

    assert found == {
        "r1-c": [*_queues(2, "r1-b"), MessageQueue("T", "r3-b", 0)],
        "r2-c": [*_queues(2, "r2-b"), MessageQueue("T", "r3-b", 1)],
    }
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG"


def test_a_resolver_must_name_a_room() -> None:
    """Law: a resolver that names an empty room is refused."""
    strategy = MachineRoomNearby(Averagely(), lambda _: "", lambda _: "r1")

    with pytest.raises(SettingError, match="resolver must name one"):
        assign(strategy, "G", "a", _queues(1), ["a"])


def test_a_member_that_is_not_listed_gets_nothing() -> None:
    """Law: a member that is not listed gets nothing; its caller keeps its queues and asks again."""
    assert assign(Averagely(), "G", "x", _queues(4), ["a"]) == []


@given(
    st.sampled_from([*STRATEGIES.values()]),
    st.integers(0, 24),
    st.sets(st.text("abc123", min_size=1, max_size=5), min_size=1, max_size=6),
)
def test_every_queue_has_exactly_one_owner_whatever_the_order_of_the_lists(
    strategy: AssignmentStrategy, count: int, members: set[str]
) -> None:
    """Law: each queue has exactly one owner, whatever the order of the lists (GRP-04)."""
    queues = _queues(count)
    found = [
        queue
        for member in members
        for queue in assign(strategy, "G", member, queues[::-1], list(members))
    ]

    assert sorted(found) == queues


def test_strategies_carry_rocketmqs_names() -> None:
    """Law: strategies have RocketMQ's names, which brokers and settings use (RBL-02)."""
    assert sorted(STRATEGIES) == ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"]
    with pytest.raises(SettingError, match="virtual_nodes"):
        ConsistentHash(-1)


async def test_a_consumer_that_leaves_the_division_to_the_brokers_takes_what_they_name() -> None:
    """Law: with assignment by brokers, a consumer takes what they name and keeps its queues while they cannot answer."""
    queues: list[int] = [2]

    def answer(command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        request = fastjson.loads(command.body)
        numbers = queues if request["topic"] == "T" else []
        named = [{"topic": request["topic"], "brokerName": BROKER, "queueId": n} for n in numbers]
        body = [{"attachments": None, "messageQueue": each, "mode": "PULL"} for each in named]
        return command.reply(body=fastjson.dumps({"messageQueueAssignments": body}))

    seen: list[bytes] = []

    async def listener(messages: Sequence[ReceivedMessage], _context: ConcurrentContext) -> None:
        seen.extend(message.body for message in messages)

    settings = ConsumerSettings(server_assignment=True, consume_from=ConsumeFrom.FIRST)
    async with running(topics={"T": 4, "%RETRY%G": 1}) as cluster:
        cluster.faults[int(RequestCode.QUERY_ASSIGNMENT)] = [answer] * 100
        async with (
            Consumer("G", cluster.address, topics="T", settings=settings, listener=listener),
            Producer("P", cluster.address) as producer,
        ):
            for number in range(4):
                await producer.send("T", str(number).encode(), queue=number)
            await until(lambda: seen == [b"2"])
            queues.append(0)
            cluster.notify("G")
            await until(lambda: seen == [b"2", b"0"])
            cluster.faults[int(RequestCode.QUERY_ASSIGNMENT)] = [refuse(1)] * 100
            cluster.notify("G")
            await producer.send("T", b"more", queue=2)
            await until(lambda: seen == [b"2", b"0", b"more"])


@pytest.mark.parametrize(
    ("members", "queues", "said"),
    [
        (0, 4, ""),
        (3, 0, ""),
        (2, 4, ""),
        (3, 4, "4 queues do not divide evenly among 3 members"),
        (3, 1, "3 members share 1 queue; idle: 2"),
    ],
)
def test_shares_that_are_not_even_are_said(members: int, queues: int, said: str) -> None:
    """Law: uneven shares are reported; queues of retry topics do not count."""
    assert uneven_shares(members, ["T"] * queues + ["%RETRY%G"]) == said


@pytest.mark.parametrize(
    "call",
    [AssignmentStrategy.assign, Observer.sending, Observer.sent, Observer.before, Observer.after],
)
def test_who_writes_a_class_of_ones_own_names_its_arguments_freely(
    call: Callable[..., object],
) -> None:
    """Law: the protocols' methods take positional arguments only, so that users' classes may name them freely."""
    kinds = {each.kind for each in inspect.signature(call).parameters.values()}

    assert kinds == {inspect.Parameter.POSITIONAL_ONLY}
