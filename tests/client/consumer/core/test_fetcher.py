"""How a queue is pulled: the interval between pulls, and the log lines about pulls that wait."""

import pytest

from orderlymq.consumer.core.events import Pull, Report
from orderlymq.consumer.core.fetcher import Fetcher
from orderlymq.consumer.core.flowcontrol import REPORT_EVERY, FlowLimits
from orderlymq.consumer.core.processqueue import ProcessQueue
from orderlymq.consumer.core.queuestate import OrderedRules
from tests.client.consumer.core.orderedscript import Script
from tests.client.messages import QUEUE, message


def test_pulls_that_found_something_are_the_interval_apart() -> None:
    """Law: after a pull with messages the next one waits for pullInterval; after an empty one it does not (PUL-09)."""
    script = Script(OrderedRules(pull_interval_ms=500))
    script.running_at(0)

    early = [*script.pulled(0), *script.tick(499)]
    on_time = script.tick(1)
    at_once = script.pulled(next_offset=1)

    assert not [each for each in early if isinstance(each, Pull)]
    assert [each.offset for each in on_time if isinstance(each, Pull)] == [1]
    assert [each.offset for each in at_once if isinstance(each, Pull)] == [1]


@pytest.mark.parametrize(
    ("limits", "ordered", "words"),
    [
        (FlowLimits(queue_count=2), True, "exceeds the threshold 2"),
        (FlowLimits(span=5), False, "span too long"),
    ],
)
def test_the_log_has_the_first_wait_and_each_thousandth(
    limits: FlowLimits, ordered: bool, words: str
) -> None:
    """Law: the log has the first wait and each thousandth one, with smallest and largest offset (FLW-02, LOG-03)."""
    cache = ProcessQueue()
    cache.put([message(offset) for offset in (0, 4, 8)])
    fetcher = Fetcher(QUEUE, 1, 9, cache)

    said = [
        fetcher.maybe_pull(now, limits, ordered=ordered, commit_offset=None, epoch=None)
        for now in range(2 * REPORT_EVERY + 1)
    ]

    reports = [each for part in said for each in part if isinstance(each, Report)]
    assert [each.text.rpartition("flowControlTimes=")[2] for each in reports] == [
        "1",
        "1001",
        "2001",
    ]
    assert {each.level for each in reports} == {"warning"}
    assert all(part in reports[0].text for part in (words, "minOffset=0", "maxOffset=8"))
    assert all(isinstance(each, Report) for part in said for each in part), "it pulled nevertheless"
