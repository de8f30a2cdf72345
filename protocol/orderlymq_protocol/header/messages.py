"""The headers of requests about messages and offsets."""

from dataclasses import field

from orderlymq_protocol.body.declaration import wire_name
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.header.declaration import (
    Header,
    request_header,
    response_header,
)
from orderlymq_protocol.integers import Int, Long


@request_header(RequestCode.QUERY_MESSAGE)
class QueryMessageHeader(Header):
    """Messages by key in a span of store times (ms); with `unique_key_query` by UNIQ_KEY instead."""

    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long
    unique_key_query: bool = field(default=False, metadata=wire_name("_UNIQUE_KEY_QUERY"))


@request_header(
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
)
class QueueHeader(Header):
    """A queue and nothing else: 31, 32. 30 may also say which end it means."""

    topic: str
    queue_id: Int
    committed: bool | None = None


@request_header(RequestCode.ORDERLYMQ_APPEND_COPIES)
class AppendCopiesHeader(Header):
    """The queue of copies (20515). With `begins`, a queue that never had a message begins at the first copy, otherwise at 0."""

    topic: str
    queue_id: Int
    begins: bool = False


@request_header(RequestCode.QUERY_CONSUMER_OFFSET)
class QueryConsumerOffsetHeader(Header):
    """The committed offset of a consumer group in a queue."""

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None


@request_header(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
class SearchOffsetHeader(Header):
    """The offset nearest to a store time (ms); `boundary_type` is LOWER or UPPER."""

    topic: str
    queue_id: Int
    timestamp: Long
    boundary_type: str | None = None


@response_header(
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
)
class OffsetResponseHeader(Header):
    """One offset: the answer to 14, 29, 30 and 31."""

    offset: Long


@request_header(RequestCode.VIEW_MESSAGE_BY_ID)
class ViewMessageHeader(Header):
    """The message at a physical offset."""

    offset: Long
    topic: str | None = None
