"""
The duplicate window: sends to ordered topics, from which a repeat is answered.

The rules: the first result of an identity stays until the window moves past it. Records of the leader
(``DedupTrimmed``) move the window, because its limits depend on settings and a clock, and replicas must agree. A
message that is taken back leaves the window, because its repeat would otherwise get the place of a message that does
not exist. The time of a cancellation stays, so that a try that was on its way then is distinguished from a later
send. An identity consists of topic, reconsume times, body checksum, UNIQ_KEY, and a hash of queue and properties.
Java and Go give a Message object its key once. So a program that sends one object twice, with another body or tag or
to another queue, means two messages. Copies that the broker puts where messages of several topics meet also have an
origin.
"""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from itertools import repeat, takewhile
from struct import Struct
from typing import Any, Final

import msgspec

from orderlymq_broker.state.records import Append, Trimmed
from orderlymq_broker.state.send.firstsend import FirstSend
from orderlymq_broker.state.tables import read_pairs
from orderlymq_broker.store.kv import Batch, Family, Reader
from orderlymq_broker.store.layout import decode_u64, dedup_key
from orderlymq_protocol.message import properties as known
from orderlymq_protocol.names import TOPIC_LENGTH_MAX

# Keys of clients have 32 or 56 characters; the window must not hold 100 000 texts of 32 KiB.
UNIQUE_KEY_LENGTH_MAX: Final = 255

# Properties that client libraries or brokers write again at each try: if they counted, another try would be stored again.
_LIBRARY_NAMES: Final = frozenset(
    {
        *(known.UNIQ_KEY, known.WAIT, known.TRAN_MSG, known.INSTANCE_ID, known.TRANSACTION_ID),
        *(known.RETRY_TOPIC, known.ORIGIN_MESSAGE_ID, known.REAL_TOPIC, known.REAL_QID),
        *(known.RECONSUME_TIME, known.MAX_RECONSUME_TIMES, known.CONSUME_START_TIME),
        *(
            known.MIN_OFFSET,
            known.MAX_OFFSET,
            known.CLUSTER,
            known.MSG_REGION,
            known.TRACE_ON,
            known.HELD_BEHIND,
            known.BODY_CHECKSUMS,
        ),
    }
)
# The same for tracers: W3C and the other propagators of OpenTelemetry, which the SDK may use, and SkyWalking.
_TRACER_NAMES: Final = re.compile(
    "traceparent|tracestate|baggage|b3|x-b3-.*|uber-trace-id|uberctx-.*|x-amzn-trace-id|ot-(tracer|baggage)-.*|sw8.*",
    re.IGNORECASE | re.DOTALL,
)
_CHECKSUMS: Final = re.compile("([0-9a-f]{8}),([0-9a-f]{8})")
# Programs use a few dozen names; hostile ones are long.
_NAME_CACHE_SIZE: Final = 256

_IDENTITY: Final = Struct(">IiI")
_TOPIC_ID: Final = Struct(">I")
_SEPARATOR: Final = b"\x01"
_VALUE: Final = Struct(">iQQ")
_END: Final = b"\xff" * 9
# Rows that are removed as one range: a single deletion takes 1 us, and a reader visits all ranges of unwritten entries.
_RANGE_MIN: Final = 64
# Replaces the queue of a send that was cancelled; the time is then in the place of the offset.
_CANCELLED: Final = -1


def send_identity(
    topic_id: int,
    unique_key: str,
    reconsume_times: int,
    body_crc: int,
    said: Mapping[str, str],
    queue_id: int | None,
) -> bytes:
    """Return the identity of a send; empty if its key is missing, too long, or contains the separator.

    *said* are its properties, without those that libraries write. If they give the checksum of a body before it was
    deflated, that checksum counts, because the same message in a batch is not deflated. *queue_id* is the queue that
    the sender names; a sharding key replaces it. It is None for a copy of a failed message, whose next try may name
    any queue and delay.
    """
    if not 0 < len(unique_key) <= UNIQUE_KEY_LENGTH_MAX or known.NAME_VALUE_SEPARATOR in unique_key:
        return b""
    place = "" if queue_id is None or known.SHARDING_KEY in said else str(queue_id)
    counted = sorted([f"{name}\x01{value}" for name, value in said.items() if _counts(name)])
    if queue_id is None and known.DELAY in said:
        counted.remove(f"{known.DELAY}\x01{said[known.DELAY]}")
    if known.BODY_CHECKSUMS in said:
        body_crc = _plain_crc(said[known.BODY_CHECKSUMS], body_crc)
    text = "\x02".join((place, *counted))
    # Hexadecimal, because it must not contain the separator of ``with_origin``.
    digest = blake2b(text.encode(), digest_size=8).hexdigest()

    return _IDENTITY.pack(topic_id, reconsume_times, body_crc) + f"{unique_key}{digest}".encode()


def _plain_crc(checksums: str, sent_crc: int) -> int:
    """Return the checksum of a body before it was deflated, or *sent_crc* if the checksums belong to another body."""
    # If they do not match, they were copied with the properties, or are no checksums.
    found = _CHECKSUMS.fullmatch(checksums)

    return int(found[1], 16) if found is not None and int(found[2], 16) == sent_crc else sent_crc


@lru_cache(_NAME_CACHE_SIZE)
def _counts(name: str) -> bool:
    return name not in _LIBRARY_NAMES and _TRACER_NAMES.fullmatch(name) is None


def with_origin(identity: bytes, *origin: str) -> bytes:
    """Return the identity of a copy that is also distinguished by its origin; an empty identity stays empty."""
    return identity and _SEPARATOR.join((identity, *(each.encode() for each in origin)))


def origin_of(said: Mapping[str, str]) -> str:
    """Return the topic from which a failed message with these properties comes; empty if it cannot be a topic's name."""
    topic = said.get(known.RETRY_TOPIC, "")
    names_one = len(topic) <= TOPIC_LENGTH_MAX and known.NAME_VALUE_SEPARATOR not in topic

    return topic if names_one else ""


def _copy_of(identity: bytes) -> tuple[bytes, bytes] | None:
    """Return the topic id of a copy and its first origin, or None for a message that is not a copy."""
    parts = identity[_IDENTITY.size :].split(_SEPARATOR, 2)
    return None if len(parts) == 1 else (identity[: _TOPIC_ID.size], parts[1])


class DedupWindow:
    """Known sends and their order; the leader's ``DedupTrimmed`` limits their number and age.

    Attributes:
        sends: the first send of each identity.
    """

    def __init__(self, reader: Reader) -> None:
        self.sends: dict[bytes, FirstSend] = {}
        self._order: dict[int, bytes] = {}  # identities by physical offset, the oldest first
        # Physical offsets of copies by topic and origin, so that the removal of copies visits no other sends.
        self._copies: dict[bytes, dict[bytes, dict[int, None]]] = {}
        for key, value in read_pairs(reader, Family.DEDUP, b"", _END):
            physical = decode_u64(key)
            queue_id, number, store_timestamp = _VALUE.unpack_from(value)
            first = FirstSend(queue_id, number, physical, store_timestamp)
            if queue_id == _CANCELLED:
                first = FirstSend(_CANCELLED, 0, physical, store_timestamp, number)
            self._enter(value[_VALUE.size :], first)

    def __len__(self) -> int:
        return len(self.sends)

    def add(self, record: Append, batch: Batch) -> None:
        """Add a send; a second one with the same identity changes nothing, unless the first was cancelled."""
        identity = record.identity
        present = self.sends.get(identity)
        if present is not None:
            if not present.cancelled_ms:
                return
            self.forget(present.physical, batch)
        self._enter(
            identity,
            FirstSend(
                record.reply_queue, record.queue_offset, record.physical, record.store_timestamp
            ),
        )
        value = _VALUE.pack(record.reply_queue, record.queue_offset, record.store_timestamp)
        batch.put(Family.DEDUP, dedup_key(record.physical), value + identity)

    def floor(self, *, count_max: int, oldest_ms: int, most: int) -> tuple[int, bool]:
        """Return the physical offset below which to remove at most *most* sends, 0 if none, and whether these are all."""
        surplus = len(self._order) - count_max
        floor = 0
        for number, (physical, identity) in enumerate(self._order.items()):
            if number >= surplus and self.sends[identity].store_timestamp >= oldest_ms:
                break
            if number == most:
                return floor, False
            floor = physical + 1

        return floor, True

    def trim(self, floor: int, batch: Batch) -> Trimmed:
        """Remove the sends below *floor*."""
        gone = list(takewhile(floor.__gt__, self._order))
        for physical in gone:
            self._leave(physical)
        if gone:
            batch.delete_range(Family.DEDUP, b"", dedup_key(floor))

        return Trimmed(len(gone))

    def forget(self, physical: int, batch: Batch) -> None:
        """Remove the send at *physical*, if it is known, because it was taken back."""
        if physical in self._order:
            self._leave(physical)
            batch.delete(Family.DEDUP, dedup_key(physical))

    def cancel(self, physical: int, wall_ms: int, batch: Batch) -> None:
        """Note that the send at *physical*, if it is known, was cancelled at *wall_ms*."""
        identity = self._order.get(physical)
        if identity is not None:
            stored_ms = self.sends[identity].store_timestamp
            self.sends[identity] = FirstSend(_CANCELLED, 0, physical, stored_ms, wall_ms)
            value = _VALUE.pack(_CANCELLED, wall_ms, stored_ms)
            batch.put(Family.DEDUP, dedup_key(physical), value + identity)

    def forget_copies(self, origins: Mapping[int, Collection[str]], batch: Batch) -> None:
        """Remove copies of failed messages; *origins* maps the id of their topic to the topics of origin, "" for all.

        They may be the whole window, and are removed in one turn of the event loop.
        """
        gone: list[int] = []
        for topic_id, names in origins.items():
            topic = _TOPIC_ID.pack(topic_id)
            of_topic = self._copies.get(topic, {})
            for origin in list(of_topic) if "" in names else [name.encode() for name in names]:
                gone += of_topic.pop(origin, ())
            if not of_topic:
                self._copies.pop(topic, None)
        for identity in map(self._order.pop, gone):
            del self.sends[identity]
        if len(gone) < _RANGE_MIN:
            self._delete(gone, batch)
        else:
            self._delete_runs(sorted(gone), batch)

    def _delete_runs(self, gone: list[int], batch: Batch) -> None:
        """Remove the rows of removed sends; neighbours with no remaining row between them are removed as one range."""
        kept = list(self._order)
        alone: list[int] = []
        runs: dict[int, tuple[int, int]] = {}  # by the number of remaining rows before them
        for start in range(0, len(gone), _RANGE_MIN):
            part = gone[start : start + _RANGE_MIN]
            before = bisect_left(kept, part[0])
            if before == bisect_left(kept, part[-1]):
                runs[before] = runs.get(before, part)[0], part[-1]
            else:
                alone += part
        for first, last in runs.values():
            batch.delete_range(Family.DEDUP, dedup_key(first), dedup_key(last + 1))
        self._delete(alone, batch)

    @staticmethod
    def _delete(gone: list[int], batch: Batch) -> None:
        # One call for each row of a full window took a tenth of a second.
        batch.puts.extend(zip(repeat(Family.DEDUP), map(dedup_key, gone), repeat(None)))

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield sends for the digest."""
        for physical, identity in self._order.items():
            yield (physical, identity, *msgspec.structs.astuple(self.sends[identity]))

    def check(self) -> None:
        """Assert the invariants."""
        assert len(self.sends) == len(self._order), "an identity is in the window twice"
        places = list(self._order)
        assert places == sorted(places), "the window is out of order"
        known = {
            physical: (topic, origin)
            for topic, origins in self._copies.items()
            for origin, copies in origins.items()
            for physical in copies
        }
        found = ((physical, _copy_of(identity)) for physical, identity in self._order.items())
        copies = {physical: copy for physical, copy in found if copy is not None}
        assert known == copies, "the index of the window's copies differs from the window"

    def _enter(self, identity: bytes, first: FirstSend) -> None:
        self.sends[identity] = first
        self._order[first.physical] = identity
        copy = _copy_of(identity)
        if copy is not None:
            topic, origin = copy
            self._copies.setdefault(topic, {}).setdefault(origin, {})[first.physical] = None

    def _leave(self, physical: int) -> None:
        identity = self._order.pop(physical)
        del self.sends[identity]
        copy = _copy_of(identity)
        if copy is not None:
            topic, origin = copy
            origins = self._copies[topic]
            del origins[origin][physical]
            if not origins[origin]:
                del origins[origin]
                if not origins:
                    del self._copies[topic]
