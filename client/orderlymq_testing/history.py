"""
The history of a test for the oracle: what its producers sent and its ordered listeners did.

Rules: topics and groups have the names that brokers know, with their namespace. Only known facts are recorded.
Deliveries to concurrent consumers are left out, because these promise no order. Sends of messages with a delivery time
are left out, because such a message gets its place in the queue only at that time. Messages that administrators delete
or pass over, and messages that a group does not select, are recorded as settled.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

from orderlymq.consumer.listeners.context import ConsumeContext, LaneContext
from orderlymq.errors import SendRefused
from orderlymq.message import Message, ReceivedMessage, SendResult
from orderlymq.oracle.verdict import Event, Kind
from orderlymq_protocol.body.catalogue import EXPRESSION_TAG, SubscriptionData
from orderlymq_protocol.body.lanes import KEY_LENGTH_SHOWN
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.ids import decode_offset_message_id
from orderlymq_protocol.plurals import counted

_Sending: TypeAlias = tuple[dict[str, str], list[Event]]


class Recording:
    """An observer of this process that keeps a history; it leaves out what clients of another cluster do."""

    # The addresses at which brokers store messages, of all clusters that run in this process.
    _addresses: ClassVar[set[tuple[str, int]]] = set()

    def __init__(self) -> None:
        self._address = ("", 0)
        self.events: list[Event] = []
        self._elsewhere: set[tuple[int, str]] = set()  # sends to other clusters: begin, message
        self._lock = threading.Lock()
        # By message: the topic of a message with a delivery time, and the name that a deleted topic got here.
        self._timed: dict[str, str] = {}
        self._deleted: dict[str, str] = {}
        self._wanted: dict[tuple[str, str], set[SubscriptionData]] = defaultdict(set)

    def begin(self, host: str, port: int) -> None:
        """Record what happens in the cluster that stores its messages at this address."""
        self._address = host, port
        self._addresses.add(self._address)

    def end(self) -> None:
        """Forget the address: from now on, a message that carries it belongs to the cluster that restored it."""
        self._addresses.discard(self._address)

    @property
    def own(self) -> list[Event]:
        """The events, without sends that another cluster took."""
        with self._lock:
            return [
                event
                for event in self.events
                if event.kind is not Kind.SEND or (event.at, event.message) not in self._elsewhere
            ]

    @property
    def topics(self) -> list[str]:
        """The topics that were sent to, or consumed in order."""
        kinds = (Kind.SEND, Kind.DELIVER)
        used = {event.topic for event in self.own if event.kind in kinds}
        return sorted(used.union(self._timed.values()))

    def note(self, kind: Kind, **facts: str | int) -> Event:
        """Record an event that happens now; may be called from several threads."""
        event = Event(time.monotonic_ns(), kind, **facts)  # type: ignore[arg-type]  # fields by name
        with self._lock:
            if event.message in self._deleted:
                event = replace(event, topic=self._deleted[event.message])
            self.events.append(event)
        return event

    @property
    def groups(self) -> list[str]:
        """The groups whose ordered listeners were called."""
        return sorted({event.group for event in self.events if event.kind is Kind.DELIVER})

    def dead(self, group: str, message_id: str) -> None:
        """Record that a message became a dead letter of *group*, at its listener's last failure."""
        for event in reversed(self.events):
            if (event.kind, event.group, event.message) == (Kind.FAILED, group, message_id):
                self.events.append(replace(event, kind=Kind.DEAD, at=event.at + 1))
                return

    def deleted(self, topic: str) -> None:
        """Record that an administrator deletes the topic: a topic that is created again under this name is a different one."""
        name = f"{topic}, which was deleted after {len(self.events)} events"
        with self._lock:
            gone = [event for event in self.events if event.topic == topic]
            self._deleted |= {event.message: name for event in gone if event.message}
            self.events = [
                replace(event, topic=name) if event.topic == topic else event
                for event in self.events
            ]
        for message in {event.message for event in gone if event.kind is Kind.SEND}:
            self.note(Kind.DROPPED, message=message)

    def reset(self, group: str, topic: str) -> None:
        """Record that an administrator moves the offsets of a group: its members are notified later."""
        for queue in {event.queue for event in self.events if event.topic == topic}:
            self.note(Kind.RESET, group=group, topic=topic, queue=queue)

    def subscribed(self, group: str, wanted: Iterable[SubscriptionData]) -> None:
        """Record the subscriptions of a member of a group."""
        for each in wanted:
            self._wanted[group, each.topic].add(each)

    def stored(self, queue: MessageQueue, message: ReceivedMessage) -> None:
        """Record a message that the final read of a queue found; a group that does not select it is done with it."""
        place: dict[str, Any] = _place(queue, message)
        self.note(Kind.STORED, **place)
        for (group, topic), wanted in self._wanted.items():
            if topic == queue.topic and not all(_selects(each, message) for each in wanted):
                self.events.append(Event(self.events[0].at, Kind.DONE, group=group, **place))

    @property
    def not_judged(self) -> list[str]:
        """The checks that the recording leaves open, after the final read."""
        seen = {event.message for event in self.own if event.kind is Kind.SEND}
        stored = {e.message: e.topic for e in self.own if e.kind is Kind.STORED}
        dropped = (event.topic for event in self.own if event.kind is Kind.DROPPED)
        timed = (topic for each, topic in self._timed.items() if each not in stored)
        unseen = (topic for each, topic in stored.items() if each not in seen)
        texts = {
            "loss of {} in topic {}": dropped,
            "loss of {} with a time, not in topic {}": timed,
            "order of {} in topic {} whose send was not seen": unseen,
        }
        return [
            text.format(counted(number, "message"), topic)
            for text, topics in texts.items()
            for topic, number in sorted(Counter(topics).items())
        ]

    # Observer.

    def sending(self, group: str, topic: str, messages: Sequence[Message]) -> _Sending:
        """Record the start of a send."""
        facts = {"process": f"{group} {threading.get_ident()}", "topic": topic}
        sends = [
            self.note(Kind.SEND, **facts, **_sent(message))
            for message in filter(_has_its_place, messages)
        ]
        return facts, sends

    def sent(
        self,
        token: _Sending,
        messages: Sequence[Message],
        outcome: SendResult | BaseException,
    ) -> None:
        """Record the outcome of a send."""
        of_all, sends = token
        if isinstance(outcome, SendResult) and not self._is_here(outcome.offset_message_id):
            self._elsewhere.update((each.at, each.message) for each in sends)
            return
        for at, message in enumerate(messages):
            if not _has_its_place(message):
                if isinstance(outcome, SendResult):
                    self._timed[message.unique_key] = of_all["topic"]
                continue
            facts = {**of_all, **_sent(message)}
            if isinstance(outcome, SendResult):
                queue, offset = outcome.place(at)
                name = f"{queue.broker_name}:{queue.queue_id}"
                self.note(Kind.ACK, queue=name, offset=offset, **facts)
            else:
                kind = Kind.REFUSED if isinstance(outcome, SendRefused) else Kind.UNKNOWN
                self.note(kind, detail=str(outcome)[:200], **facts)

    def before(self, context: ConsumeContext) -> None:
        """Record that a listener call starts with its first message."""
        self._listened(Kind.DELIVER, context, context.messages[0])

    def after(self, context: ConsumeContext) -> None:
        """Record how a listener call ended: with several messages, it has done one after the other, or none."""
        first, *others = context.messages
        if not context.success:
            self._listened(Kind.FAILED, context, first)
            return
        self._listened(Kind.DONE, context, first)
        for message in others:
            self._listened(Kind.DELIVER, context, message)
            self._listened(Kind.DONE, context, message)

    def _listened(self, kind: Kind, context: ConsumeContext, message: ReceivedMessage) -> None:
        if not context.ordered or not self._is_here(message.offset_message_id):
            return
        attempt = -1 if context.lane is None else context.lane.attempt
        facts = _place(context.queue, message)
        lane = _other_lane(context.lane, message)
        self.note(
            kind, group=context.group, client=context.group, attempt=attempt, lane=lane, **facts
        )

    def _is_here(self, offset_message_id: str) -> bool:
        host, port, _ = decode_offset_message_id(offset_message_id.partition(",")[0])
        return (host, port) == self._address or (host, port) not in self._addresses


def _has_its_place(message: Message) -> bool:
    """Return whether the acknowledgement says from which place the message is delivered."""
    return not (message.delay_level or message.delay or message.deliver_at)


def _selects(wanted: SubscriptionData, message: ReceivedMessage) -> bool:
    """Return whether the group is certain to get a message; conditions on properties are not evaluated here."""
    if wanted.expression_type != EXPRESSION_TAG:
        return False
    return not wanted.tags_set or message.tags in wanted.tags_set


def _other_lane(lane: LaneContext | None, message: ReceivedMessage) -> str:
    """Return the key of a lane if it goes by another property than the message's key; empty otherwise.

    A message without that property is its own lane.
    """
    if lane is None or lane.key == (message.key or "")[:KEY_LENGTH_SHOWN]:
        return ""
    return lane.key or f"offset {message.queue_offset}"


def _sent(message: Message) -> dict[str, str]:
    key = "" if message.key is None else str(message.key)
    return {"key": key, "message": message.unique_key}


def _place(queue: MessageQueue, message: ReceivedMessage) -> dict[str, str | int]:
    return {
        "topic": queue.topic,
        "key": message.key or "",
        "message": message.message_id,
        "queue": f"{queue.broker_name}:{queue.queue_id}",
        "offset": message.queue_offset,
    }
