"""The headers of key lanes (codes 20512 to 20514). `body.lanes` has the bodies; docs/explanation/lanes.md explains what they mean."""

from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.header.declaration import Header, request_header
from orderlymq_protocol.integers import Int, Long


@request_header(RequestCode.ORDERLYMQ_FETCH_LANES)
class FetchLanesHeader(Header):
    """A member's request for lanes of a topic, over all of its queues on this broker.

    `sequence` numbers the member's fetches of the topic: a repeat of a fetch whose answer was lost gets the same attempts.
    """

    consumer_group: str
    topic: str
    client_id: str
    sequence: Long
    max_lanes: Int
    max_per_lane: Int = 1
    max_bytes: Int | None = None
    lease_millis: Int | None = None
    suspend_timeout_millis: Long = 0
    sub_version: Long = 0


@request_header(RequestCode.ORDERLYMQ_COMPLETE_LANES)
class CompleteLanesHeader(Header):
    """A member's report about attempts; the body is `LaneReports`."""

    consumer_group: str
    topic: str
    client_id: str


@request_header(RequestCode.ORDERLYMQ_LANES)
class LanesHeader(Header):
    """State of a consumer group's lanes, over all topics without `topic`. With `key`, only the lanes of that key are listed."""

    consumer_group: str
    topic: str | None = None
    key: str | None = None
