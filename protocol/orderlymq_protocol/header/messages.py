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
    """Messages by key in a span of store times (ms); `unique_key_query` asks for UNIQ_KEY instead."""

    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long
    unique_key_query: bool = field(default=False, metadata=wire_name("_UNIQUE_KEY_QUERY"))


@request_header(RequestCode.ORDERLYMQ_APPEND_COPIES)
class AppendCopiesHeader(Header):
    """Stored records of this queue in another cluster; the body holds them one after the other."""

    topic: str
    queue_id: Int


@response_header(RequestCode.QUERY_MESSAGE)
class QueryMessageResponseHeader(Header):
    """How far the index reaches."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


@request_header(RequestCode.QUERY_CONSUMER_OFFSET)
class QueryConsumerOffsetHeader(Header):
    """The committed offset of a group in a queue."""

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


@request_header(RequestCode.GET_MAX_OFFSET)
class GetMaxOffsetHeader(Header):
    """The offset that the next message will get."""

    topic: str
    queue_id: Int
    committed: bool | None = None


@request_header(RequestCode.GET_MIN_OFFSET)
class GetMinOffsetHeader(Header):
    """The oldest offset that is still there."""

    topic: str
    queue_id: Int


@response_header(
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
)
class OffsetResponseHeader(Header):
    """One offset: the answer to 14, 29, 30 and 31."""

    offset: Long


@request_header(RequestCode.GET_EARLIEST_MSG_STORETIME)
class GetEarliestMsgStoretimeHeader(Header):
    """The store time of a queue's oldest message."""

    topic: str
    queue_id: Int


@response_header(RequestCode.GET_EARLIEST_MSG_STORETIME)
class GetEarliestMsgStoretimeResponseHeader(Header):
    """Milliseconds, -1 for an empty queue."""

    timestamp: Long


@request_header(RequestCode.VIEW_MESSAGE_BY_ID)
class ViewMessageHeader(Header):
    """The message at a physical offset."""

    offset: Long
    topic: str | None = None
