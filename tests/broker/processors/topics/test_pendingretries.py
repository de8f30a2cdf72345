"""Delayed messages that wait for a retry are counted in steps."""

import tracemalloc
from collections import Counter

from orderlymq_broker.processors.topics import pendingretries
from orderlymq_broker.processors.topics.pendingretries import SIZE_MAX, RetryWatch
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.names import retry_topic
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import create, properties, send
from tests.broker.store.memory import MeasuringStore


def test_large_messages_are_looked_at_a_few_at_a_time() -> None:
    """Law: large messages are read a few at a time; one that was not read yet counts as waiting."""
    store = MeasuringStore()
    shell = Shell(store=store).lead()
    create(shell, TopicSet("orders", 1, 1), GroupSet("billing"))
    for _ in range(5):
        send(shell, body=bytes(SIZE_MAX * 3 // 8), props=properties(DELAY="18"))
    watch = RetryWatch(shell.core.context)

    told = [watch.waiting(["billing"]) for _ in range(3)]

    assert told == [[("billing", 3)], [("billing", 1)], []]
    assert store.largest_read <= SIZE_MAX


def test_a_message_that_waits_takes_a_few_bytes() -> None:
    """Law: a waiting message takes a few bytes of memory, because there may be millions."""
    count = 300
    shell = Shell().lead()
    groups = ["billing-of-the-northern-region", "shipping-of-the-southern-region"]
    _create(shell, *groups)
    for number in range(count):
        send(
            shell,
            retry_topic(groups[number % 2]),
            props=properties(DELAY=str(17 + number % 3 // 2)),
        )
    watch = RetryWatch(shell.core.context)
    tracemalloc.start()

    while watch.waiting(groups) and watch.unread:
        pass

    here = tracemalloc.Filter(inclusive=True, filename_pattern=pendingretries.__file__)
    traces = tracemalloc.take_snapshot().filter_traces([here]).statistics("filename")
    tracemalloc.stop()
    assert watch.waiting(groups) == [(group, count // 2) for group in sorted(groups)]
    assert sum(each.size for each in traces) < 24 * count


def test_what_has_been_handed_on_counts_no_more() -> None:
    """Law: messages that were delivered count no more, over several groups and levels."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 1, 1))
    _create(shell, "billing", "shipping")
    watch, sent = RetryWatch(shell.core.context), Counter[str]()

    for number in range(60):
        group = ("billing", "shipping", "")[number % 7 % 3]
        topic = retry_topic(group) if group else "orders"
        send(shell, topic, props=properties(DELAY=str(1 + number % 4 % 3)))
        sent[group] += 1
        shell.pass_time(number % 5 * 300, step=100)
        arrived = {each: _stored(shell, retry_topic(each)) for each in ("billing", "shipping")}
        left = {each: sent[each] - count for each, count in arrived.items()}
        told = watch.waiting(list(arrived))
        assert dict(told) == {each: count for each, count in left.items() if count}

    assert all(arrived.values())


def _create(shell: Shell, *groups: str) -> None:
    for group in groups:
        create(shell, GroupSet(group), TopicSet(retry_topic(group), 1, 1))


def _stored(shell: Shell, topic: str) -> int:
    return sum(queue.next_offset for queue in shell.state.topics.by_name[topic].queues.values())
