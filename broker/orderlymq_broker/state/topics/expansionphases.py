"""
Expansion of ordered topics: which senders may write while the queue list of a topic changes, and which groups are in the way.

Phases of one topic on one raft group: OPEN -> FENCED -> SWITCHED -> PROPAGATING -> OPEN, and FENCED -> OPEN when
the expansion is given up. FENCED: nobody sends, and the ends of the queues are written down as barriers. Transactions that
were opened before may still be committed. SWITCHED: the new list is valid here, and where the queues ended is kept, because it
begins there; who says that it chose a queue from that list may write. PROPAGATING: likewise, and the list is published; when
every client can have seen it, the phase ends.

The rules: a group switches only when every ordered group has consumed to the end of every queue, judged from
the state at that very index; the total number of queues names the list, because it only rises; once
switched there is no way back. Time is not known here: that a fence or the settling lasted long enough is
a record of the leader (``processors/topics/expansionrequests.py``). Who asks the raft groups of a topic to move
together: the operator's ``expansion.py``.
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

# Stands for what is not in one queue of the topic.
NO_QUEUE: Final = -1
# Blockers that are made in one go: of 16,000 queues and 100 groups all took a second, in which a leader sends no heartbeats.
BLOCKERS_COMPARED_MAX: Final = 4_096
_NO_OFFSETS: Mapping[int, int] = {}


class Blocker(NamedTuple):
    """A group that has not consumed to the end of a queue.

    Attributes:
        group: the consumer group; empty for open transactions.
        queue_id: number of the queue; ``NO_QUEUE`` for retries and transactions.
        messages: how many are left.
    """

    group: str
    queue_id: int
    messages: int
    reason: str


class QueueEnds(NamedTuple):
    """Where the queues of a topic end that were ever written to.

    Attributes:
        live: by number those that have messages.
        emptied: those of which retention has taken all.
    """

    live: list[tuple[int, int]]
    emptied: dict[int, int]


# -- changes -------------------------------------------------------------------------------------------


def fence(
    state: BrokerState, record: ExpansionFenced, wall_ms: int, writes: TableWrites
) -> Outcome:
    """Refuse writes from now on and write down where the queues end.

    The queues to come can be read immediately, so that consumers have shared them out before the first
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
    """Give an expansion up: the old list stays valid, writes are let in again."""
    present = state.expansions.by_topic.get(record.topic)
    if present is None or present.attempt != record.attempt:
        return Refused(f"expansion {record.attempt} of topic[{record.topic}] is not under way")
    if present.phase is ExpansionPhase.OPEN:
        return ExpansionMoved(record.topic, present.phase)
    if present.phase is not ExpansionPhase.FENCED:
        return Refused(
            f"topic[{record.topic}] has its new queue list already; there is no way back"
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
    """Make the new list valid, if nobody has anything left to consume of the old one.

    A raft group that had no queue of the topic gets it here. Groups that read the topic begin at the
    first message of each new queue, whatever they would do as newcomers.
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
    """Note that every name server returns the new list; senders that say nothing wait on."""
    present = state.expansions.by_topic.get(record.topic)
    if present is None or present.total != record.total:
        return Refused(f"topic[{record.topic}] has no list of {counted(record.total, 'queue')}")
    if present.phase is not ExpansionPhase.SWITCHED:
        return ExpansionMoved(record.topic, present.phase)
    expansion = msgspec.structs.replace(
        present, phase=ExpansionPhase.PROPAGATING, limit_ms=record.settle_ms, since_ms=wall_ms
    )

    return _move(state, expansion, writes)


def open_all(
    state: BrokerState, record: ExpansionOpened, wall_ms: int, writes: TableWrites
) -> Outcome:
    """Let everybody write: the expansion is over."""
    present = state.expansions.by_topic.get(record.topic)
    if present is None or present.phase is not ExpansionPhase.PROPAGATING:
        return Refused(f"topic[{record.topic}] does not settle")
    expansion = Expansion(
        record.topic,
        total=present.total,
        attempt=present.attempt,
        since_ms=wall_ms,
        # Who chooses from the new list has written since the switch. Records of earlier versions keep to their later time.
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
    """Return which of *topics* a group subscribes to now, or has ever locked or committed in."""
    online = topics & state.members.subscriptions(group).keys()
    committed = topics & state.offsets.of_group(group).keys()

    return online | committed | (topics & state.locks.topics_of(group))


def readers_of(state: BrokerState, topic: str) -> list[str]:
    """Return the groups that subscribe to a topic now, or have ever locked or committed in it."""
    members = state.members
    online = [group for group in members.groups() if topic in members.subscriptions(group)]

    # A member that had a lock was given messages, though it may have left before its first commit.
    return sorted({*online, *state.offsets.groups_of(topic), *state.locks.groups_of(topic)})


def offsets_given(state: BrokerState, topic: str, queues: int, groups: Iterable[str]) -> int:
    """Return how many offsets the switch of a topic to *queues* gives at most: *groups* read it elsewhere, others here."""
    present = state.topics.get(topic)
    before = 0 if present is None else present.config.write_queues

    return max(0, queues - before) * len({*groups, *readers_of(state, topic)})


def blockers(state: BrokerState, topic: Topic, *, with_mixed: bool = True) -> Iterator[Blocker]:
    """Yield the groups that have not consumed to the end; as many look-ups find the first one as there are offsets and locks.

    Ordered groups only: others promise no order; of a group that has only just come it is unknown
    yet. What a group handed back for later counts as not consumed, and so does a transaction whose
    end would put a message into the old queue. *with_mixed* is that of the record.
    """
    yield from open_transactions(state, topic)
    ends = queue_ends(topic)
    for group in readers_of(state, topic.name):
        if with_mixed or not state.members.is_broadcasting(group):
            yield from group_blockers(state, group, topic, ends)


def farthest(found: Iterable[Blocker], most: int) -> list[Blocker]:
    """Return the blockers that are farthest behind among the first ones, in the order in which they are shown."""
    compared = islice(found, BLOCKERS_COMPARED_MAX)

    return nsmallest(most, compared, lambda blocker: (-blocker.messages, blocker))


def queue_ends(topic: Topic) -> QueueEnds:
    """Return where the queues of a topic end; for all groups that are asked for in one go."""
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
    """Yield the blockers that a group puts in the way of its topic; none if the expansion does not wait for it."""
    if not _may_be_ordered(state, group, topic) or state.only_broadcasts(group):
        return
    online = len(state.members.of_group(group))
    who = f"{counted(online, 'member')} online" if online else "nobody online"
    for number, left in _left(state, group, topic, ends):
        text = f"group {group} lacks {counted(left, 'message')} of queue {number}, {who}"
        yield Blocker(group, number, left, text)
    kept = state.parked.count_in(group, topic.name)
    if kept:
        # Its new queue would not know of the hold, and the key would overtake its dead letter.
        text = f"group {group} holds {counted(kept, 'key')}: release with orderlymq group release"
        yield Blocker(group, NO_QUEUE, kept, text)
    waiting = retries_left(state, group)
    if waiting:
        text = f"group {group} has {counted(waiting, 'message')} to try again, {who}"
        yield Blocker(group, NO_QUEUE, waiting, text)


def open_transactions(state: BrokerState, topic: Topic) -> list[Blocker]:
    """Return the blocker for transactions of a topic that may still be committed."""
    halves = state.transactions.of_topic(topic.name)
    if not halves:
        return []
    text = f"{counted(halves, 'transaction')} of topic[{topic.name}] may still be committed: end all, also those that were given up"

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
    """Yield the queues of which a group has messages left, and how many.

    What retention has taken nobody gets any more, but for a holder who may have it at hand: that one says by a
    commit when it has gone on, its first when it has begun.
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

    A heartbeat does not say how a client consumes: its first lock or its first commit does, within
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
    """Return the row of a topic that has grown; it is still as it was before."""
    barriers: Ends | None = None
    earlier: tuple[EarlierGrowth, ...] = ()
    if record.keeps_ends:
        # Behind the barriers of the fence are the copies of transactions that were committed since.
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
    """Return the growths of a topic, the last one included."""
    if present is None or not present.total:
        return ()
    last = EarlierGrowth(present.total, present.list_since_ms, present.grown_barriers)

    return (*present.earlier, last)


def _move(state: BrokerState, expansion: Expansion, writes: TableWrites) -> ExpansionMoved:
    state.expansions.put(expansion, writes)
    # Read for every send, hence kept at the topic.
    state.topics.by_name[expansion.topic].expansion = expansion

    return ExpansionMoved(expansion.topic, expansion.phase, changed=True)
