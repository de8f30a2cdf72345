"""
Watches over a broker group for its users: lag, blocked queues, failing messages, leases, members, loads.

It finds lag in messages and time, repeatedly failing messages, and leases that run out. It also finds members that
disagree, two clients with the same id, and hot queues and keys. The rules: it examines every few seconds, in steps of
a few milliseconds, and a queue without a change costs no read. Every list is limited, with the worst first. A new
finding is logged once as a warning with its cure, and again only if it lasts long. Everything is in the memory of one
leader. ``status.py``, the metrics and the log show it.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from heapq import nlargest
from typing import Any, Final

from orderlymq_broker.core.brokertoclient import ClientCalls
from orderlymq_broker.core.effects import Effect, Now
from orderlymq_broker.core.requestcontext import Context
from orderlymq_broker.processors.fetch.query import QueryProcessor
from orderlymq_broker.processors.fetch.read import read_message
from orderlymq_broker.processors.groups.locks import LockProcessor
from orderlymq_broker.processors.lanes.overview import (
    NAMES,
    WAITING,
    Stand,
    lane_backlog,
    lane_stand,
)
from orderlymq_broker.processors.observe.lags import Lag, Place, Readings, WorstLags
from orderlymq_broker.processors.observe.listeners import ListenerWatch, Suspect, in_words
from orderlymq_broker.processors.observe.messages import Failures, Loads, Row, ids_of
from orderlymq_broker.processors.observe.status import (
    REPEAT_MS,
    SHOWN_MAX,
    Series,
    Warnings,
    series,
)
from orderlymq_broker.state.groups.failurepolicy import DeadPolicy, dead_policy
from orderlymq_broker.state.groups.locks import Lock
from orderlymq_broker.state.groups.parkedkeys import PARKED_KEYS_MAX
from orderlymq_broker.state.records import Append, MemberSeen
from orderlymq_broker.state.topics.queues import Queue
from orderlymq_broker.store.kv import Family
from orderlymq_broker.store.layout import decode_queue_entry, queue_key
from orderlymq_protocol.message.record import decode_record
from orderlymq_protocol.names import is_retry_topic, is_system_group

LOOK_MS: Final = 5_000
# A queue without progress for this long is blocked: RocketMQ's orderly listeners try again each second.
BLOCKED_MS: Final = 30_000
# After this time, the queue's consumer is asked about its listener, so that the first warning contains the answer.
ASKED_MS: Final = BLOCKED_MS - 2 * LOOK_MS
# Renewals come after a third of the lease; if less than this part is left, two of them were missed.
EXPIRING_PART: Final = 3
# The work of one tick: a queue of a group, a member or a lock counts 1, and a group as much as a few queues.
STEP_WORK_MAX: Final = 4_096
_GROUP_WORK: Final = 4
_WORK_OF_PART: Final = 1_024
_LOCKS_OF_STEP: Final = 1_024
# Limits of the text of a subscription and of the groups of a client, because there are hundreds of rows.
_EXPRESSION_SHOWN_MAX: Final = 255
_GROUPS_SHOWN_MAX: Final = 16

# A part of an examination: yields the work done since the last time, and returns the findings.
_Part = Generator[int, None, list[Row]]
# Metrics that count findings: name, what is counted, text.
_COUNTED: Final = (
    ("locks_expiring", "expiring", "Queue locks whose renewals were missed"),
    ("duplicate_clients", "duplicates", "Client ids that are on two live connections"),
    (
        "disagreeing_consumer_groups",
        "disagreeing",
        "Consumer groups whose members have different subscriptions or settings",
    ),
    ("hot_queues", "hotQueues", "Queues with far more than their share of messages"),
    ("hot_keys", "hotKeys", "Keys with a fifth or more of their topic's messages"),
)


@dataclass(slots=True)
class _Progress:
    """A group's position in a queue, and since when it has not changed.

    Attributes:
        stand: the position; it changes while the group works on the queue.
        members_ms: when the group was last seen with members; at first, when it was first seen.
        read_offset: the offset of the message whose store time was read last; the message at the present position is
            at most as old.
        stored_ms: that store time, 0 if none is known.
    """

    stand: Stand
    since_ms: int
    since_wall_ms: int
    members_ms: int
    read_offset: int = -1
    stored_ms: int = 0

    def was_left(self, now: Now) -> bool:
        """Return whether the group had no members for so long that these are not to blame; a crash loop is shorter."""
        return now.monotonic_ms - self.members_ms >= BLOCKED_MS


class Watch:
    """Examines the groups of one leader; a hook."""

    def __init__(
        self, context: Context, locks: LockProcessor, queries: QueryProcessor, calls: ClientCalls
    ) -> None:
        self._context = context
        self._locks = locks
        self._queries = queries
        self._progress: dict[Place, _Progress] = {}
        self._readings = Readings()
        self._next_look_ms = 0
        # The examination in progress.
        self._looking: Generator[int, None, None] | None = None
        self._looked_wall_ms = 0
        self._first_look_ms: int | None = None
        self._blocked_known = False
        self._lags: list[Lag] = []
        # Blocked queues by group; only those that are shown have rows.
        self._blocked: Counter[str] = Counter()
        self._found: dict[str, list[Row]] = {}
        # When a dead letter was last sent without its key, by group.
        self._unparked_ms: dict[str, int] = {}
        self.warnings = Warnings()
        self.loads = Loads(context)
        self.failures = Failures(context)
        self._listeners = ListenerWatch(context, calls)
        self._suspects: list[Suspect] = []

    # -- what others see ---------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Return the findings of the last examination, ready for JSON; `examinedAt` is 0 before the first one.

        `blockedKnown` is false while a queue may have been blocked since before this leader began to examine. A lag
        whose age is not known yet has 0 seconds.
        """
        return {
            "examinedAt": self._looked_wall_ms,
            "blockedKnown": self._blocked_known,
            "lag": [
                {**asdict(each), "seconds": each.seconds or 0.0} for each in self._lags[:SHOWN_MAX]
            ],
            **{kind: rows[:SHOWN_MAX] for kind, rows in self._found.items()},
        }

    def _counts(self) -> dict[str, list[Row]]:
        """Return the number of waiting keys and lanes of each group, the most first, without lanes in hand or ready."""
        state = self._context.state
        keys = sorted(state.parked.counts().items(), key=lambda each: (-each[1], each[0]))
        lanes = sorted(
            (
                (group, NAMES[lane_state], count)
                for (group, lane_state), count in state.lanes.counts().items()
                if lane_state in WAITING
            ),
            key=lambda each: (-each[2], each[:2]),
        )

        return {
            "parkedKeys": [{"group": group, "keys": count} for group, count in keys],
            "lanes": [
                {"group": group, "state": name, "lanes": count} for group, name, count in lanes
            ],
        }

    def series(self) -> dict[str, Series]:
        """Return the metrics with labels."""
        shares = sorted(self.loads.shares.items(), key=lambda each: -each[1][0])

        return {
            **series(
                ("group", "topic"),
                {
                    "group_lag_messages": (
                        "Messages of a topic that a consumer group has not consumed",
                        [((each.group, each.topic), each.messages) for each in self._lags],
                    ),
                    "group_lag_seconds": (
                        "Age of the oldest message of a topic that a consumer group has not consumed",
                        [
                            ((each.group, each.topic), each.seconds)
                            for each in self._lags
                            if each.seconds is not None
                        ],
                    ),
                },
            ),
            **series(
                ("group",),
                {
                    "blocked_queues": (
                        "Queues in which a consumer group makes no progress, although there are messages and members",
                        [((group,), count) for group, count in self._blocked.items()],
                    ),
                    "parked_keys": (
                        "Keys of a consumer group that are parked behind a dead letter",
                        [
                            ((group,), count)
                            for group, count in self._context.state.parked.counts().items()
                        ],
                    ),
                    "failing_messages": (
                        "Messages of a consumer group that failed several times in the last hour",
                        [((group,), count) for group, count in self.failures.counts()],
                    ),
                },
            ),
            **self._lanes(),
            **series(
                (),
                {
                    name: (text, [((), float(len(self._found.get(kind, []))))])
                    for name, kind, text in _COUNTED
                },
            ),
            **series(
                ("topic",),
                {
                    "topic_greatest_queue_share": (
                        "Share of the busiest queue in the messages of a topic in the last minute",
                        [((topic,), share) for topic, (share, _) in shares],
                    ),
                    "topic_greatest_key_share": (
                        "Share of the most frequent key in the messages of a topic in the last minute",
                        [((topic,), share) for topic, (_, share) in shares],
                    ),
                },
            ),
        }

    def _lanes(self) -> dict[str, Series]:
        return series(
            ("group", "state"),
            {
                "lanes": (
                    "Key lanes of a consumer group that are not idle, by state",
                    [
                        ((group, NAMES[state]), count)
                        for (group, state), count in self._context.state.lanes.counts().items()
                    ],
                )
            },
        )

    # -- events ------------------------------------------------------------------------------------

    def appended(self, records: Sequence[Append]) -> None:
        """Count applied messages, and note those that come to a retry or dead-letter topic."""
        self.loads.appended(records)
        self.failures.appended(records)

    def tick(self, now: Now) -> list[Effect]:
        """Begin an examination if it is due, or continue one that takes longer than a tick may."""
        self.loads.tick(now)
        self.failures.tick(now)
        if self._looking is None:
            if now.monotonic_ms < self._next_look_ms:
                return []
            self._next_look_ms = now.monotonic_ms + LOOK_MS
            self._looking = self._look(now)
        room = STEP_WORK_MAX
        for work in self._looking:
            room -= work
            if room <= 0:
                return []
        self._looking = None

        return self._listeners.ask(self._suspects, now)

    def closed(self, connection: int) -> None:
        """Remove clients that were seen on two connections of which one is now closed."""
        duplicates = self._context.duplicate_clients
        for client_id in [
            name
            for name, pair in duplicates.items()
            if connection in {caller.connection for caller in pair}
        ]:
            del duplicates[client_id]

    def ended(self) -> None:
        """Clear everything, because another replica leads and examines."""
        self._progress.clear()
        self._readings = Readings()
        self._looking = None
        self.warnings.forget()
        self._lags, self._found, self._next_look_ms, self._looked_wall_ms = [], {}, 0, 0
        self._first_look_ms, self._blocked_known = None, False
        self._blocked.clear()
        self._unparked_ms.clear()
        self.loads.ended()
        self.failures.ended()
        self._listeners.ended()
        self._suspects = []

    # -- looking -----------------------------------------------------------------------------------

    def _look(self, now: Now) -> Generator[int, None, None]:
        """Examine everything as of *now*; yield the work done since the last time."""
        if self._first_look_ms is None:
            self._first_look_ms = now.monotonic_ms
        blocked = yield from self._look_at_progress(now)
        expiring = yield from self._expiring(now)
        disagreeing = yield from self._disagreeing()
        self._looked_wall_ms = now.wall_ms
        self._found = {
            "blocked": blocked,
            "failing": self.failures.rows(),
            "expiring": expiring,
            "disagreeing": disagreeing,
            "duplicates": list(self._duplicates()),
            "notHolding": self._not_holding(now),
            "holdsFull": [
                {"group": group, "keys": count}
                for group, count in self._context.state.parked.counts().items()
                if count >= PARKED_KEYS_MAX
            ],
            "hotQueues": self.loads.hot_queues,
            "hotKeys": self.loads.hot_keys,
        }
        self.warnings.say(self._found, now)
        self._found |= self._counts()

    def _not_holding(self, now: Now) -> list[Row]:
        """Return the groups that should hold keys but whose members recently sent dead letters without a key."""
        noted, groups = self._context.unparked_groups, self._context.state.groups.by_name
        self._unparked_ms |= dict.fromkeys(noted, now.monotonic_ms)
        noted.clear()
        self._unparked_ms = {
            group: seen_ms
            for group, seen_ms in self._unparked_ms.items()
            if now.monotonic_ms - seen_ms < REPEAT_MS
            and (config := groups.get(group)) is not None
            and dead_policy(config.on_dead_letter) == DeadPolicy.HOLD
        }

        return [{"group": group} for group in sorted(self._unparked_ms)]

    def _look_at_progress(self, now: Now) -> _Part:
        """Compute the lags and return the blocked queues, the longest blocked first."""
        worst = WorstLags()
        blocked: list[tuple[int, Suspect, Queue, _Progress]] = []
        suspects: list[tuple[int, Suspect]] = []
        before, self._progress = self._progress, {}
        self._readings.begin()
        blocked_known = True
        for found in self._behind():
            if isinstance(found, int):
                yield found
                continue
            group, topic_name, queue, committed = found
            place = (group, topic_name, queue.queue_id)
            known = before.pop(place, None)
            stand = lane_stand(self._context.state, *place) or Stand(committed)
            has_members = bool(self._context.state.members.of_group(group))
            if known is None:
                known = _Progress(stand, now.monotonic_ms, now.wall_ms, now.monotonic_ms)
            elif known.stand != stand or (has_members and known.was_left(now)):
                known.stand, known.since_ms = stand, now.monotonic_ms
                known.since_wall_ms = now.wall_ms
            if has_members:
                known.members_ms = now.monotonic_ms
            self._progress[place] = known
            age_s = self._age_s(place, known, queue, committed, now)
            left = lane_backlog(self._context.state, group, topic_name, queue)
            messages = queue.next_offset - committed if left is None else left
            worst.add(group, topic_name, messages, age_s)
            still_ms = now.monotonic_ms - known.since_ms
            if stand.offset >= queue.next_offset or not has_members:
                continue
            if still_ms < BLOCKED_MS and known.since_ms == self._first_look_ms:
                # The queue was at this position when this leader began; nobody knows since when.
                blocked_known = False
            if still_ms >= ASKED_MS:
                lock = self._context.state.locks.get(*place)
                suspect = Suspect(*place, None if lock is None else lock.client_id)
                suspects.append((still_ms, suspect))
                if still_ms >= BLOCKED_MS:
                    blocked.append((still_ms, suspect, queue, known))
        self._lags = worst.ended()
        self._readings.end()
        # The next steps process all findings; if there are many, this must not happen in the same tick as the last of
        # the search.
        yield len(suspects)
        self._blocked_known = blocked_known
        self._suspects = [each for _, each in sorted(suspects, key=lambda pair: -pair[0])]
        yield len(blocked)
        self._blocked = Counter(suspect.group for _, suspect, _, _ in blocked)
        shown = nlargest(SHOWN_MAX, blocked, key=lambda each: each[0])

        return [self._blocked_row(*each[1:]) for each in shown]

    def _age_s(
        self, place: Place, known: _Progress, queue: Queue, committed: int, now: Now
    ) -> float | None:
        """Return the age of the message at a group's position, or None before the first read.

        It is too great if the group has moved on since the last read.
        """
        if known.read_offset > committed:
            # The read was of a later message: the group's offset was set back.
            known.read_offset, known.stored_ms = -1, 0
        if known.read_offset != committed and (
            committed >= queue.tail_start or self._readings.take(place)
        ):
            known.read_offset = committed
            known.stored_ms = self._queries.store_time(queue, committed)

        return max(0, now.wall_ms - known.stored_ms) / 1000 if known.stored_ms else None

    def _behind(self) -> Iterator[tuple[str, str, Queue, int] | int]:
        """Yield (group, topic, queue, next offset) where a group has messages to consume.

        Also yield, as a number, the work done: after each group, and within large ones.
        """
        state = self._context.state
        for group in dict.fromkeys((*state.offsets.groups(), *state.members.groups())):
            if is_system_group(group) or state.only_broadcasts(group):
                continue
            work = _GROUP_WORK
            known = state.offsets.of_group(group)
            for name in sorted({*known, *state.members.subscriptions(group)}):
                topic, offsets = state.topics.by_name.get(name), known.get(name, {})
                work += 1
                if topic is None or not state.members.may_want(group, name):
                    continue
                for number in sorted(topic.queues):
                    work += 1
                    if work >= _WORK_OF_PART:
                        yield work
                        work = 0
                    queue = topic.queues[number]
                    committed = max(offsets.get(number, 0), queue.min_offset)
                    if committed < queue.next_offset:
                        yield group, name, queue, committed
            yield work

    def _blocked_row(self, suspect: Suspect, queue: Queue, known: _Progress) -> Row:
        """Return the row of a blocked queue that is shown."""
        said = self._listeners.said_of(suspect)
        held = self._holder(suspect)
        config = self._context.state.groups.get(suspect.group)
        silent = (
            "its consumer reports nothing about its listener"
            if held["connected"] is not False
            else "its holder is not connected"
        )

        return {
            "group": suspect.group,
            "topic": suspect.topic,
            "queue": suspect.queue_id,
            "offset": known.stand.offset,
            "since": known.since_wall_ms,
            "holder": suspect.holder,
            # For a group by key, nobody holds a queue, and other messages in it wait besides the one at its position.
            "byKey": config is not None and config.by_key,
            **held,
            **self._message(queue, known.stand.offset),
            **said,
            "listener": in_words(said) or silent,
        }

    def _holder(self, suspect: Suspect) -> Row:
        """Return whether the holder of a queue is connected, and the length of its lease; None if nobody holds it."""
        lock = self._context.state.locks.get(suspect.group, suspect.topic, suspect.queue_id)
        if lock is None:
            return {"connected": None, "leaseMillis": None}

        return {
            "connected": bool(self._context.sessions.of_client(lock.client_id)),
            "leaseMillis": lock.lease_ms,
        }

    def _message(self, queue: Queue, offset: int) -> Row:
        """Return the ids and the key of a message; each is None if the message is gone."""
        key = queue_key(queue.topic_id, queue.queue_id, offset)
        value = self._context.reader.get(Family.CONSUME_QUEUE, key)
        if value is not None:
            stored = read_message(self._context.reader, decode_queue_entry(value).physical)
            if stored is not None:
                return ids_of(self._context, decode_record(stored))

        return {"messageId": None, "offsetId": None, "key": None, "tries": None}

    def _expiring(self, now: Now) -> _Part:
        found: list[tuple[Lock, int]] = []
        leased = self._locks.leased()
        for start in range(0, len(leased), _LOCKS_OF_STEP):
            some = leased[start : start + _LOCKS_OF_STEP]
            found += self._locks.expiring(some, now, EXPIRING_PART)
            yield len(some)

        return [
            {
                "group": lock.group,
                "topic": lock.topic,
                "queue": lock.queue_id,
                "holder": lock.client_id,
                "leftMillis": left_ms,
                "connected": bool(self._context.sessions.of_client(lock.client_id)),
            }
            for lock, left_ms in sorted(found, key=lambda each: each[1])
        ]

    def _disagreeing(self) -> _Part:
        members = self._context.state.members
        rows: list[Row] = []
        for group in list(members.groups()):
            found = list(members.of_group(group).values())
            for other in found[1:]:
                difference = _difference(found[0], other)
                yield 1 + len(other.subscriptions)
                if difference:
                    rows.append(
                        {
                            "group": group,
                            "members": [found[0].client_id, other.client_id],
                            "difference": difference,
                        }
                    )
                    break
            yield 1

        return rows

    def _duplicates(self) -> Iterator[Row]:
        for client_id, pair in self._context.duplicate_clients.items():
            addresses = [f"{caller.host}:{caller.port}" for caller in pair]
            groups = self._context.sessions.groups_of(client_id)[:_GROUPS_SHOWN_MAX]
            yield {"clientId": client_id, "addresses": addresses, "groups": groups}


def _difference(first: MemberSeen, other: MemberSeen) -> str:
    """Describe how two members of one group disagree; empty if they agree."""
    subscriptions = [
        {
            subscription.topic: (subscription.expression_type, subscription.expression)
            for subscription in member.subscriptions
            if not is_retry_topic(subscription.topic)
        }
        for member in (first, other)
    ]
    for topic in sorted(subscriptions[0].keys() | subscriptions[1].keys()):
        one, two = (each.get(topic, ("", "nothing"))[1] for each in subscriptions)
        if subscriptions[0].get(topic) != subscriptions[1].get(topic):
            one, two = one[:_EXPRESSION_SHOWN_MAX], two[:_EXPRESSION_SHOWN_MAX]
            return f"topic {topic}: {one} and {two}"
    for name in ("message_model", "consume_type", "consume_from_where"):
        if getattr(first, name) != getattr(other, name):
            return f"{name}: {getattr(first, name)} and {getattr(other, name)}"

    return ""
