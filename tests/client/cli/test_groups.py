"""The lag of a group that has committed nothing is not known, and no zero."""

from orderlymq.cli.groups import total_lag
from orderlymq_protocol.body.catalogue import OffsetWrapper
from orderlymq_protocol.body.messagequeue import MessageQueue

QUEUE = MessageQueue("orders", "g", 0)


def test_a_lag_is_the_sum_over_queues_that_are_known() -> None:
    """Of a topic that is subscribed and has no offset nobody knows where the group begins."""
    progress = {QUEUE: OffsetWrapper(7, 5, 0), QUEUE._replace(queue_id=1): OffsetWrapper(3, 3, 0)}

    assert total_lag(progress, ["orders", "%RETRY%billing"]) == 2
    assert total_lag(progress, []) == 2
    assert total_lag(progress, ["orders", "parcels"]) is None
    assert total_lag({}, ["orders"]) is None
    assert total_lag({}, []) is None
