"""Log lines about the state of a queue that is consumed in order."""

from orderlymq.consumer.core.events import LocksAnswered
from tests.client.consumer.core.orderedscript import Script
from tests.client.messages import OTHER, QUEUE


def test_the_log_shows_of_each_queue_whether_its_lock_was_got() -> None:
    """Law: the log shows for each queue whether its lock was granted, refused or not answered (LOG-13, LOG-14)."""
    script = Script()
    script.assign(QUEUE, OTHER)

    script.play(LocksAnswered((QUEUE, OTHER), {QUEUE: 1}, script.now))
    script.fail_locks(OTHER)

    (got,) = script.reports("the message queue lock OK")
    (refused,) = script.reports("add a new mq failed")
    (lost,) = script.reports("lockBatchMQ exception")
    assert str(QUEUE) in got
    assert (str(OTHER) in refused, "because lock failed" in refused) == (True, True)
    assert "no answer" in lost
