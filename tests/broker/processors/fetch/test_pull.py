"""Pulls: statuses, filters, long polling."""

import tracemalloc
from collections.abc import Sequence

import pytest

from orderlymq_broker.processors.fetch.pull import HELD_TEXT_BYTES_MAX, WAKE_WORK_MAX
from orderlymq_broker.processors.fetch.read import (
    BULK_MESSAGES_MAX,
    MESSAGES_MAX,
    SCAN_WORK_MAX,
    SIZE_MAX,
    PropertyTest,
    read_queue,
)
from orderlymq_broker.settings import StorageSettings
from orderlymq_broker.state.records import (
    GroupDeleted,
    GroupSet,
    QueueFloor,
    RetentionAdvanced,
    TopicDeleted,
    TopicSet,
)
from orderlymq_broker.store.kv import Family, Reader
from orderlymq_protocol.message.batch import BatchEntry, encode_batch
from tests.broker.processors.driver import ALICE, BOB, TOOL, Shell, settings
from tests.broker.processors.requests import (
    bodies,
    commit_ext,
    create,
    heartbeat,
    offset_of,
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
    """Code 0, next offset behind the last, the range of the queue, id 0."""
    reply = pull(orders, offset=3, maxMsgNums=4)

    assert (reply.code, reply.remark, bodies(reply)) == (0, "FOUND", [b"3", b"4", b"5", b"6"])
    assert reply.ext == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "7",
        "minOffset": "0",
        "maxOffset": "10",
    }


def test_lite_pull_is_a_pull(orders: Shell) -> None:
    """Code 361 gives what 11 gives."""
    assert bodies(pull(orders, code=361)) == bodies(pull(orders))


def test_the_statuses_are_rocketmqs(orders: Shell) -> None:
    """Offset below, at and above the end, and a queue never written."""
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
    """Its topic was created again; at the end it would skip what was acknowledged since.

    A program that pulls chooses its offsets: it is told where the end is, as by RocketMQ.
    """
    create(orders, TopicDeleted("orders"), TopicSet("orders", 2, 2))
    send(orders)
    asked = [pull(orders, offset=10).ext["nextBeginOffset"]]
    heartbeat(orders, "c1")
    asked.append(pull(orders, offset=10).ext["nextBeginOffset"])

    for committed in (1, 9):
        orders.call(15, commit_ext(committed), peer=TOOL)
        asked.append(pull(orders, offset=10).ext["nextBeginOffset"])

    assert asked == ["1", "0", "1", "1"]


def test_a_filter_gives_what_matches_and_passes_over_the_rest(orders: Shell) -> None:
    """The next offset counts what was looked at, so a tag that never comes still makes progress."""
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
    """32 messages, 256 KiB, or what a 5.x client asks for; the first is always included."""
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
    """Passes reads on to a store and counts the rows that they return."""

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
    """What is asked of the store depends neither on the backlog nor on where in it a consumer stands."""
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


def test_a_reader_of_ranges_gets_more_at_once() -> None:
    """Who asks for it gets up to 512 messages and 1 MiB, from memory and from the store alike."""
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
    """A pull among many unwanted messages ends early and goes on with the next."""
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
    """Each refusal has RocketMQ's code and says why."""
    create(shell, ORDERS, TopicSet("secret", 1, 1, perm=2), GroupSet("off", consume_enable=False))

    reply = shell.call(11, pull_ext(**change))  # type: ignore[arg-type]  # any field by name

    assert reply.code == code
    assert reply.remark


def test_an_unknown_group_is_created_or_refused() -> None:
    """26 only where groups are not created automatically."""
    strict = Shell(settings(auto_create_group=False)).lead()
    lax = Shell().lead()
    for shell in (strict, lax):
        create(shell, ORDERS)

    assert pull(strict).code == 26
    assert pull(lax).code == 19
    assert lax.state.groups.get("billing") is not None


def test_the_groups_subscription_counts_when_the_pull_brings_none(shell: Shell) -> None:
    """24 without it, 25 when it is older than the client's, else its tags decide."""
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
    """RocketMQ's consumers pull what a rebalance gave them, then tell of their new subscription."""
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


def test_a_pull_whose_heartbeat_does_not_come_is_refused_soon(shell: Shell) -> None:
    """25 after half a second, and immediately for the next leader's sake when this one ends."""
    create(shell, ORDERS)
    heartbeat(shell, "c1", sub_version=5)
    first = shell.submit(11, pull_ext(sysFlag=2, subVersion=6))
    shell.pass_time(500)
    second = shell.submit(11, pull_ext(sysFlag=2, subVersion=6))
    third = shell.submit(11, pull_ext(sysFlag=2, subVersion=6), peer=BOB)
    shell.core.connection_closed(BOB.connection, shell.now)
    shell.follow()

    codes = [
        reply.code if (reply := shell.reply_to(opaque)) is not None else None
        for opaque in (first, second, third)
    ]
    assert codes == [25, 20, None]


def test_broadcasting_needs_the_groups_permission(shell: Shell) -> None:
    """16 for a broadcasting member of a group that forbids it."""
    create(shell, ORDERS, GroupSet("billing", consume_broadcast_enable=False))
    heartbeat(shell, "c1", model="BROADCASTING")

    assert pull(shell, sysFlag=0).code == 16


# -- long polling --------------------------------------------------------------------------------


def test_a_pull_at_the_end_waits_for_the_next_message(shell: Shell) -> None:
    """Held until a message comes, then answered with it immediately."""
    create(shell, ORDERS, GroupSet("billing"))
    opaque = shell.submit(11, pull_ext(sysFlag=6))
    shell.pass_time(3_000)
    assert shell.reply_to(opaque) is None

    send(shell, body=b"at last")

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert bodies(reply) == [b"at last"]
    assert shell.core.pulls.held_count == 0


def test_a_held_pull_is_answered_when_its_time_is_up(shell: Shell) -> None:
    """19 after suspendTimeoutMillis, not before."""
    create(shell, ORDERS, GroupSet("billing"))
    opaque = shell.submit(11, pull_ext(sysFlag=6, suspendTimeoutMillis=15_000))

    shell.pass_time(14_900)
    assert shell.reply_to(opaque) is None
    shell.pass_time(100)

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert (reply.code, reply.remark) == (19, "NO_MESSAGE_IN_QUEUE")


def test_only_a_message_that_matches_wakes(shell: Shell) -> None:
    """Other queues and other tags leave a held pull alone; its deadline then skips them."""
    create(shell, ORDERS, GroupSet("billing"))
    opaque = shell.submit(11, pull_ext(sysFlag=6, subscription="paid"))

    send(shell, e=1, props=properties(TAGS="paid"))
    send(shell, e=0, props=properties(TAGS="sent"))
    assert shell.reply_to(opaque) is None
    shell.pass_time(15_000)

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert (reply.code, reply.ext["nextBeginOffset"]) == (20, "1")


# -- filters that read messages --------------------------------------------------------------------


def hold_with(shell: Shell, *expressions: str) -> list[int]:
    """Hold a pull at the end of queue 0 for each SQL92 expression; return their numbers."""
    end = str(shell.state.topics.by_name["orders"].queue(0).next_offset)
    ext = pull_ext(sysFlag=6, expressionType="SQL92", queueOffset=end)
    opaques = [shell.submit(11, {**ext, "subscription": each}) for each in expressions]
    assert [shell.reply_to(opaque) for opaque in opaques] == [None] * len(opaques)

    return opaques


class Counter:
    """A filter that wants nothing and counts what it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _: bytes) -> bool:
        self.calls += 1
        return False


def count_calls(shell: Shell, cost: int) -> list[Counter]:
    """Put a counter in the place of each filter with which pulls wait."""
    counters: dict[int, tuple[Counter, PropertyTest]] = {}
    for pulls in shell.core.pulls._held.values():
        for held in pulls.values():
            counter = Counter()
            _, held.matches = counters.setdefault(
                id(held.matches), (counter, PropertyTest(counter, cost))
            )

    return [counter for counter, _ in counters.values()]


def test_a_message_is_judged_once_for_all_that_wait_with_one_filter(shell: Shell) -> None:
    """However many wait: three messages of one turn are three questions."""
    create(shell, ORDERS, GroupSet("billing"))
    hold_with(shell, *["price > 7"] * 50)
    (counter,) = count_calls(shell, 1)

    for _ in range(3):
        shell.submit(310, send_ext("orders"), b"")
    shell.settle()

    assert counter.calls == 3
    assert shell.core.pulls.held_count == 50


def test_many_filters_take_no_more_of_a_turn_than_one_pull_may(shell: Shell) -> None:
    """Who waits with one that was not asked any more pulls again, is judged in a turn of its own, and waits."""
    create(shell, ORDERS, GroupSet("billing"))
    send(shell)
    expressions = [f"price > {number}" for number in range(40)]
    opaques = hold_with(shell, *expressions)
    cost = WAKE_WORK_MAX // 50
    counters = count_calls(shell, cost)
    tags = shell.submit(11, pull_ext(sysFlag=6, subscription="paid", queueOffset="1"))

    for _ in range(20):
        shell.submit(310, send_ext("orders"), b"")
    shell.settle()

    assert 0 < sum(counter.calls for counter in counters) * cost <= WAKE_WORK_MAX + cost
    assert shell.reply_to(tags) is None
    replies = [reply for opaque in opaques if (reply := shell.reply_to(opaque)) is not None]
    assert {(each.code, each.ext["nextBeginOffset"]) for each in replies} == {(20, "1")}
    hold_with(shell, *expressions[: len(replies)])


def test_answers_to_held_pulls_have_the_same_bound(shell: Shell) -> None:
    """All want the last message, and each would look for it behind the others."""
    create(shell, ORDERS, GroupSet("billing"))
    send(shell)
    wanted = " OR ".join(f"a{number} = 'x'" for number in range(200))
    opaques = hold_with(shell, *(f"{wanted} OR last > {number}" for number in range(-30, 0)))
    before = shell.core.pulls._work

    for last in [*[""] * 9, "1"]:
        shell.submit(310, send_ext("orders", properties(last=last)), last.encode())
    shell.settle()

    assert shell.core.pulls._work - before <= 2 * SCAN_WORK_MAX
    replies = [shell.reply_to(opaque) for opaque in opaques]
    assert {reply.code for reply in replies if reply is not None} <= {0, 20}
    assert None not in replies
    again = shell.call(
        11, pull_ext(subscription="last > -3", sysFlag=4, expressionType="SQL92", queueOffset="1")
    )
    assert bodies(again) == [b"1"]


def test_batch_delay_and_retry_writes_wake_too(shell: Shell) -> None:
    """Whatever puts a message into the queue answers who waits for it."""
    create(shell, ORDERS, GroupSet("billing"))
    waiting = shell.submit(11, pull_ext(sysFlag=6))
    shell.call(320, send_ext("orders", m="true"), encode_batch([BatchEntry(0, b"batch", b"")]))
    first = shell.reply_to(waiting)
    waiting = shell.submit(11, pull_ext(sysFlag=6, offset=1, suspendTimeoutMillis=30_000))
    send(shell, body=b"delayed", props=properties(DELAY="2"))
    assert shell.reply_to(waiting) is None
    shell.pass_time(5_100)
    second = shell.reply_to(waiting)

    assert first is not None
    assert second is not None
    assert (bodies(first), bodies(second)) == ([b"batch"], [b"delayed"])


def test_a_message_of_the_same_turn_that_is_not_committed_wakes_nobody(shell: Shell) -> None:
    """Readers see committed messages only."""
    create(shell, ORDERS, GroupSet("billing"))
    opaque = shell.submit(11, pull_ext(sysFlag=6))

    shell.submit(310, _send(), b"soon")
    assert shell.reply_to(opaque) is None
    shell.settle()

    assert shell.reply_to(opaque) is not None


def test_the_commit_of_a_pull_is_taken_once(shell: Shell) -> None:
    """At the first processing, not when a held pull is answered."""
    create(shell, ORDERS, GroupSet("billing"))
    for _ in range(3):
        send(shell)

    shell.submit(11, pull_ext(sysFlag=7, offset=3, commitOffset=2))
    shell.pass_time(200)
    assert offset_of(shell) == 2
    before = len(shell.proposed)
    shell.pass_time(20_000)

    assert not [each for each in shell.proposed[before:] if "Offsets" in type(each).__name__]


def test_a_change_of_leader_answers_everybody_who_waits(shell: Shell) -> None:
    """20, pull again immediately: the consumer meets the new leader without losing its wait."""
    create(shell, ORDERS, GroupSet("billing"))
    opaque = shell.submit(11, pull_ext(sysFlag=6))

    shell.follow()

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert (reply.code, reply.ext["nextBeginOffset"]) == (20, "0")
    assert pull(shell).code == 1
    shell.follow(leader_known=False)
    shell.submit(11, pull_ext())
    assert [each.connection for each in shell.closed] == [ALICE.connection]


@pytest.mark.parametrize(
    ("gone", "code"), [(TopicDeleted("orders"), 17), (GroupDeleted("billing"), 26)]
)
def test_nobody_waits_for_what_is_deleted(
    shell: Shell, gone: TopicDeleted | GroupDeleted, code: int
) -> None:
    """A held pull of a deleted topic or group is answered immediately."""
    create(shell, ORDERS, GroupSet("billing"))
    opaque = shell.submit(11, pull_ext(sysFlag=6))

    create(shell, gone)

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert reply.code == code


def test_a_closed_connection_takes_its_held_pulls_with_it(shell: Shell) -> None:
    """Nothing is kept for, or written to, who is gone."""
    create(shell, ORDERS, GroupSet("billing"))
    shell.submit(11, pull_ext(sysFlag=6))
    kept = shell.submit(11, pull_ext(sysFlag=6), peer=BOB)

    shell.run(shell.core.connection_closed(ALICE.connection, shell.now))
    send(shell)

    assert shell.core.pulls.held_count == 0
    assert [each.connection for each in shell.sent if each.command.body] == [BOB.connection]
    assert shell.reply_to(kept) is not None


def test_pulls_that_wait_keep_what_their_answers_need(shell: Shell) -> None:
    """Body and other fields may be a megabyte; a subscription that nobody asks for is not kept either."""
    create(shell, ORDERS, GroupSet("billing"))
    heartbeat(shell, "c1", sub_version=5)
    junk = "x" * 100_000
    tracemalloc.start()
    for _ in range(100):
        ext = pull_ext(sysFlag=2) | {"junk": junk + ".", "subscription": junk + "y"}
        shell.submit(11, ext, b"z" * 60_000)
    del ext
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert shell.core.pulls.held_count == 100
    assert held < 100 * 5_000


def test_held_pulls_have_a_limit_of_bytes(shell: Shell) -> None:
    """Beyond it pulls are answered immediately; a short one still finds room, and what was answered makes room."""
    create(shell, ORDERS, GroupSet("billing"))
    long = pull_ext(sysFlag=6, queue=1, omqClientId="c" * (HELD_TEXT_BYTES_MAX // 4))
    held = [shell.submit(11, long) for _ in range(3)]
    assert [shell.reply_to(each) for each in held] == [None] * 3

    over = shell.reply_to(shell.submit(11, long))
    shell.submit(11, pull_ext(sysFlag=6))
    assert (over and over.code, shell.core.pulls.held_count) == (19, 4)
    send(shell, e=1)

    assert shell.core.pulls.held_count == 1
    again = [shell.submit(11, dict(long, queueOffset="1")) for _ in range(3)]
    assert [shell.reply_to(each) for each in again] == [None] * 3


def test_ten_thousand_held_pulls_do_not_slow_a_send(shell: Shell) -> None:
    """An append looks only at those that wait for its own queue."""
    create(shell, ORDERS, GroupSet("billing"))
    for _ in range(10_000):
        shell.submit(11, pull_ext(sysFlag=6, queue=1))
    looked = shell.core.pulls._held[shell.state.topics.by_name["orders"].id, 1]
    del shell.core.pulls._held[shell.state.topics.by_name["orders"].id, 1]

    send(shell)  # would fail if it needed what was taken away

    shell.core.pulls._held[shell.state.topics.by_name["orders"].id, 1] = looked
    assert shell.core.pulls.held_count == 10_000


def test_the_heap_of_deadlines_does_not_keep_answered_pulls(shell: Shell) -> None:
    """Busy consumers are answered thousands of times before their first deadline."""
    create(shell, ORDERS, GroupSet("billing"))
    for offset in range(3_000):
        shell.submit(11, pull_ext(sysFlag=6, offset=offset))
        shell.submit(310, _send(), b"x")
        shell.settle()

    assert len(shell.core.pulls._deadlines) <= 1_001
