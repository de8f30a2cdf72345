"""The states of a streaming audit: each queue has its own, and running audits continue from them."""

from pathlib import Path

import orjson

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.jobs.audit.order import OrderCheck
from orderlymq_spark.jobs.audit.states import keep, newest, restore
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.locations.location import Location

ONE, OTHER = MessageQueue("t", "x_b", 0), MessageQueue("t_x", "b", 0)


def check(queue: MessageQueue, rows: int) -> OrderCheck:
    """Return a check that has seen this many rows of one key."""
    found = OrderCheck(f"{queue.topic}/{queue.broker_name}:{queue.queue_id}")
    found.feed(range(rows), ["a"] * rows, range(rows))
    return found


def test_two_queues_never_share_a_state(root: Location) -> None:
    """Once, `t/x_b:0` and `t_x/b:0` shared the name `t_x_b:0`, and one continued from the other's numbers."""
    checks = {ONE: check(ONE, 3), OTHER: check(OTHER, 7)}
    for queue, each in checks.items():
        keep(root, 0, queue, each)

    assert {queue: restore(root, 1, queue, None) for queue in checks} == checks
    assert newest(root) == [*checks.values()]


def test_a_batch_goes_on_from_the_state_before_it(root: Location) -> None:
    """A repeated batch starts from the same state, and a state of an earlier version can be read."""
    former = root / "t_x_b:0"
    for batch in (3, 4):
        (former / f"{batch:020}.json").write(orjson.dumps(check(ONE, batch).to_state()))

    assert restore(root, 4, ONE, None) == check(ONE, 3)
    assert restore(root, 5, ONE, None) == check(ONE, 4)
    assert restore(root, 5, OTHER, None) == OrderCheck("t_x/b:0")
    keep(root, 5, ONE, check(ONE, 5))
    keep(root, 5, OTHER, check(OTHER, 1))
    assert restore(root, 5, ONE, None) == check(ONE, 4)
    for batch in range(6, 9):
        keep(root, batch, ONE, check(ONE, batch))
    assert [restore(root, batch, ONE, None) for batch in (8, 9)] == [check(ONE, 7), check(ONE, 8)]
    assert newest(root) == [check(ONE, 8), check(OTHER, 1)]


def test_few_states_are_kept(tmp_path: Path) -> None:
    for batch in range(9):
        keep(location(tmp_path), batch, ONE, check(ONE, batch))

    assert len([*tmp_path.glob("*/*.json")]) == 3
