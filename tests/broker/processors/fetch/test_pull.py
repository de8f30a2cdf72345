"""Pulls that are answered immediately: statuses, limits, filters, refusals."""

from collections.abc import Sequence

import pytest

from orderlymq_broker.processors.fetch.pull import RELEASE_WORK_MAX
from orderlymq_broker.processors.fetch.read import (
    BULK_MESSAGES_MAX,
    MESSAGES_MAX,
    SIZE_MAX,
    read_queue,
)
from orderlymq_broker.settings import StorageSettings
from orderlymq_broker.state.records import (
    GroupSet,
    QueueFloor,
    RetentionAdvanced,
    TopicDeleted,
    TopicSet,
)
from orderlymq_broker.store.kv import Batch, Family, Reader, StoreFailed
from orderlymq_broker.store.layout import queue_key
from tests.broker.processors.driver import BOB, TOOL, Shell, settings
from tests.broker.processors.requests import (
    bodies,
    commit_ext,
    create,
    heartbeat,
    heartbeat_body,
    properties,
    pull,
    pull_ext,
    send,
    send_ext,
)

ORDERS = TopicSet("orders", 4, 4)


@pytest.fixture(params=["tail", "store"])
def orders(request: pytest.FixtureRequest) -> Shell:
    """Ten messages in queue 0, read from memory or from the store."""
    storage = StorageSettings(tail_cache_size=64 << 20 if request.param == "tail" else 0)
    shell = Shell(settings(storage=storage)).lead()
    create(shell, ORDERS, GroupSet("billing"))
    for number in range(10):
        tag = "paid" if number % 3 == 0 else "sent"
        send(shell, body=str(number).encode(), props=properties(TAGS=tag))
    assert len(shell.state.topics.by_name["orders"].queues[0].tail) == (
        10 if request.param == "tail" else 0
    )
    return shell


def test_found_messages_are_the_stored_records_in_order(orders: Shell) -> None:
    """Law: a successful pull returns the stored records in order, the next offset, the queue's range and broker id 0."""
    reply = pull(orders, offset=3, maxMsgNums=4)

    assert (reply.code, reply.remark, bodies(reply)) == (0, "FOUND", [b"3", b"4", b"5", b"6"])
    assert reply.ext == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "7",
        "minOffset": "0",
        "maxOffset": "10",
    }


@pytest.mark.parametrize("orders", ["store"], indirect=True)
@pytest.mark.parametrize("subscription", ["*", "paid"])
@pytest.mark.parametrize("family", [Family.CONSUME_QUEUE, Family.MESSAGES])
def test_no_pull_leads_past_a_message_that_the_store_has_lost(
    orders: Shell, subscription: str, family: Family
) -> None:
    """Law: a pull does not skip an acknowledged message that the store has lost; the replica ends."""
    queue = orders.state.topics.by_name["orders"].queues[0]
    key = queue_key(queue.topic_id, 0, 6)
    entry = orders.store.get(Family.CONSUME_QUEUE, key)
    assert entry is not None
    batch = Batch()
    batch.delete(family, key if family is Family.CONSUME_QUEUE else entry[:8])
    orders.store.write(batch, sync=True)

    with pytest.raises(StoreFailed, match="files of the store are lost"):
        pull(orders, offset=3, subscription=subscription)


def test_lite_pull_is_a_pull(orders: Shell) -> None:
    """Law: code 361 answers as code 11 does."""
    assert bodies(pull(orders, code=361)) == bodies(pull(orders))


def test_the_statuses_are_rocketmqs(orders: Shell) -> None:
    """Law: the status is RocketMQ's for offsets below, at and above the end, and for an unwritten queue."""
    create(orders, RetentionAdvanced((QueueFloor(orders.state.topics.by_name["orders"].id, 0, 2),)))

    cases = {
        (0, 1): (21, "OFFSET_TOO_SMALL", "2"),
        (0, 10): (19, "OFFSET_OVERFLOW_ONE", "10"),
        (0, 11): (21, "OFFSET_OVERFLOW_BADLY", "10"),
        (0, -1): (21, "OFFSET_TOO_SMALL", "2"),
        (1, 0): (19, "NO_MESSAGE_IN_QUEUE", "0"),
        (1, 5): (21, "NO_MESSAGE_IN_QUEUE", "0"),
    }
    found = {}
    for queue, offset in cases:
        reply = pull(orders, queue=queue, offset=offset)
        found[queue, offset] = (reply.code, reply.remark, reply.ext["nextBeginOffset"])

    assert found == cases


def test_a_push_consumer_beyond_the_end_goes_on_where_its_group_stands(orders: Shell) -> None:
    """Law: a push consumer beyond the end is sent to its group's offset, because the topic may have been created again.

    A pull consumer, which chooses its own offsets, is sent to the end, as by RocketMQ.
    """
    create(orders, TopicDeleted("orders"), TopicSet("orders", 2, 2))
    send(orders)
    asked = [pull(orders, offset=10).ext["nextBeginOffset"]]
    heartbeat(orders, "c1")
    asked.append(pull(orders, offset=10).ext["nextBeginOffset"])

    for committed in (1, 9):
        orders.call(15, commit_ext(committed), caller=TOOL)
        asked.append(pull(orders, offset=10).ext["nextBeginOffset"])

    assert asked == ["1", "0", "1", "1"]


def test_a_filter_gives_what_matches_and_passes_over_the_rest(orders: Shell) -> None:
    """Law: a filtered pull skips other messages; its next offset moves even if nothing matches."""
    paid = pull(orders, subscription="paid || gone")
    none = pull(orders, subscription="nobody")

    assert (bodies(paid), paid.ext["nextBeginOffset"]) == ([b"0", b"3", b"6", b"9"], "10")
    assert (none.code, none.remark, none.ext["nextBeginOffset"], none.body) == (
        20,
        "NO_MATCHED_MESSAGE",
        "10",
        b"",
    )


def test_a_pull_is_bounded_by_count_and_size() -> None:
    """Law: a pull returns at most 32 messages, 256 KiB or what a 5.x client asks for, and at least one message."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 3, 3), GroupSet("billing"))
    for _ in range(40):
        send(shell)
    for _ in range(4):
        send(shell, body=bytes(100_000), e=1)
    send(shell, body=bytes(SIZE_MAX + 1), e=2)

    assert len(bodies(pull(shell, maxMsgNums=1000))) == MESSAGES_MAX
    assert len(bodies(pull(shell, maxMsgNums=0))) == 1
    assert len(bodies(pull(shell, queue=1))) == 2
    assert len(bodies(pull(shell, queue=1, maxMsgBytes=1))) == 1
    assert len(bodies(pull(shell, queue=2))) == 1


class Counting:
    """A store that counts the rows that its reads return."""

    def __init__(self, store: Reader) -> None:
        self._store = store
        self.rows: list[int] = []

    def get(self, family: Family, key: bytes) -> bytes | None:
        self.rows.append(1)
        return self._store.get(family, key)

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        self.rows.append(len(keys))
        return self._store.multi_get(family, keys)

    def scan(
        self, family: Family, start: bytes, end: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        found = self._store.scan(family, start, end, limit=limit, reverse=reverse)
        self.rows.append(len(found))
        return found


def test_a_pull_reads_as_many_rows_at_any_depth() -> None:
    """Law: the rows that a pull reads do not depend on the backlog or the consumer's position."""
    shell = Shell(settings(storage=StorageSettings(tail_cache_size=0))).lead()
    create(shell, ORDERS, GroupSet("billing"))
    for _ in range(40):
        send(shell)
    asked = []
    for backlog in (0, 2_000):
        for _ in range(backlog):
            shell.submit(310, _send(), b"x")
        shell.settle()
        queue = shell.state.topics.by_name["orders"].queues[0]
        for offset in {0, queue.next_offset // 2 - 16, queue.next_offset - MESSAGES_MAX}:
            reader = Counting(shell.store)
            assert len(read_queue(reader, queue, offset).messages) == MESSAGES_MAX
            asked.append(reader.rows)

    assert asked == [[MESSAGES_MAX, MESSAGES_MAX]] * 6


def test_a_reader_of_ranges_gets_more_immediately() -> None:
    """Law: with omqBulk a pull returns up to 512 messages and 1 MiB, from memory and store alike."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 3, 3), GroupSet("billing"))
    for _ in range(600):
        send(shell)
    for _ in range(12):
        send(shell, body=bytes(100_000), e=1)

    given = bodies(pull(shell, maxMsgNums=1000, omqBulk="true"))

    assert len(given) == BULK_MESSAGES_MAX
    assert len(bodies(pull(shell, maxMsgNums=100, omqBulk="true"))) == 100
    assert len(bodies(pull(shell, queue=1, maxMsgNums=1000, omqBulk="true"))) == 10


def test_a_filter_looks_at_800_entries_at_most() -> None:
    """Law: a filtered pull looks at no more than 800 entries."""
    shell = Shell().lead()
    create(shell, ORDERS, GroupSet("billing"))
    for _ in range(900):
        shell.submit(310, _send(), b"x")
    shell.settle()

    assert pull(shell, subscription="rare").ext["nextBeginOffset"] == "800"


def _send() -> dict[str, str]:
    return send_ext("orders", properties(TAGS="common"))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"group": "off"}, 16),
        ({"topic": "unknown"}, 17),
        ({"topic": "secret"}, 16),
        ({"queue": 4}, 1),
        ({"queue": -1}, 1),
        ({"subscription": " || "}, 23),
        ({"expressionType": "SQL92", "subscription": "a >"}, 23),
        ({"expressionType": "RUST"}, 23),
        ({"sysFlag": 0}, 24),
        ({"group": "bad/name"}, 1),
        ({"maxMsgNums": "many"}, 1),
    ],
)
def test_what_cannot_be_pulled_is_refused(shell: Shell, change: dict[str, str], code: int) -> None:
    """Law: each refusal of a pull has RocketMQ's code and a reason."""
    create(shell, ORDERS, TopicSet("secret", 1, 1, perm=2), GroupSet("off", consume_enable=False))

    reply = shell.call(11, pull_ext(**change))  # type: ignore[arg-type]  # any field by name

    assert reply.code == code
    assert reply.remark


def test_an_unknown_group_is_created_or_refused() -> None:
    """Law: an unknown group is created, or refused with 26 where automatic creation is off."""
    strict = Shell(settings(auto_create_group=False)).lead()
    lax = Shell().lead()
    for shell in (strict, lax):
        create(shell, ORDERS)

    assert pull(strict).code == 26
    assert pull(lax).code == 19
    assert lax.state.groups.get("billing") is not None


def test_the_groups_subscription_counts_when_the_pull_brings_none(shell: Shell) -> None:
    """Law: a pull without a subscription uses the group's: 24 if there is none, 25 if it is older than the client's."""
    create(shell, ORDERS)
    send(shell, body=b"no", props=properties(TAGS="sent"))
    send(shell, body=b"yes", props=properties(TAGS="paid"))
    heartbeat(shell, "c1", tags="paid", sub_version=5)

    assert pull(shell, sysFlag=0, topic="other").code == 17
    create(shell, TopicSet("other", 1, 1))
    assert pull(shell, sysFlag=0, topic="other").code == 24
    assert pull(shell, sysFlag=0, subVersion=6).code == 25
    assert bodies(pull(shell, sysFlag=0, subVersion=5)) == [b"yes"]


def test_a_pull_ahead_of_its_heartbeat_waits_for_it(shell: Shell) -> None:
    """Law: a pull that comes before its new subscription waits for the heartbeat,
    because RocketMQ's consumers send it later.
    """
    create(shell, ORDERS)
    send(shell, body=b"paid")
    heartbeat(shell, "c1", sub_version=5)
    opaque = shell.submit(11, pull_ext(sysFlag=2, subVersion=6))
    send(shell, body=b"shipped")
    shell.pass_time(400)
    assert (shell.reply_to(opaque), shell.core.pulls.held_count) == (None, 1)

    heartbeat(shell, "c1", sub_version=6)

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert bodies(reply) == [b"paid", b"shipped"]
    assert shell.core.pulls.held_count == 0


def test_a_pull_ahead_of_its_heartbeat_waits_on_when_other_members_send_theirs(
    shell: Shell,
) -> None:
    """Law: it waits on when other members' heartbeats arrive; a refusal would delay Java by 3 s."""
    create(shell, ORDERS)
    send(shell, body=b"paid")
    heartbeat(shell, "alice", sub_version=5)
    heartbeat(shell, "bob", sub_version=5, caller=BOB)
    opaque = shell.submit(11, pull_ext(sysFlag=2, subVersion=7), caller=BOB)

    heartbeat(shell, "alice", sub_version=6)
    heartbeat(shell, "alice", sub_version=9, group="audit")
    shell.call(35, {"clientID": "alice", "consumerGroup": "audit"})
    assert (shell.reply_to(opaque), shell.core.pulls.held_count) == (None, 1)
    heartbeat(shell, "bob", sub_version=7, caller=BOB)

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert bodies(reply) == [b"paid"]


def test_many_pulls_ahead_of_a_heartbeat_are_looked_at_in_turns(shell: Shell) -> None:
    """Law: many such pulls are looked at in turns, and each is answered when its client has reported."""
    create(shell, ORDERS)
    send(shell, body=b"paid")
    heartbeat(shell, "c1", sub_version=5)
    count = RELEASE_WORK_MAX + 10
    opaques = [shell.submit(11, pull_ext(sysFlag=2, subVersion=9)) for _ in range(count)]
    opaques += [shell.submit(11, pull_ext(sysFlag=2, subVersion=version)) for version in (6, 7)]

    for version in (6, 7):
        shell.submit(34, {}, heartbeat_body("c1", sub_version=version))
        shell.turn()
    shell.settle()

    answered = [opaque for opaque in opaques if shell.reply_to(opaque) is not None]
    assert answered == opaques[count:]
    heartbeat(shell, "c1", sub_version=9)
    assert all(shell.reply_to(opaque) is not None for opaque in opaques)


def test_a_pull_whose_heartbeat_does_not_come_is_refused_soon(shell: Shell) -> None:
    """Law: a pull whose heartbeat does not come is refused with 25 after half a second; if leadership ends,
    with 20 immediately.
    """
    create(shell, ORDERS)
    heartbeat(shell, "c1", sub_version=5)
    first = shell.submit(11, pull_ext(sysFlag=2, subVersion=6))
    shell.pass_time(500)
    second = shell.submit(11, pull_ext(sysFlag=2, subVersion=6))
    third = shell.submit(11, pull_ext(sysFlag=2, subVersion=6), caller=BOB)
    shell.core.connection_closed(BOB.connection)
    shell.follow()

    codes = [
        reply.code if (reply := shell.reply_to(opaque)) is not None else None
        for opaque in (first, second, third)
    ]
    assert codes == [25, 20, None]


def test_broadcasting_needs_the_groups_permission(shell: Shell) -> None:
    """Law: a broadcasting member of a group that forbids broadcasting is refused with 16."""
    create(shell, ORDERS, GroupSet("billing", consume_broadcast_enable=False))
    heartbeat(shell, "c1", model="BROADCASTING")

    assert pull(shell, sysFlag=0).code == 16
