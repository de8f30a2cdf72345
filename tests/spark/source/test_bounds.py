"""Where reads begin and end by times, against a real broker, without Spark."""

import json

import pytest

from orderlymq.message import Message
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.errors import OptionError
from orderlymq_spark.offsets import to_json
from orderlymq_spark.options import parse_source
from orderlymq_spark.source.bounds import chosen_queues, resolve
from tests.spark.topics import Topics

pytestmark = [pytest.mark.cluster]


def test_each_queue_begins_and_ends_at_a_time_of_its_own(topics: Topics) -> None:
    """The first message stored then or later; a queue without a time whole; one without such a message by strategy."""
    topic = topics.make(queues=3, ordered=False)
    for number in range(30):
        topics.fill(topic, [Message(topic=topic, body=b"x")], number % 3)
    stored = {
        queue: [message.store_timestamp for message in messages]
        for queue, messages in sorted(topics.read(topic).items())
    }
    first, second, third = stored
    times = {first: stored[first][4], second: stored[second][7]}

    def bounds(side: str, **more: str) -> list[int]:
        given = {"bootstrap": topics.bootstrap, "topic": topic, **more}
        options = parse_source({f"{side}OffsetsByTimestamp": json.dumps(to_json(times)), **given})
        access = access_to(options.connect)
        bound = options.start if side == "starting" else options.end
        found = resolve(access, options, bound, side, chosen_queues(access, options))
        return [found[queue] for queue in (first, second, third)]

    # Several messages may have been stored in one millisecond.
    expected = [stored[queue].index(moment) for queue, moment in times.items()]
    assert bounds("starting") == [*expected, 0]
    assert bounds("ending") == [*expected, 10]
    times[first] = stored[first][-1] + 1
    assert bounds("ending")[0] == 10
    assert bounds("starting", startingTimestampStrategy="latest")[0] == 10
    with pytest.raises(OptionError, match="has no message that was stored then or later"):
        bounds("starting")
    del times[first]
    times[first._replace(queue_id=9)] = 1
    with pytest.raises(OptionError, match="startingOffsetsByTimestamp names"):
        bounds("starting")
