"""
Expansion of ordered topics: which senders may write while a topic's queue list changes, and which groups block the change.

The phases of one topic in one raft group are OPEN -> FENCED -> SWITCHED -> PROPAGATING -> OPEN, and FENCED -> OPEN if
the expansion is given up. FENCED: no client may send, and the ends of the queues are stored as barriers. Transactions
that were opened before may still be committed. SWITCHED: the new list is valid here, and the ends of the old queues
are stored, because the new list begins there. A sender that says it chose a queue from the new list may write.
PROPAGATING: the same senders may write, and the list is published. When every client can have seen it, the phase
ends.

The rules: a raft group switches only when every ordered consumer group has consumed to the end of every queue, judged
by the state at that very index. The total number of queues identifies the list, because it only rises. After the
switch there is no way back. This module does not know the time: that a fence or the settling has lasted long enough
is a record of the leader (``processors/topics/expansionrequests.py``). The operator's ``expansion.py`` moves all raft
groups of a topic together.
"""

from collections.abc import Iterable, Iterator, KeysView, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.records import Commit, Outcome, Refused, TopicSet
from orderlymq_broker.state.tables import TableWrites
from orderlymq_broker.state.topics.expansionrecords import (
    ExpansionAborted,
    ExpansionFenced,
    ExpansionMoved,
    ExpansionOpened,
    ExpansionPhase,
    ExpansionPropagated,
    ExpansionSwitched,
)
from orderlymq_broker.state.topics.expansiontable import (
    EARLIER_MAX,
    EarlierGrowth,
    Ends,
    Expansion,
)
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.names import retry_topic
from orderlymq_protocol.plurals import counted

# Replaces the queue number of blockers that are not in one queue of the topic.
NO_QUEUE: Final = -1
# The most blockers built in one go: for 16,000 queues and 100 groups, all took a second, without heartbeats of the leader.
BLOCKERS_COMPARED_MAX: Final = 4_096
_NO_OFFSETS: Mapping[int, int] = {}


class Blocker(NamedTuple):
    """A group that has not consumed to the end of a queue.

    Attributes:
        group: the consumer group; empty for open transactions.
        queue_id: the number of the queue; ``NO_QUEUE`` for retries and transactions.
        messages: how many messages are left.
    """

    group: str
    queue_id: int
    messages: int
    reason: str


class QueueEnds(NamedTuple):
    """The ends of the queues of a topic that were ever written to.

    Attributes:
        live: those that have messages, as (number, end).
        emptied: those whose messages retention has removed, by number.
    """

    live: list[tuple[int, int]]
    emptied: dict[int, int]


# -- changes -------------------------------------------------------------------------------------------


def fence(
    state: BrokerState, record: ExpansionFenced, wall_ms: int, writes: TableWrites
) -> Outcome:
    """Refuse writes from now on and store the ends of the queues.

    The new queues can be read immediately, so that consumers have distributed them among themselves before the first
    message comes.
    """
    topic = state.topics.get(record.topic)
    if topic is None or not topic.config.order:
        return Refused(f"topic[{record.topic}] is not an ordered topic of this group")
    present = state.expansions.by_topic.get(record.topic, Expansion(record.topic))
    if present.phase is not ExpansionPhase.OPEN:
        if present.phase is ExpansionPhase.FENCED and present.attempt == record.attempt:
            return ExpansionMoved(record.topic, present.phase)
        return Refused(
            f"topic[{record.topic}] is in phase {present.phase.value} of expansion {present.attempt}"
        )
    if record.attempt <= present.attempt:
        return Refused(
            f"expansion {record.attempt} of topic[{record.topic}] is not after {present.attempt}"
        )
    config = topic.config
    if record.total <= present.total or record.queues < config.write_queues:
        return Refused(
            f"topic[{record.topic}] cannot shrink: it has {counted(config.write_queues, 'queue')} here and "
            f"{present.total} in all"
        )
    barriers = tuple((number, _end(topic, number)) for number in range(config.write_queues))
    _configure(state, config, wall_ms, writes, read_queues=record.queues)
    expansion = Expansion(
        record.topic,
        ExpansionPhase.FENCED,
        present.total,
        record.total,
        record.queues,
        record.attempt,
        barriers,
        record.limit_ms,
        wall_ms,
        grown_ms=present.list_since_ms,
        grown_barriers=present.grown_barriers,
        earlier=present.earlier,
    )

    return _move(state, expansion, writes)


def abort(
    state: BrokerState, record: ExpansionAborted, wall_ms: int, writes: TableWrites
) -> Outcome:
    """Give an expansion up: the old list stays valid, and writes are allowed again."""
    present = state.expansions.by_topic.get(record.topic)
    if present is None or present.attempt != record.attempt:
        return Refused(f"expansion {record.attempt} of topic[{record.topic}] is not under way")
    if present.phase is ExpansionPhase.OPEN:
        return ExpansionMoved(record.topic, present.phase)
    if present.phase is not ExpansionPhase.FENCED:
        return Refused(
            f"topic[{record.topic}] has its new queue list already; the expansion can no longer "
            "be aborted"
        )
    topic = state.topics.by_name[record.topic]
    _configure(state, topic.config, wall_ms, writes, read_queues=topic.config.write_queues)
    expansion = Expansion(
        record.topic,
        total=present.total,
        attempt=present.attempt,
        since_ms=wall_ms,
        reason=record.reason or "given up",
        grown_ms=present.list_since_ms,
        grown_barriers=present.grown_barriers,
        earlier=present.earlier,
    )

    return _move(state, expansion, writes)


def switch(
    state: BrokerState, record: ExpansionSwitched, wall_ms: int, writes: TableWrites
) -> Outcome:
    """Make the new list valid, if no group has messages of the old one left to consume.

    A raft group that had no queue of the topic gets its queues here. Groups that read the topic begin at the
    first message of each new queue, whatever their setting for new queues is.
    """
    name = record.topic
    topic = state.topics.get(name)
    present = state.expansions.by_topic.get(name)
    if topic is not None and not topic.config.order:
        return Refused(f"topic[{name}] is not an ordered topic")
    if present is not None and present.total >= record.total:
        return ExpansionMoved(name, present.phase)
    if topic is not None:
        if (
            present is None
            or present.phase is not ExpansionPhase.FENCED
            or (present.attempt, present.next_total) != (record.attempt, record.total)
        ):
            return Refused(f"topic[{name}] is not fenced for expansion {record.attempt}")
        left = blockers(state, topic, with_mixed=record.with_mixed)
        if found := farthest(left, 1):
            return Refused(f"topic[{name}] is not drained: {found[0].reason}")
    before = 0 if topic is None else topic.config.write_queues
    expansion = _grown(record, topic, present, wall_ms)
    config = topic.config if topic is not None else TopicSet(name, 0, 0, record.perm, order=True)
    _configure(
        state, config, wall_ms, writes, read_queues=record.queues, write_queues=record.queues
    )
    given = [
        Commit(group, name, number, 0)
        for group in sorted({*record.groups, *readers_of(state, name)})
        for number in range(before, record.queues)
        if state.offsets.get(group, name, number) is None
    ]
    state.offsets.reset(tuple(given), (name,), writes)

    return _move(state, expansion, writes)


def propagate(
    state: BrokerState, record: ExpansionPropagated, wall_ms: int, writes: TableWrites
) -> Outcome:
    """Note that every name server returns the new list; senders that do not name their list still wait."""
    present = state.expansions.by_topic.get(record.topic)
    if present is None or present.total != record.total:
        return Refused(f"topic[{record.topic}] has no new list of {counted(record.total, 'queue')}")
    if present.phase is not ExpansionPhase.SWITCHED:
        return ExpansionMoved(record.topic, present.phase)
    expansion = msgspec.structs.replace(
        present, phase=ExpansionPhase.PROPAGATING, limit_ms=record.settle_ms, since_ms=wall_ms
    )

    return _move(state, expansion, writes)


def open_all(
    state: BrokerState, record: ExpansionOpened, wall_ms: int, writes: TableWrites
) -> Outcome:
    """Let all senders write: the expansion is over."""
    present = state.expansions.by_topic.get(record.topic)
    if present is None or present.phase is not ExpansionPhase.PROPAGATING:
        return Refused(f"topic[{record.topic}] is not propagating a new queue list")
    expansion = Expansion(
        record.topic,
        total=present.total,
        attempt=present.attempt,
        since_ms=wall_ms,
        # Senders that choose from the new list have written since the switch. Records of earlier versions keep their
        # later time.
        grown_ms=wall_ms if present.grown_barriers is None else present.grown_ms,
        grown_barriers=present.grown_barriers,
        earlier=present.earlier,
    )

    return _move(state, expansion, writes)


# -- questions -----------------------------------------------------------------------------------------


def possible_readers(state: BrokerState) -> list[str]:
    """Return the groups that may read any topic."""
    return sorted({*state.members.groups(), *state.offsets.groups(), *state.locks.groups()})


def read_by(state: BrokerState, group: str, topics: KeysView[str]) -> set[str]:
    """Return the *topics* to which a group subscribes now, or in which it has ever locked or committed."""
    online = topics & state.members.subscriptions(group).keys()
    committed = topics & state.offsets.of_group(group).keys()

    return online | committed | (topics & state.locks.topics_of(group))


def readers_of(state: BrokerState, topic: str) -> list[str]:
    """Return the groups that subscribe to a topic now, or have ever locked or committed in it."""
    members = state.members
    online = [group for group in members.groups() if topic in members.subscriptions(group)]

    # A member that had a lock has received messages, even if it left before its first commit.
    return sorted({*online, *state.offsets.groups_of(topic), *state.locks.groups_of(topic)})


def offsets_given(state: BrokerState, topic: str, queues: int, groups: Iterable[str]) -> int:
    """Return the most offsets that the switch of a topic to *queues* gives; *groups* read it elsewhere, others here."""
    present = state.topics.get(topic)
    before = 0 if present is None else present.config.write_queues

    return max(0, queues - before) * len({*groups, *readers_of(state, topic)})


def blockers(state: BrokerState, topic: Topic, *, with_mixed: bool = True) -> Iterator[Blocker]:
    """Yield the groups that have not consumed to the end; the first takes as many look-ups as offsets and locks exist.

    Only ordered groups block, because others promise no order; of a new group it is not known
    yet. Messages that a group sent back for later count as not consumed, and so does a transaction whose
    end would put a message into the old queue. *with_mixed* is that of the record.
    """
    yield from open_transactions(state, topic)
    ends = queue_ends(topic)
    for group in readers_of(state, topic.name):
        if with_mixed or not state.members.is_broadcasting(group):
            yield from group_blockers(state, group, topic, ends)


def farthest(found: Iterable[Blocker], most: int) -> list[Blocker]:
    """Return the blockers farthest behind among the first ones, in the order in which they are shown."""
    compared = islice(found, BLOCKERS_COMPARED_MAX)

    return nsmallest(most, compared, lambda blocker: (-blocker.messages, blocker))


def queue_ends(topic: Topic) -> QueueEnds:
    """Return the ends of a topic's queues, for all groups that are examined in one go."""
    live, emptied = [], {}
    for number, queue in sorted(topic.queues.items()):
        if queue.min_offset < queue.next_offset:
            live.append((number, queue.next_offset))
        elif queue.next_offset:
            emptied[number] = queue.next_offset

    return QueueEnds(live, emptied)


def group_blockers(
    state: BrokerState, group: str, topic: Topic, ends: QueueEnds
) -> Iterator[Blocker]:
    """Yield the blockers of a group for its topic; none if the expansion does not wait for it."""
    if not _may_be_ordered(state, group, topic) or state.only_broadcasts(group):
        return
    online = len(state.members.of_group(group))
    who = f"{counted(online, 'member')} online" if online else "nobody online"
    for number, left in _left(state, group, topic, ends):
        text = (
            f"group {group} has {counted(left, 'message')} of queue {number} left to consume, {who}"
        )
        yield Blocker(group, number, left, text)
    kept = state.parked.count_in(group, topic.name)
    if kept:
        # The new queue would not know the hold, so the key would overtake its dead letter.
        text = f"group {group} holds {counted(kept, 'key')}: release with orderlymq group release"
        yield Blocker(group, NO_QUEUE, kept, text)
    waiting = retries_left(state, group)
    if waiting:
        text = f"group {group} has {counted(waiting, 'message')} to retry, {who}"
        yield Blocker(group, NO_QUEUE, waiting, text)


def open_transactions(state: BrokerState, topic: Topic) -> list[Blocker]:
    """Return the blocker for transactions of a topic that may still be committed."""
    halves = state.transactions.of_topic(topic.name)
    if not halves:
        return []
    text = (
        f"{counted(halves, 'transaction')} of topic[{topic.name}] may still be committed: end all "
        "of them, including those that were given up"
    )

    return [Blocker("", NO_QUEUE, halves, text)]


def retries_left(state: BrokerState, group: str) -> int:
    """Return how many messages of its retry topic a group has not consumed."""
    retries = state.topics.get(retry_topic(group))
    if retries is None:
        return 0

    return sum(left for _, left in _left(state, group, retries, queue_ends(retries)))


def _left(
    state: BrokerState, group: str, topic: Topic, ends: QueueEnds
) -> Iterator[tuple[int, int]]:
    """Yield the queues in which a group has messages left, and how many.

    No member can get messages that retention has removed, but a holder may already have them. A holder shows
    with a commit that it has continued; its first commit shows that it has begun.
    """
    committed = state.offsets.of_group(group).get(topic.name, _NO_OFFSETS)
    locks = state.locks
    for number, end in ends.live:
        at = committed.get(number, 0)
        if at < end:
            if locks.get(group, topic.name, number) is None:
                at = max(at, topic.queues[number].min_offset)
            yield number, end - at
    for number in sorted(ends.emptied.keys() & locks.queues_of(group, topic.name)):
        left = ends.emptied[number] - committed.get(number, 0)
        if left > 0 and locks.get(group, topic.name, number) is not None:
            yield number, left


def _may_be_ordered(state: BrokerState, group: str, topic: Topic) -> bool:
    """Return whether a group consumes in order, or is online and has neither locked nor committed yet.

    A heartbeat does not tell how a client consumes; its first lock or its first commit does, within
    seconds.
    """
    if state.is_ordered(group):
        return True
    committed = state.offsets.of_group(group).get(topic.name, {})

    return bool(state.members.of_group(group)) and not any(committed.values())


def _end(topic: Topic, number: int) -> int:
    queue = topic.queues.get(number)

    return queue.next_offset if queue is not None else 0


# -- parts ---------------------------------------------------------------------------------------------


def _configure(
    state: BrokerState,
    config: TopicSet,
    wall_ms: int,
    writes: TableWrites,
    *,
    read_queues: int,
    write_queues: int | None = None,
) -> None:
    changed = msgspec.structs.replace(
        config,
        read_queues=read_queues,
        write_queues=config.write_queues if write_queues is None else write_queues,
    )
    state.topics.set(changed, wall_ms, writes)


def _grown(
    record: ExpansionSwitched, topic: Topic | None, present: Expansion | None, wall_ms: int
) -> Expansion:
    """Return the row for a topic that has grown; *topic* still has its former configuration."""
    barriers: Ends | None = None
    earlier: tuple[EarlierGrowth, ...] = ()
    if record.keeps_ends:
        # After the barriers of the fence come copies of transactions that were committed since.
        ends = [] if topic is None else [_end(topic, n) for n in range(topic.config.write_queues)]
        barriers = tuple(enumerate(ends))
        earlier = _growths_of(present)[-EARLIER_MAX:]
    elif record.keeps_barriers:
        barriers = present.barriers if present is not None else ()

    return Expansion(
        record.topic,
        ExpansionPhase.SWITCHED,
        record.total,
        attempt=record.attempt,
        since_ms=wall_ms,
        grown_ms=wall_ms,
        grown_barriers=barriers,
        earlier=earlier,
    )


def _growths_of(present: Expansion | None) -> tuple[EarlierGrowth, ...]:
    """Return the growths of a topic, including the last one."""
    if present is None or not present.total:
        return ()
    last = EarlierGrowth(present.total, present.list_since_ms, present.grown_barriers)

    return (*present.earlier, last)


def _move(state: BrokerState, expansion: Expansion, writes: TableWrites) -> ExpansionMoved:
    state.expansions.put(expansion, writes)
    # Stored at the topic, because every send reads it.
    state.topics.by_name[expansion.topic].expansion = expansion

    return ExpansionMoved(expansion.topic, expansion.phase, changed=True)
