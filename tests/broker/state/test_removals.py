"""What stands in the way of fewer queues, and what the question costs."""

from cProfile import Profile

from orderlymq_broker.state.records import Commit, OffsetsCommitted, TopicSet
from orderlymq_broker.state.removals import refuse_fewer
from tests.broker.state.entries import Replica

QUEUES, GROUPS = 50, 20


def consumed() -> Replica:
    """Return a replica with a message in each queue, which every group has consumed."""
    replica = Replica()
    replica.take(TopicSet("orders", QUEUES, QUEUES))
    for number in range(QUEUES):
        replica.append(replica.topic_id(), number)
    commits = [Commit(f"g{n}", "orders", each, 1) for n in range(GROUPS) for each in range(QUEUES)]
    replica.take(OffsetsCommitted(tuple(commits)))
    return replica


def test_fewer_queues_cost_a_look_up_for_each_offset_that_is_there() -> None:
    """Law: a replica applies it in one go, and of offsets there is a limit."""
    state = consumed().state
    profile = Profile()

    assert profile.runcall(refuse_fewer, state, state.topics.by_name["orders"], 1) == ""

    assert sum(entry.callcount for entry in profile.getstats()) < 2 * QUEUES * GROUPS


def test_one_queue_that_one_group_has_not_consumed_stays() -> None:
    """The refusal names both."""
    replica = consumed()
    replica.append(replica.topic_id(), 7)
    replica.take(
        OffsetsCommitted(tuple(Commit(f"g{n}", "orders", 7, 2) for n in range(GROUPS - 1)))
    )

    reason = refuse_fewer(replica.state, replica.state.topics.by_name["orders"], 1)

    assert reason.startswith("queue 7 of topic[orders] has messages that group g19 has not")
    assert refuse_fewer(replica.state, replica.state.topics.by_name["orders"], 8) == ""
