"""
The headers of a pull (codes 11, 361) and of an offset commit (15).

Hot path: a consumer that keeps up sends one of each per message, so they have straight-line readers.
A header that these cannot read goes to the slow reader, which says what is wrong.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final

from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.header.declaration import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    Header,
    register,
)
from orderlymq_protocol.integers import INT32_MAX, INT32_MIN, Int, Long, read_integer

# Packing is the cheapest way to find out whether all numbers fit their Java types.
_PULL_RANGES: Final = Struct(">iqiiqqq")
_COMMIT_RANGES: Final = Struct(">iq")


# Not frozen, and with a reader of its own, because a consumer that keeps up pulls once per message.
@dataclass(slots=True)
class PullMessageHeader(Header):
    """A pull (11) or lite pull (361); `sys_flag` holds the PULL_ bits of `sysflag`.

    Java writes all fields up to `sub_version`; RocketMQ's broker accepts a pull without those that are 0 here.
    """

    consumer_group: str
    topic: str
    queue_id: Int
    queue_offset: Long
    max_msg_nums: Int
    sys_flag: Int
    commit_offset: Long = 0
    suspend_timeout_millis: Long = 0
    sub_version: Long = 0
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int | None = None

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> "PullMessageHeader":
        """Read the header.

        Raises:
            HeaderError: A required field is missing, or a number is malformed or too large for its type.
        """
        get = ext.get
        try:
            # Signs, and texts that Java does not accept as numbers, are left to the slow reader.
            if not (
                ext["queueId"]
                + ext["queueOffset"]
                + ext["maxMsgNums"]
                + ext["sysFlag"]
                + ext["commitOffset"]
                + ext["suspendTimeoutMillis"]
                + ext["subVersion"]
            ).isdecimal():
                raise ValueError
            queue_id, queue_offset = int(ext["queueId"]), int(ext["queueOffset"])
            max_msg_nums, sys_flag = int(ext["maxMsgNums"]), int(ext["sysFlag"])
            commit_offset = int(ext["commitOffset"])
            suspend_timeout_millis = int(ext["suspendTimeoutMillis"])
            sub_version = int(ext["subVersion"])
            _PULL_RANGES.pack(
                queue_id,
                queue_offset,
                max_msg_nums,
                sys_flag,
                commit_offset,
                suspend_timeout_millis,
                sub_version,
            )
            max_msg_bytes = get("maxMsgBytes")
            return cls(
                ext["consumerGroup"],
                ext["topic"],
                queue_id,
                queue_offset,
                max_msg_nums,
                sys_flag,
                commit_offset,
                suspend_timeout_millis,
                sub_version,
                get("subscription"),
                get("expressionType"),
                None
                if max_msg_bytes is None
                else read_integer(max_msg_bytes, INT32_MIN, INT32_MAX),
            )
        except (KeyError, ValueError, struct.error):
            # The slow reader below accepts fields that may be absent; otherwise it raises with the name of the field.
            pass
        return super(PullMessageHeader, cls).from_ext(ext)


register(
    PullMessageHeader,
    "request",
    (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE),
    REQUEST_HEADERS,
)


@dataclass(slots=True)
class PullMessageResponseHeader(Header):
    """Where to pull next and from which replica, and the range of the queue."""

    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long

    def to_ext(self) -> dict[str, str]:
        """Return the fields as text."""
        return {
            "suggestWhichBrokerId": str(self.suggest_which_broker_id),
            "nextBeginOffset": str(self.next_begin_offset),
            "minOffset": str(self.min_offset),
            "maxOffset": str(self.max_offset),
        }


register(
    PullMessageResponseHeader,
    "response",
    (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE),
    RESPONSE_HEADERS,
)


@dataclass(frozen=True, slots=True)
class UpdateConsumerOffsetHeader(Header):
    """Commit the offset of a consumer group in a queue."""

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> "UpdateConsumerOffsetHeader":
        """Read the header.

        Raises:
            HeaderError: A field is missing, or a number is malformed or too large for its type.
        """
        try:
            if not (ext["queueId"] + ext["commitOffset"]).isdecimal():
                raise ValueError
            queue_id, commit_offset = int(ext["queueId"]), int(ext["commitOffset"])
            _COMMIT_RANGES.pack(queue_id, commit_offset)
            return cls(ext["consumerGroup"], ext["topic"], queue_id, commit_offset)
        except (KeyError, ValueError, struct.error):
            # The slow reader below raises with the name of the field.
            pass
        return super(UpdateConsumerOffsetHeader, cls).from_ext(ext)


register(
    UpdateConsumerOffsetHeader, "request", (RequestCode.UPDATE_CONSUMER_OFFSET,), REQUEST_HEADERS
)
