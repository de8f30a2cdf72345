"""
Bodies of the answers that only OrderlyMQ's brokers give, as an administrator reads them.

Rule: a body of another shape is refused as a whole, with the same error as any other malformed body.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orderlymq_protocol.body.clients import SubscriptionData
from orderlymq_protocol.body.declaration import JsonModel
from orderlymq_protocol.integers import Int, Long


@dataclass(frozen=True, slots=True)
class LockRow(JsonModel):
    """A held lock of a queue (20501)."""

    consumer_group: str
    topic: str
    broker_name: str
    queue_id: Int
    client_id: str
    epoch: Long
    address: str = ""
    lease_millis: Long = 0
    held_since_millis: Long = 0
    connected: bool | None = None
    wanted_by: str = ""


@dataclass(frozen=True, slots=True)
class LockTable(JsonModel):
    """Locks of one broker group."""

    locks: tuple[LockRow, ...] = ()


@dataclass(frozen=True, slots=True)
class ParkedRow(JsonModel):
    """A key that waits behind a dead letter (20510, 20511)."""

    topic: str
    broker_name: str
    queue_id: Int
    key: str
    since_millis: Long
    first_offset: Long
    first_message_id: str
    behind: Long


@dataclass(frozen=True, slots=True)
class ParkedTable(JsonModel):
    """Parked keys of one broker group."""

    parked_keys: tuple[ParkedRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Expansions(JsonModel):
    """Queue expansions of topics; each holds its topic's name as *topic*."""

    topics: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Subscription(JsonModel):
    """The subscription of a consumer group's members to a topic; RocketMQ's body."""

    subscription_data: SubscriptionData | None = None
