"""Messages that wait for a retry are read in steps that hold nobody up."""

from orderlymq_broker.processors.topics.pendingretries import SIZE_MAX, RetryWatch
from orderlymq_broker.state.records import GroupSet, TopicSet
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import create, properties, send
from tests.broker.store.memory import MeasuringStore


def test_large_messages_are_looked_at_a_few_at_a_time() -> None:
    """A message that was not looked at yet counts as waiting."""
    store = MeasuringStore()
    shell = Shell(store=store).lead()
    create(shell, TopicSet("orders", 1, 1), GroupSet("billing"))
    for _ in range(5):
        send(shell, body=bytes(SIZE_MAX * 3 // 8), props=properties(DELAY="18"))
    watch = RetryWatch(shell.core.context)

    told = [watch.waiting(["billing"]) for _ in range(3)]

    assert told == [[("billing", 3)], [("billing", 1)], []]
    assert store.largest_read <= SIZE_MAX
