"""The output of Java programs, as events of the history. Pure, except that it reads their logs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from orderlymq.oracle.verdict import Kind
from tests.nemesis.cluster import TOPIC
from tests.nemesis.invariants.transactions import DEALS, Step

Facts = dict[str, str | int]


def traffic_of(log: Path, process: str, group: str) -> Iterator[tuple[int, Kind, Facts]]:
    """Yield time, kind and fields of each event of an ordinary producer or a consumer."""
    for line in _objects(log):
        fields = event_of(line, process, group)
        if fields is None:
            continue
        kind, attributes = fields
        yield line["at"], kind, attributes
        if line["event"] == "failed":
            # The program tries again; the outcome is only known if the program reports it.
            yield line["at"] + 1, Kind.SEND, {**attributes, "detail": "again"}


def deals_of(log: Path, process: str) -> Iterator[tuple[int, Kind, Facts]]:
    """Yield time, kind and fields of each event of a producer of transactions."""
    for line in _objects(log):
        fields = deal_of(line)
        if fields is not None:
            yield line["at"], *fields


def _objects(log: Path) -> Iterator[dict[str, Any]]:
    if not log.exists():
        return
    for line in log.read_bytes().split(b"\n"):
        # Libraries print other lines, too; the last line may be cut off by a SIGKILL.
        if line.startswith(b"{") and line.endswith(b"}"):
            yield orjson.loads(line)


_LISTENED: Final = {"deliver": Kind.DELIVER, "done": Kind.DONE, "fail": Kind.FAILED}


def event_of(line: dict[str, Any], process: str, group: str) -> tuple[Kind, Facts] | None:
    """Return kind and fields of a line that a Java program has printed; None if it is not an event."""
    kind = line["event"]
    if kind in _LISTENED:
        return _LISTENED[kind], {
            "topic": line["topic"],
            "message": line["body"],
            "queue": line["queue"],
            "offset": line["offset"],
            "group": group,
            "client": process,
        }
    if kind not in ("send", "ack", "failed"):
        return None
    sent: Facts = {
        "topic": TOPIC,
        "key": f"{process}/{line['key']}",
        "message": f"{process}/{line['key']}:{line['body']}",
    }
    if kind == "send":
        return Kind.SEND, sent
    if kind == "ack":
        return Kind.ACK, {**sent, "queue": line["queue"], "offset": line["offset"]}
    # A send with a selector is one attempt: an answer of the broker is definite, any other failure is not.
    definite = "MQBrokerException" in line["text"]
    return (Kind.REFUSED if definite else Kind.UNKNOWN), {**sent, "detail": line["text"][:200]}


#: Java's names for the outcome of a local transaction.
_STATES: Final = {
    "COMMIT_MESSAGE": Step.COMMIT,
    "ROLLBACK_MESSAGE": Step.ROLLBACK,
    "UNKNOW": Step.UNKNOWN,
}


def deal_of(line: dict[str, Any]) -> tuple[Kind, Facts] | None:
    """Return kind and fields of a step of a transaction; None if the line is not a step."""
    kind = line["event"]
    facts: Facts = {"topic": DEALS, "message": line.get("body", "")}
    if kind == "begin":
        return Kind.SEND, facts
    if kind == "failed":
        # The client tries several times; the refusal of the last try says nothing about the others.
        return Kind.UNKNOWN, {**facts, "detail": line["text"][:200]}
    if kind == "stored":
        return Kind.NOTED, {**facts, "detail": Step.HALF.value}
    if kind == "decided":
        return Kind.NOTED, {**facts, "detail": _STATES[line["state"]].value}
    if kind == "check":
        return Kind.NOTED, {**facts, "detail": Step(f"checked {line['answer']}").value}
    return None
