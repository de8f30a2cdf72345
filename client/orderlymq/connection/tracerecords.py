r"""
Records of message traces: the form of a send or a listener call of one message in the trace topic.

The body of a trace message holds records; fields end with \x01 and records with \x02 (RocketMQ TraceDataEncoder).
Rule: a record of an unknown kind or length is skipped, because clients of many versions write to one topic. `life`
sorts the records about one message by time. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from orderlymq_protocol.integers import read_integer

FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"
MESSAGE_TYPES: Final = ("Normal", "TransactionHalf", "TransactionCommit", "Delay")
CONTEXT_CODES: Final = ("SUCCESS", "TIME_OUT", "EXCEPTION", "RETURNNULL", "FAILED")


@dataclass(frozen=True, slots=True)
class Published:
    """A producer has sent a message (or given up); *at_ms* is the start of the send."""

    at_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    body_length: int = 0
    cost_ms: int = 0
    message_type: str = MESSAGE_TYPES[0]
    offset_message_id: str = ""
    success: bool = True


@dataclass(frozen=True, slots=True)
class ConsumeBegan:
    """A consumer has handed a message to its listener; *retry_times* counts earlier deliveries."""

    at_ms: int
    region: str
    group: str
    request_id: str
    message_id: str
    retry_times: int = 0
    keys: str = ""


@dataclass(frozen=True, slots=True)
class ConsumeEnded:
    """The listener has returned; *at_ms* is 0 if the client did not write it."""

    request_id: str
    message_id: str
    cost_ms: int = 0
    success: bool = True
    keys: str = ""
    outcome: str = CONTEXT_CODES[0]
    at_ms: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """A producer has decided about a half message, perhaps because a broker has asked."""

    at_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    state: str
    from_check: bool = False


Trace: TypeAlias = Published | ConsumeBegan | ConsumeEnded | TransactionEnded


def parse_traces(body: bytes) -> list[Trace]:
    """Return the records of one trace message, in its order, without malformed ones."""
    found: list[Trace] = []
    for text in body.decode(errors="replace").split(RECORD_END):
        fields = text.split(FIELD_END)
        try:
            trace = _parse(fields)
        except (ValueError, IndexError):
            continue
        if trace is not None:
            found.append(trace)
    return found


def encode_traces(traces: Iterable[Published | ConsumeBegan | ConsumeEnded]) -> bytes:
    """Return the body of a trace message in the form of RocketMQ 4.9's clients."""
    return "".join(FIELD_END.join(_fields(trace)) + RECORD_END for trace in traces).encode()


def life(traces: Iterable[Trace], message_id: str) -> list[Trace]:
    """Return the records about one message, oldest first; an end comes after its beginning."""
    about = [
        trace
        for trace in dict.fromkeys(traces)
        if trace.message_id == message_id
        or (isinstance(trace, Published) and trace.offset_message_id == message_id)
    ]
    began = {trace.request_id: trace for trace in about if isinstance(trace, ConsumeBegan)}

    def when(trace: Trace) -> tuple[int, int]:
        if not isinstance(trace, ConsumeEnded):
            return (trace.at_ms, 0)
        start = began.get(trace.request_id)
        return ((start.at_ms if start is not None else trace.at_ms) + trace.cost_ms, 1)

    return sorted(about, key=when)


def _parse(fields: Sequence[str]) -> Trace | None:
    """Return one record from its fields; fields that old clients leave out get defaults."""
    match fields[0]:
        case "Pub":
            return _published(fields)
        case "SubBefore":
            return ConsumeBegan(
                at_ms=read_integer(fields[1]),
                region=fields[2],
                group=fields[3],
                request_id=fields[4],
                message_id=fields[5],
                retry_times=read_integer(fields[6]),
                keys=_field(fields, 7),
            )
        case "SubAfter":
            return ConsumeEnded(
                request_id=fields[1],
                message_id=fields[2],
                cost_ms=read_integer(fields[3]),
                success=fields[4] == "true",
                keys=fields[5],
                outcome=CONTEXT_CODES[read_integer(_field(fields, 6) or "0", 0)],
                at_ms=read_integer(_field(fields, 7) or "0"),
                group=_field(fields, 8),
            )
        case "EndTransaction":
            return TransactionEnded(
                at_ms=read_integer(fields[1]),
                region=fields[2],
                group=fields[3],
                topic=fields[4],
                message_id=fields[5],
                state=fields[11],
                from_check=fields[12] == "true",
            )
        case _:
            return None


def _published(fields: Sequence[str]) -> Published:
    # The first clients wrote no offset id; even earlier ones wrote no field for the outcome.
    has_offset_id = len(fields) > 13
    return Published(
        at_ms=read_integer(fields[1]),
        region=fields[2],
        group=fields[3],
        topic=fields[4],
        message_id=fields[5],
        tags=fields[6],
        keys=fields[7],
        store_host=fields[8],
        body_length=read_integer(fields[9]),
        cost_ms=read_integer(fields[10]),
        message_type=MESSAGE_TYPES[read_integer(fields[11], 0)],
        offset_message_id=fields[12] if has_offset_id else "",
        success=_field(fields, 13 if has_offset_id else 12) == "true",
    )


def _field(fields: Sequence[str], index: int) -> str:
    return fields[index] if index < len(fields) else ""


def _fields(trace: Published | ConsumeBegan | ConsumeEnded) -> list[str]:
    match trace:
        case Published():
            return [
                *("Pub", str(trace.at_ms), trace.region, trace.group, trace.topic),
                *(trace.message_id, trace.tags, trace.keys, trace.store_host),
                *(str(trace.body_length), str(trace.cost_ms)),
                str(MESSAGE_TYPES.index(trace.message_type)),
                *(trace.offset_message_id, str(trace.success).lower()),
            ]
        case ConsumeBegan():
            return [
                *("SubBefore", str(trace.at_ms), trace.region, trace.group, trace.request_id),
                *(trace.message_id, str(trace.retry_times), trace.keys),
            ]
        case ConsumeEnded():
            return [
                *("SubAfter", trace.request_id, trace.message_id, str(trace.cost_ms)),
                *(str(trace.success).lower(), trace.keys),
                str(CONTEXT_CODES.index(trace.outcome)),
                *(str(trace.at_ms), trace.group),
            ]
