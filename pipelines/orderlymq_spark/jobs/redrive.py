"""
Pipeline redrive: sends dead letters back to their topic, per key in origin order.

Rules of the plan: letters of a key are in the order of their origins. If a letter was overtaken, or no message of its
topic has the same content, the spec decides whether it is sent, skipped, or holds its whole key. A letter that was
redriven too often stays. A plan is made once and then only carried out. Each letter has one identity in a topic,
in every plan, so neither a repeated run nor another plan sends it twice.

Rules of the runs: the first run makes the plan and writes it; without `send: true` that is all. A run that sends
carries out the written plan, item by item. Items that the journal or the brokers' index know are not sent again. A
key stops at its first failure, and its other items are held for the next run.
"""

import json
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from orderlymq.admin.messages import RESENDS, redriven, redrives_of
from orderlymq.blocking import Producer
from orderlymq.errors import BodyUnreadable, BrokerError, SendError, SettingError, TopicNotFound
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.names import dlq_topic
from orderlymq_spark.cluster.access import ClusterAccess, access_to
from orderlymq_spark.errors import DataLost, OptionError
from orderlymq_spark.jobs.deadletters import (
    DeadLetter,
    in_origin_order,
    letter_at,
    marked_letters,
    redriven_to,
)
from orderlymq_spark.locations.location import Location
from orderlymq_spark.run.checkpoint import Claim, hold_checkpoint
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.specs import RedriveSpec

_SHOWN: Final = 20
# Errors that concern one letter or its topic; any other error ends the run.
_REFUSED: Final = (
    SendError,
    TopicNotFound,
    BrokerError,
    SettingError,
    DataLost,
    BodyUnreadable,
)

Decision = Literal["send", "skip", "hold"]
Treatment: TypeAlias = Literal["skip", "send", "hold-key"]

_NOT_SENT: Final[Mapping[Treatment, Decision]] = {"skip": "skip", "hold-key": "hold"}
_DOUBTFUL: Final = (
    "its topic has no message with the same content: it has aged out, or a client forged the letter; check it, and set "
    "spec.onDoubtful: send"
)


@dataclass(frozen=True, slots=True)
class Item:
    """One dead letter in a plan.

    Attributes:
        identity: the unique key of its new message.
        reason: why it is not sent.
    """

    broker: str
    queue_id: int
    offset: int
    topic: str
    key: str | None
    identity: Annotated[str, Field(pattern=r"^[0-9A-F]{32}$")]
    decision: Decision
    reason: str = ""

    def letter_queue(self, group: str) -> MessageQueue:
        """Return the queue of the dead letter in a consumer group's dead letter topic."""
        return MessageQueue(dlq_topic(group), self.broker, self.queue_id)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a redrive."""

    plan_id: str
    group: str
    items: tuple[Item, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Plan":
        """Read a plan that `to_json` returned.

        Raises:
            OptionError: The value is not a plan.
        """
        try:
            return TypeAdapter(cls).validate_python(value)
        except ValidationError as error:
            raise OptionError(
                f"this is not a plan of a redrive: {error}; to make a plan, name a file that does not exist"
            ) from error


def run(name: str, spec: RedriveSpec, spark: SparkStarter) -> Outcome:
    """Make the plan, or carry it out.

    Raises:
        CheckpointInUse: As in `hold_checkpoint`, or another driver has started on the plan.
        OptionError: The plan in the file belongs to another consumer group.
    """
    access = access_to(spec.connect)
    with hold_checkpoint(spec.plan.parent / f"{spec.plan.name}.lock.d") as claim:
        plan = _plan(name, spec, access, spark, claim)
        if not spec.send:
            return _dry(spec, plan)
        return _carry_out(spec, plan, access, claim)


def _plan(
    name: str, spec: RedriveSpec, access: ClusterAccess, spark: SparkStarter, claim: Claim
) -> Plan:
    if spec.plan.exists():
        plan = Plan.from_json(json.loads(spec.plan.read_text()))
        if plan.group != spec.group:
            raise OptionError(
                f"{spec.plan} is a plan for the group {plan.group}; name another file"
            )
        return plan
    letters = marked_letters(access, spec.group, spark, spec.keys)
    by_topic: dict[str, list[DeadLetter]] = {}
    for letter in letters:
        by_topic.setdefault(spec.target or letter.topic, []).append(letter)
    sent = [redriven_to(access, topic, each) for topic, each in by_topic.items() if topic]
    claim.check()  # reading took time; another driver may own the plan now
    # The journal of a removed plan does not apply to this one.
    done = _journal(spec)
    for name_ in done.names():
        (done / name_).delete()
    plan = make_plan(
        f"{name}-{time.time_ns()}",
        spec.group,
        letters,
        target=spec.target,
        on_overtaken=spec.on_overtaken,
        on_doubtful=spec.on_doubtful,
        redrives_max=spec.max_redrives,
        sent=set().union(*sent),
    )
    spec.plan.write(json.dumps(plan.to_json(), indent=1))
    return plan


def _journal(spec: RedriveSpec) -> Location:
    return spec.plan.parent / f"{spec.plan.name}.done"


def _dry(spec: RedriveSpec, plan: Plan) -> Outcome:
    counts: Counter[str] = Counter(item.decision for item in plan.items)
    lines = [
        f"The plan {spec.plan}: {_say(counts) or 'no dead letters'}. Nothing was sent; set send: true to send."
    ]
    lines += _lines(plan.items)
    return Outcome("\n".join(lines), {"plan": str(spec.plan), **counts, "sent": 0})


def _lines(items: Sequence[Item]) -> list[str]:
    """Return the text about the first items."""
    return [
        f"  {item.decision:5} {item.topic} key {item.key} from {item.broker}:{item.queue_id}@{item.offset}"
        f"{': ' + item.reason if item.reason else ''}"
        for item in items[:_SHOWN]
    ]


def _carry_out(spec: RedriveSpec, plan: Plan, access: ClusterAccess, claim: Claim) -> Outcome:
    journal = Journal(_journal(spec))
    wanted = [item for item in plan.items if item.decision == "send"]
    outcomes: list[str] = []
    failures: list[str] = []
    stopped: set[tuple[str, str]] = set()
    with Producer(
        "orderlymq-redrive",
        spec.bootstrap,
        settings=RESENDS,
        client_settings=access.connect.settings(),
    ) as producer:
        for item in wanted:
            if item.key is not None and (item.topic, item.key) in stopped:
                outcomes.append("held")
                continue
            claim.check()
            try:
                outcomes.append(_send(item, spec.group, journal, access, producer))
            except _REFUSED as error:
                outcomes.append("failed")
                failures.append(f"{item.topic} key {item.key}: {error}")
                if item.key is not None:
                    stopped.add((item.topic, item.key))
            if spec.rate is not None and outcomes[-1] == "sent":
                time.sleep(1 / spec.rate)
    counts = Counter(outcomes)
    lines = [f"The plan {spec.plan}: {_say(counts) or 'nothing to send'}."]
    lines += failures[:_SHOWN]
    lines += _lines([item for item in plan.items if item.decision != "send"])
    data = {"plan": str(spec.plan), **counts, "failures": failures}
    return Outcome("\n".join(lines), data, passed=not failures)


def _send(
    item: Item,
    group: str,
    journal: "Journal",
    access: ClusterAccess,
    producer: Producer,
) -> str:
    """Send one letter unless it is already stored; return the outcome."""
    if item.identity in journal.done:
        return "done"
    # A run that died between the send and the journal entry has already stored this message.
    if access.is_stored(item.topic, item.identity):
        journal.note(item.identity)
        return "done"
    letter = letter_at(access, item.letter_queue(group), item.offset)
    if letter is None:
        raise DataLost(
            f"its dead letter {item.broker}:{item.queue_id}@{item.offset} no longer exists; for the other letters of the key, name "
            "another file for the plan"
        )
    if letter.unreadable:
        raise BodyUnreadable(letter.queue, letter.queue_offset, letter.unreadable)
    producer.send(redriven(letter, item.topic, item.identity))
    journal.note(item.identity)
    return "sent"


class Journal:
    """The completed steps of a plan: an empty file per identity, created before the next send."""

    def __init__(self, folder: Location) -> None:
        self._folder = folder
        self.done = set(folder.names())

    def note(self, identity: str) -> None:
        """Record an identity as done."""
        (self._folder / identity).create("")
        self.done.add(identity)


def _say(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{number} {word}" for word, number in counts.items())


# -- the plan


def make_plan(
    plan_id: str,
    group: str,
    letters: Sequence[DeadLetter],
    *,
    target: str | None,
    on_overtaken: Treatment,
    on_doubtful: Treatment = "hold-key",
    redrives_max: int,
    sent: Collection[str] = (),
) -> Plan:
    """Decide about every letter; if *target* is None, each keeps its own topic; *sent* has identities already stored."""
    items: list[Item] = []
    held: set[tuple[str, str]] = set()
    for letter in in_origin_order(letters):
        topic = target or letter.topic
        key = letter.key
        identity = letter.identity(topic)
        decision, reason = _decide(letter, topic, on_overtaken, redrives_max)
        if decision == "send" and letter.is_doubtful and target is None and on_doubtful != "send":
            decision, reason = _NOT_SENT[on_doubtful], _DOUBTFUL
        if identity in sent:
            decision, reason = "skip", "it was already redriven"
        if decision == "send" and key is not None and (topic, key) in held:
            decision, reason = "hold", "an earlier message of its key is held"
        if decision == "hold" and key is not None:
            held.add((topic, key))
        queue = letter.message.queue
        items.append(
            Item(
                queue.broker_name,
                queue.queue_id,
                letter.message.queue_offset,
                topic,
                key,
                identity,
                decision,
                reason,
            )
        )
    return Plan(plan_id, group, tuple(items))


def _decide(
    letter: DeadLetter, topic: str, on_overtaken: Treatment, redrives_max: int
) -> tuple[Decision, str]:
    if not topic:
        return "skip", "the letter does not name its topic; set spec.target"
    redrives = redrives_of(letter.message)
    if redrives >= redrives_max:
        return "hold", f"it was redriven {redrives} times already (maxRedrives)"
    # Without its origin this is unknown; without a key no message can overtake it.
    unknown = letter.overtaken is None and letter.key is not None
    if (letter.overtaken or unknown) and on_overtaken != "send":
        if unknown:
            return (
                _NOT_SENT[on_overtaken],
                "its origin has aged out, so a later message of its key may be consumed",
            )
        return _NOT_SENT[on_overtaken], "a later message of its key was consumed"
    return "send", ""
