"""Held pulls: what answers them, what ends them, and how much they may use."""

import tracemalloc
from sys import getsizeof

import pytest

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.processors.fetch.pull import (
    FORGOTTEN_MAX,
    HELD_BYTES_MAX,
    RELEASE_WORK_MAX,
    WAKE_WORK_MAX,
)
from orderlymq_broker.processors.fetch.read import (
    SCAN_WORK_MAX,
    PropertyTest,
)
from orderlymq_broker.state.records import (
    GroupDeleted,
    GroupSet,
    TopicDeleted,
    TopicSet,
)
from orderlymq_protocol.message.batch import BatchEntry, encode_batch
from tests.broker.processors.driver import ALICE, BOB, Shell
from tests.broker.processors.requests import (
    bodies,
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


def test_a_pull_at_the_end_waits_for_the_next_message(shell: Shell) -> None:
    """Law: a pull at the end of a queue is held and answered with the next message."""
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
    """Law: a held pull is answered with 19 after suspendTimeoutMillis."""
    create(shell, ORDERS, GroupSet("billing"))
    opaque = shell.submit(11, pull_ext(sysFlag=6, suspendTimeoutMillis=15_000))

    shell.pass_time(14_900)
    assert shell.reply_to(opaque) is None
    shell.pass_time(100)

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert (reply.code, reply.remark) == (19, "NO_MESSAGE_IN_QUEUE")


def test_only_a_message_that_matches_wakes(shell: Shell) -> None:
    """Law: messages of other queues or tags do not answer a held pull; at its deadline the next offset is behind them."""
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
    """Hold a pull at the end of queue 0 for each SQL92 expression; return their opaques."""
    end = str(shell.state.topics.by_name["orders"].queue(0).next_offset)
    ext = pull_ext(sysFlag=6, expressionType="SQL92", queueOffset=end)
    opaques = [shell.submit(11, {**ext, "subscription": each}) for each in expressions]
    assert [shell.reply_to(opaque) for opaque in opaques] == [None] * len(opaques)

    return opaques


class Counter:
    """A filter that matches nothing and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _: bytes) -> bool:
        self.calls += 1
        return False


def count_calls(shell: Shell, cost: int) -> list[Counter]:
    """Replace each filter of the held pulls with a counter."""
    counters: dict[int, tuple[Counter, PropertyTest]] = {}
    for pulls in shell.core.pulls._held.values():
        for held in pulls.values():
            counter = Counter()
            _, held.matches = counters.setdefault(
                id(held.matches), (counter, PropertyTest(counter, cost))
            )

    return [counter for counter, _ in counters.values()]


def test_a_message_is_judged_once_for_all_that_wait_with_one_filter(shell: Shell) -> None:
    """Law: a message is compared once per filter, however many pulls wait with it."""
    create(shell, ORDERS, GroupSet("billing"))
    hold_with(shell, *["price > 7"] * 50)
    (counter,) = count_calls(shell, 1)

    for _ in range(3):
        shell.submit(310, send_ext("orders"), b"")
    shell.settle()

    assert counter.calls == 3
    assert shell.core.pulls.held_count == 50


def test_many_filters_take_no_more_of_a_turn_than_one_pull_may(shell: Shell) -> None:
    """Law: many filters take no more of a turn than one pull may; the rest are answered "pull again" and compared later."""
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
    """Law: answers to held pulls have the same bound of work in a turn."""
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
    """Law: batches, delayed messages and retries answer held pulls too."""
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
    """Law: a message answers held pulls only when it is committed."""
    create(shell, ORDERS, GroupSet("billing"))
    opaque = shell.submit(11, pull_ext(sysFlag=6))

    shell.submit(310, send_ext("orders", properties(TAGS="common")), b"soon")
    assert shell.reply_to(opaque) is None
    shell.settle()

    assert shell.reply_to(opaque) is not None


def test_the_commit_of_a_pull_is_taken_once(shell: Shell) -> None:
    """Law: the offset in a pull is committed once, when the pull arrives, not again when it is answered."""
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
    """Law: a change of leader answers all held pulls with 20 (pull again), so that consumers find the new leader."""
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
    """Law: a held pull of a deleted topic or group is answered immediately."""
    create(shell, ORDERS, GroupSet("billing"))
    opaque = shell.submit(11, pull_ext(sysFlag=6))

    create(shell, gone)

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert reply.code == code


def test_nobody_waits_for_what_is_deleted_while_its_messages_wake_others(shell: Shell) -> None:
    """Law: this holds also for pulls that one of the topic's messages had not reached yet."""
    create(shell, ORDERS, GroupSet("billing"))
    opaques = hold_with(shell, *["price > 7"] * 300, *["price < 3"] * 10)
    for _ in range(2):
        shell.submit(310, send_ext("orders", properties(price="9")), b"x")
        shell.turn()

    shell.run([Propose([TopicDeleted("orders")])])
    shell.turn()
    shell.settle()

    replies = [shell.reply_to(each) for each in opaques]
    assert [each and each.code for each in replies] == [0] * 256 + [17] * 54
    assert shell.core.pulls.held_count == 0


def test_many_deletions_in_one_entry_are_one_look_at_all_that_wait(shell: Shell) -> None:
    """Law: many deletions in one entry look at all held pulls once, because a thousand looks would take seconds."""
    others = [TopicSet(f"orders-{number}", 1, 1) for number in range(9)]
    create(shell, ORDERS, GroupSet("billing"), *others)
    opaques = [shell.submit(11, pull_ext(sysFlag=6)) for _ in range(RELEASE_WORK_MAX + 1)]
    last = shell.submit(11, pull_ext(topic="orders-8", sysFlag=6))

    shell.run([Propose([TopicDeleted(each.name) for each in others])])
    shell.turn()
    assert len(shell.core.pulls._due) == 1
    shell.settle()

    reply = shell.reply_to(last)
    assert reply is not None
    assert reply.code == 17
    assert shell.core.pulls.held_count == len(opaques)


def test_a_closed_connection_takes_its_held_pulls_with_it(shell: Shell) -> None:
    """Law: a closed connection's held pulls are dropped."""
    create(shell, ORDERS, GroupSet("billing"))
    shell.submit(11, pull_ext(sysFlag=6))
    kept = shell.submit(11, pull_ext(sysFlag=6), caller=BOB)

    shell.run(shell.core.connection_closed(ALICE.connection))
    send(shell)

    assert shell.core.pulls.held_count == 0
    assert [each.connection for each in shell.sent if each.command.body] == [BOB.connection]
    assert shell.reply_to(kept) is not None


def test_pulls_that_wait_keep_what_their_answers_need(shell: Shell) -> None:
    """Law: a held pull keeps only what its answer needs, not its body and other fields."""
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


def test_who_holds_most_gives_up_its_oldest_when_no_more_can_wait(shell: Shell) -> None:
    """Law: when no more pulls can be held, the connection with the most gives up its oldest; others keep theirs."""
    create(shell, ORDERS, GroupSet("billing"))
    long = pull_ext(sysFlag=6, queue=1, omqClientId="c" * (HELD_BYTES_MAX // 4))
    short = [shell.submit(11, pull_ext(sysFlag=6), caller=BOB) for _ in range(100)]
    held = [shell.submit(11, long) for _ in range(3)]
    assert [shell.reply_to(each) for each in held] == [None] * 3

    last = shell.submit(11, long)

    told = [shell.reply_to(each) for each in held]
    assert [(each and each.code, each and each.remark) for each in told] == [
        (20, "TOO_MANY_WAIT")
    ] * 3
    assert [shell.reply_to(each) for each in [*short, last]] == [None] * 101
    assert shell.core.pulls.held_count == 101


def test_filters_that_pulls_wait_with_have_a_limit_together(shell: Shell) -> None:
    """Law: the memory of all held filters is bounded; short tags take twelve times the bytes of their text."""
    create(shell, ORDERS, GroupSet("billing"))
    tags = "||".join(f"{number:x}" for number in range(1_023))

    for number in range(1_200):
        shell.submit(11, pull_ext(sysFlag=6, subscription=f"{tags}||t{number}"))

    pulls = shell.core.pulls._held[shell.state.topics.by_name["orders"].id, 0].values()
    filters: dict[int, frozenset[int]] = {
        id(held.matches): getattr(held.matches, "__self__", frozenset()) for held in pulls
    }
    assert len(filters) == shell.core.pulls.held_count
    sizes = (getsizeof(codes) + sum(map(getsizeof, codes)) for codes in filters.values())
    assert sum(sizes) <= HELD_BYTES_MAX


def test_pulls_that_share_a_filter_wait_with_it_together(shell: Shell) -> None:
    """Law: pulls with equal filters count one filter together, and nothing is counted when all are answered."""
    create(shell, ORDERS, GroupSet("billing"))
    tags = "||".join(f"{number:x}" for number in range(1_024))

    opaques = [shell.submit(11, pull_ext(sysFlag=6, subscription=tags)) for _ in range(1_500)]

    assert shell.core.pulls.held_count == 1_500
    shell.pass_time(15_000)
    assert None not in [shell.reply_to(opaque) for opaque in opaques]
    assert shell.core.pulls._held_bytes == 0


def test_answered_pulls_keep_nothing(shell: Shell) -> None:
    """Law: answered pulls leave no memory behind before their deadline."""
    create(shell, ORDERS, GroupSet("billing"))
    tracemalloc.start()
    for offset in range(50):
        shell.submit(11, pull_ext(sysFlag=6, offset=offset, omqClientId=f"{offset}".ljust(200_000)))
        send(shell)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert shell.core.pulls.held_count == 0
    assert kept < 2_000_000


@pytest.mark.parametrize("event", ["message", "time", "leader", "deletion"])
def test_many_held_pulls_are_answered_in_turns(shell: Shell, event: str) -> None:
    """Law: many held pulls are answered in several turns, each once."""
    create(shell, ORDERS, GroupSet("billing"))
    opaques = [shell.submit(11, pull_ext(sysFlag=6)) for _ in range(1_000)]
    shell.sent.clear()

    if event == "message":
        shell.submit(310, send_ext("orders"), b"x")
        shell.turn()
    elif event == "time":
        shell.wall_ms += 15_000
        shell.run(shell.core.tick(shell.now))
    elif event == "leader":
        shell.follow()
    else:
        shell.run([Propose([TopicDeleted("orders")])])
        shell.turn()
    answers = [len([each for each in shell.sent if each.command.opaque in opaques])]
    while shell.later:
        shell.go_on()
        answers.append(len([each for each in shell.sent if each.command.opaque in opaques]))

    assert answers == [256, 512, 768, 1_000]
    codes = {reply.code for reply in map(shell.reply_to, opaques) if reply is not None}
    assert codes == {{"message": 0, "time": 19, "leader": 20, "deletion": 17}[event]}
    assert shell.core.pulls.held_count == 0


def test_pulls_that_wait_for_their_answer_are_not_judged_by_a_former_leader(shell: Shell) -> None:
    """Law: a held pull that was woken but not answered when leadership ends is sent to the next leader."""
    create(shell, ORDERS, GroupSet("billing"))
    opaques = [shell.submit(11, pull_ext(sysFlag=6)) for _ in range(300)]
    shell.submit(310, send_ext("orders"), b"x")
    shell.turn()

    shell.follow()
    shell.go_on()

    replies = [shell.reply_to(each) for each in opaques]
    assert [each and each.code for each in replies] == [0] * 256 + [20] * 44


def test_ten_thousand_held_pulls_do_not_slow_a_send(shell: Shell) -> None:
    """Law: an append looks only at pulls for its own queue."""
    create(shell, ORDERS, GroupSet("billing"))
    for _ in range(10_000):
        shell.submit(11, pull_ext(sysFlag=6, queue=1))
    looked = shell.core.pulls._held[shell.state.topics.by_name["orders"].id, 1]
    del shell.core.pulls._held[shell.state.topics.by_name["orders"].id, 1]

    send(shell)  # This would fail if it used what was taken away.

    shell.core.pulls._held[shell.state.topics.by_name["orders"].id, 1] = looked
    assert shell.core.pulls.held_count == 10_000


def test_the_heap_of_deadlines_does_not_keep_answered_pulls(shell: Shell) -> None:
    """Law: answered pulls do not stay in the heap of deadlines."""
    create(shell, ORDERS, GroupSet("billing"))
    for offset in range(3_000):
        shell.submit(11, pull_ext(sysFlag=6, offset=offset))
        shell.submit(310, send_ext("orders", properties(TAGS="common")), b"x")
        shell.settle()

    assert len(shell.core.pulls._deadlines) <= 1_001


def test_a_connection_with_many_held_pulls_goes_in_several_turns(shell: Shell) -> None:
    """Law: a closed connection's many held pulls are dropped in several turns; those of others wait on."""
    create(shell, ORDERS, GroupSet("billing"))
    for caller, count in ((ALICE, 2 * FORGOTTEN_MAX + 5), (BOB, 3)):
        for _ in range(count):
            shell.submit(11, pull_ext(sysFlag=6), caller=caller)
    left = []

    shell.run(shell.core.connection_closed(ALICE.connection))
    while shell.later:
        left.append(shell.core.pulls.held_count)
        (step,) = shell.later
        shell.later.clear()
        shell.run(step.step(shell.now))

    assert left == [FORGOTTEN_MAX + 8, 8]
    assert shell.core.pulls.held_count == 3
