"""
Expansion of ordered topics on the leader: its requests (20505, 20506), the sends allowed meanwhile, and its clock.

The rules: from the moment at which a fence is proposed, no client may send to the topic. A send that was stored
before is still answered as stored. A sender that names the number of queues it chose from (our SDK) is told to look
again (20505). Any other sender is refused definitely (14), which no client takes for stored. If a fenced expansion
does not proceed within its limit, the leader aborts it on its own, so an operator that dies blocks nobody; a new
leader starts the limit again. A change of the topic and a step of its expansion are never in progress together,
because each is checked against the state that the other leaves. ``state/topics/expansionphases.py`` tells what the
phases mean and who blocks them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, Final, Protocol

from orderlymq_broker.core.effects import Caller, Effect, Now, Propose
from orderlymq_broker.core.listings import filled
from orderlymq_broker.core.operators import check_token
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer, check_name
from orderlymq_broker.core.responses import answer_list, change, check_unchanging
from orderlymq_broker.processors.topics.pendingretries import RetryWatch
from orderlymq_broker.state.integerranges import NO_TOKEN
from orderlymq_broker.state.lanes.lane import LaneState
from orderlymq_broker.state.records import Record
from orderlymq_broker.state.topics.expansionphases import (
    NO_QUEUE,
    Blocker,
    QueueEnds,
    farthest,
    group_blockers,
    offsets_given,
    open_transactions,
    possible_readers,
    queue_ends,
    read_by,
    readers_of,
)
from orderlymq_broker.state.topics.expansionrecords import (
    ExpansionAborted,
    ExpansionFenced,
    ExpansionMoved,
    ExpansionOpened,
    ExpansionPhase,
    ExpansionPropagated,
    ExpansionSwitched,
)
from orderlymq_broker.state.topics.expansiontable import Expansion
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.config import QUEUES_MAX
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.extensions import EXPANSION_MS_MAX, EXT_QUEUE_TOTAL, EXT_TOKEN
from orderlymq_protocol.names import check_group_name, check_topic_name
from orderlymq_protocol.plurals import counted

# An operator takes the next number after the greatest that it sees on any raft group. A larger step than this would
# use the numbers up, and no further expansion could follow.
ATTEMPTS_AHEAD_MAX: Final = 1_000_000
# Blockers in one answer; those farthest behind come first.
BLOCKERS_SHOWN_MAX: Final = 64
# A replica writes them in one go, at 3 us each and as much again for their rows; the leader must send heartbeats meanwhile.
SWITCH_OFFSETS_MAX: Final = 20_000
_TEXT_SHOWN_MAX: Final = 64
# The number of queues and members of a group that takes as much work as one row of a list.
_LOOKED_AT_IN_ONE: Final = 8

_DIGITS_MAX: Final = 19


class Notify(Protocol):
    """Tells the members of groups to rebalance; *more* is sent along."""

    def __call__(self, groups: Sequence[str], **more: str) -> list[Effect]:
        """Return the notices."""


def check_send(context: Context, topic: Topic, ext: dict[str, str]) -> None:
    """Refuse a send if the topic's queue list is changing, or if the sender chose from an old list.

    Raises:
        RequestRefused: nothing was stored; 20505 for senders that name the list they chose from.
    """
    expansion, fencing = topic.expansion, context.view.fencing
    if expansion is None and not fencing:
        return
    said = ext.get(EXT_QUEUE_TOTAL, "")
    total = int(said) if said.isdecimal() and len(said) <= _DIGITS_MAX else 0
    if topic.name in fencing:
        raise _changing(context, topic, total)
    if expansion is None:
        return
    if expansion.phase is ExpansionPhase.FENCED:
        raise _changing(context, topic, total)
    if total and expansion.total and total != expansion.total:
        context.counters["sends_by_old_route"] += 1
        raise RequestRefused(
            ResponseCode.ORDERLYMQ_QUEUES_CHANGED,
            f"topic[{topic.name}] has {counted(expansion.total, 'queue')}, but the sender chose "
            f"one of {total}; get the topic's route from a name server and choose again",
        )
    if expansion.phase is not ExpansionPhase.OPEN and not total:
        raise _changing(context, topic, total)


def _changing(context: Context, topic: Topic, total: int) -> RequestRefused:
    context.counters["sends_during_expansion"] += 1
    code = ResponseCode.ORDERLYMQ_QUEUES_CHANGED if total else ResponseCode.SERVICE_NOT_AVAILABLE

    return RequestRefused(
        code,
        f"service not available now: the number of queues of topic[{topic.name}] is being "
        "changed, nothing was stored; send it again in a moment",
    )


class ExpansionProcessor:
    """Serves operators that expand ordered topics.

    Args:
        notify: tells the members of groups to look for queues again.
        flush: returns the gathered offset commits as records, so that a switch sees them.
        offsets_room: returns how many more offsets there may be: a switch gives each reader one in each new queue.
    """

    def __init__(
        self,
        context: Context,
        notify: Notify,
        flush: Callable[[], list[Record]],
        offsets_room: Callable[[], int],
        retries: RetryWatch,
    ) -> None:
        self._context = context
        self._notify = notify
        self._flush = flush
        self._retries = retries
        self._offsets_room = offsets_room
        # By topic: the phase, and when it ends by this leader's clock.
        self._ends: dict[str, tuple[Expansion, int]] = {}

    # -- requests ----------------------------------------------------------------------------------

    def change(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 20505: one step of an expansion (*action* fence, abort, switch or publish)."""
        ext = request.ext
        token = check_token(self._context, ext, now)
        name = ext.get("topic", "")
        check_name(check_topic_name, name)
        check_unchanging(self._context, "topic", [name])
        action = ext.get("action", "")
        match action:
            case "fence":
                return self._fence(name, request, caller, token)
            case "abort":
                reason = ext.get("reason", "")[:1024] or "aborted by the operator"
                record: Record = ExpansionAborted(name, read_number(ext, "attempt"), reason, token)
            case "switch":
                record = self._switch(name, request, token)
            case "publish":
                settle_ms = read_number(ext, "settleMillis", EXPANSION_MS_MAX)
                record = ExpansionPropagated(name, read_number(ext, "total"), settle_ms, token)
            case _:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"action {action!r} is unknown; use fence, abort, switch or publish",
                )

        return self._propose([*self._flush(), record], request, caller)

    def status(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 20506: the expansions in progress, and those of *topics* (separated by commas) or of all topics."""
        state = self._context.state
        by_topic = state.expansions.by_topic
        asked = request.ext.get("topics", "").split(",")
        wanted = {name for name in asked if name in state.topics.by_name}
        # Expansions in progress are always reported, so that the next operator finds them.
        under_way = state.expansions.under_way.keys()
        names = sorted(wanted | under_way) if "topics" in request.ext else sorted(by_topic)
        empty = fastjson.dumps({EXT_TOKEN: state.operator_token, "topics": []})
        pieces = filled(empty, b'"topics":[', self._rows(names, now))

        return answer_list(self._context, request, caller, pieces)

    def _rows(self, names: Sequence[str], now: Now) -> Iterator[dict[str, Any] | None]:
        """Yield the state of each topic's expansion, and Nones for the work: for each group, and for it in each topic."""
        state = self._context.state
        readers: dict[str, list[str]] = {name: [] for name in names}
        groups = possible_readers(state) if names else []
        for group in groups:
            for name in read_by(state, group, readers.keys()):
                readers[name].append(group)
            yield None
        retries = dict(self._retries.waiting(groups))
        for name in names:
            topic = state.topics.get(name)
            if topic is None:
                continue
            found = self._transactions(topic)
            for group in readers[name]:
                # Compute the ends again for each group, because other turns may run between two groups.
                behind = self._group_blockers(group, topic, queue_ends(topic), retries)
                found = farthest(chain(found, behind), BLOCKERS_SHOWN_MAX)
                work = len(topic.queues) + len(state.members.of_group(group))
                yield from repeat(None, 1 + work // _LOOKED_AT_IN_ONE)
            yield self._shown(topic, readers[name], found, now)

    def _described(self, name: str, now: Now) -> dict[str, Any] | None:
        """Return the state of one topic's expansion, or None if the topic is gone."""
        state = self._context.state
        topic = state.topics.get(name)
        if topic is None:
            return None
        readers = readers_of(state, name)

        return self._shown(topic, readers, self._blockers(topic, readers), now)

    def _shown(
        self, topic: Topic, readers: Sequence[str], found: Sequence[Blocker], now: Now
    ) -> dict[str, Any]:
        """Return the state of a topic's expansion, ready for JSON."""
        expansion = topic.expansion or Expansion(topic.name)

        return {
            "topic": topic.name,
            # A topic that was deleted and created again has another id, although its offsets begin as before.
            "topicId": topic.id,
            "phase": expansion.phase.value,
            "total": expansion.total,
            "nextTotal": expansion.next_total,
            "queues": expansion.queues,
            "writeQueues": topic.config.write_queues,
            "attempt": expansion.attempt,
            "sinceMillis": expansion.since_ms,
            "ageMillis": max(0, now.wall_ms - expansion.since_ms) if expansion.since_ms else 0,
            "grownMillis": expansion.list_since_ms,
            # Messages before these offsets were sent by the former list, all others by this one; null if that is not known.
            "grownBarriers": expansion.grown_barriers,
            "earlierGrowths": [
                {
                    "total": each.total,
                    "grownMillis": each.grown_ms,
                    "grownBarriers": each.grown_barriers,
                }
                for each in expansion.earlier
            ],
            "reason": expansion.reason,
            "barriers": [list(barrier) for barrier in expansion.barriers],
            "blockers": [blocker._asdict() for blocker in found],
            "readers": readers,
        }

    # -- events ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to lead; only the former leader knew how much time of a phase was left."""
        self._ends.clear()
        self._retries.start()

    def moved(self, outcome: ExpansionMoved) -> list[Effect]:
        """React to a step: tell consumers immediately that the queues have changed."""
        self._context.view.fencing.discard(outcome.topic)
        if not outcome.changed:
            return []
        self._context.counters[f"expansion_{outcome.phase.value}"] += 1

        # RocketMQ's clients distribute the queues that they know; our SDK also asks for the queues.
        return self._notify(readers_of(self._context.state, outcome.topic), omqQueues="true")

    def tick(self, now: Now) -> list[Effect]:
        """Abort fences that did not proceed in time; end settling phases that have lasted long enough."""
        self._retries.tick(now)
        effects: list[Effect] = []
        expansions = self._context.state.expansions
        by_topic = expansions.by_topic
        changing = self._context.entries.changing
        self._ends = {name: end for name, end in self._ends.items() if by_topic.get(name) == end[0]}
        for name in expansions.under_way:
            expansion = by_topic[name]
            if expansion.phase not in (ExpansionPhase.FENCED, ExpansionPhase.PROPAGATING):
                continue
            known = self._ends.get(name)
            if known is None or known[0] != expansion:
                self._ends[name] = (expansion, now.monotonic_ms + expansion.limit_ms)
            elif known[1] <= now.monotonic_ms and ("topic", name) not in changing:
                # Propose it again only if this proposal is lost and another limit has passed.
                self._ends[name] = (expansion, now.monotonic_ms + expansion.limit_ms)
                effects.append(Propose([self._end(expansion)]))

        return effects

    def _end(self, expansion: Expansion) -> Record:
        if expansion.phase is ExpansionPhase.PROPAGATING:
            return ExpansionOpened(expansion.topic)
        state = self._context.state
        topic = state.topics.by_name[expansion.topic]
        found = self._blockers(topic, readers_of(state, topic.name))
        reason = found[0].reason if found else "it made no progress, although nothing blocked it"

        return ExpansionAborted(
            expansion.topic, expansion.attempt, f"after {expansion.limit_ms} ms: {reason}", NO_TOKEN
        )

    # -- parts -------------------------------------------------------------------------------------

    def _fence(
        self, name: str, request: RemotingCommand, caller: Caller, token: int
    ) -> list[Effect]:
        ext = request.ext
        present = self._context.state.expansions.by_topic.get(name, Expansion(name))
        record = ExpansionFenced(
            name,
            read_number(ext, "attempt", present.attempt + ATTEMPTS_AHEAD_MAX),
            read_number(ext, "total", QUEUES_MAX),
            read_number(ext, "queues", QUEUES_MAX),
            read_number(ext, "limitMillis", EXPANSION_MS_MAX),
            token,
        )
        self._check_room(name, record.queues, ())
        # Proposals from now on come after the fence in the log.
        view = self._context.view
        view.fencing.add(name)

        return self._propose([record], request, caller, ended=lambda: view.fencing.discard(name))

    def _switch(self, name: str, request: RemotingCommand, token: int) -> ExpansionSwitched:
        ext = request.ext
        groups: tuple[str, ...] = ()
        if request.body:
            body = fastjson.loads_standard(request.body)
            listed = body.get("groups") if isinstance(body, dict) else None
            if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR, 'the body must be {"groups": [names of groups]}'
                )
            for group in listed:
                check_name(check_group_name, group)
            groups = tuple(listed)
        queues = read_number(ext, "queues", QUEUES_MAX)
        self._check_room(name, queues, groups)
        topic = self._context.state.topics.get(name)
        if topic is not None:
            self._check_switch(topic)

        return ExpansionSwitched(
            name,
            read_number(ext, "attempt"),
            read_number(ext, "total", QUEUES_MAX),
            queues,
            groups,
            read_number(ext, "perm", 7) if "perm" in ext else 6,
            token,
            with_mixed=True,
            keeps_ends=True,
        )

    def _check_room(self, name: str, queues: int, groups: Sequence[str]) -> None:
        """Refuse an expansion that would give groups more offsets than the broker group or one switch allows.

        Raises:
            RequestRefused: there is no room (1).
        """
        given = offsets_given(self._context.state, name, queues, groups)
        if given > SWITCH_OFFSETS_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"topic[{name}] cannot have {counted(queues, 'queue')} here in one step: the "
                f"groups that read it would get {given} offsets, and one step may give at most "
                f"{SWITCH_OFFSETS_MAX}; add fewer queues at a time, or delete groups that no "
                "longer read it",
            )
        room = max(0, self._offsets_room())
        if given > room:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"topic[{name}] cannot have {counted(queues, 'queue')} here: the groups that read "
                f"it would get {given} offsets, and this broker group has room for {room} more; "
                "delete groups or topics that are not needed",
            )

    def _check_switch(self, topic: Topic) -> None:
        """Refuse a switch for reasons that only the leader can see.

        Raises:
            RequestRefused: a group has messages of the topic to try again, or lanes in hand or being fetched (1).
        """
        state, name = self._context.state, topic.name
        readers = readers_of(state, name)
        ordered = [group for group in readers if state.is_ordered(group)]
        if late := self._retries.waiting(ordered):
            group, count = late[0]
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, _retry_text(name, group, count))
        expansion = state.expansions.by_topic.get(name)
        if expansion is None or expansion.phase is not ExpansionPhase.FENCED:
            return
        # A replica of a former release would perform the switch anyway.
        mixed = [group for group in readers if state.members.is_broadcasting(group)]
        ends = queue_ends(topic)
        busy = chain(
            *(group_blockers(state, group, topic, ends) for group in mixed),
            *(self._in_hand(group, topic) for group in ordered),
        )
        if blocker := next(busy, None):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, blocker.reason)
        fetching = [group for group in ordered if (group, name) in self._context.view.fetching]
        if fetching:
            # A reset after the fetch would leave its lane in hand but owing nothing.
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"group {fetching[0]} is getting lanes of topic[{name}]; send the request again",
            )

    def _blockers(self, topic: Topic, readers: Sequence[str]) -> list[Blocker]:
        """Return the groups that block an expansion, those farthest behind first; of very many, it compares only some."""
        retries = dict(self._retries.waiting(readers))
        ends = queue_ends(topic)
        behind = (self._group_blockers(group, topic, ends, retries) for group in readers)
        found = chain(self._transactions(topic), chain.from_iterable(behind))

        return farthest(found, BLOCKERS_SHOWN_MAX)

    def _transactions(self, topic: Topic) -> list[Blocker]:
        state = self._context.state
        found = open_transactions(state, topic)
        if count := state.transactions.given_up_of_topic(topic.name):
            what = counted(count, "transaction was", "transactions were")
            text = f"{what} given up: ask again with orderlymq message check-transaction"
            found.append(Blocker("", NO_QUEUE, count, text))

        return found

    def _group_blockers(
        self, group: str, topic: Topic, ends: QueueEnds, retries: Mapping[str, int]
    ) -> Iterator[Blocker]:
        state = self._context.state
        yield from group_blockers(state, group, topic, ends)
        if not state.is_ordered(group):
            return
        if group in retries:
            text = _retry_text(topic.name, group, retries[group])
            yield Blocker(group, NO_QUEUE, retries[group], text)
        yield from self._in_hand(group, topic)
        yield from self._held(group, topic)

    def _in_hand(self, group: str, topic: Topic) -> list[Blocker]:
        """Return a blocker if a group has lanes of a topic in hand, including lanes that owe nothing since a reset."""
        count = self._lanes(group, topic, LaneState.IN_HAND)
        if not count:
            return []
        text = f"group {group} has {counted(count, 'lane')} in hand; topic[{topic.name}] waits"

        return [Blocker(group, NO_QUEUE, count, text)]

    def _held(self, group: str, topic: Topic) -> list[Blocker]:
        """Return a blocker if lanes of a topic wait for an administrator; their messages are missing in their queues."""
        count = self._lanes(group, topic, LaneState.HELD)
        text = f"group {group} holds {counted(count, 'lane')}: release with orderlymq group release"

        return [Blocker(group, NO_QUEUE, count, text)] if count else []

    def _lanes(self, group: str, topic: Topic, state: LaneState) -> int:
        queues = self._context.state.lanes.queues_of(group, topic.name).values()
        return sum(len(queue.by_state[state]) for queue in queues)

    def _propose(
        self,
        records: Sequence[Record],
        request: RemotingCommand,
        caller: Caller,
        *,
        ended: Callable[[], None] = lambda: None,
    ) -> list[Effect]:
        def done(now: Now) -> list[Effect]:
            body = fastjson.dumps(self._described(request.ext["topic"], now))
            return answer(request, caller, body=body)

        return change(self._context, records, request, caller, done=done, ended=ended)


def _retry_text(topic: str, group: str, count: int) -> str:
    return f"group {group} has {counted(count, 'message')} to retry; topic[{topic}] waits"


def read_number(ext: dict[str, str], name: str, maximum: int = (1 << 62)) -> int:
    """Return the number in one of our own fields.

    Raises:
        RequestRefused: the field is not a number from 0 to *maximum* (1).
    """
    text = ext.get(name, "")
    # No number in the protocol is longer, and the time to convert a text grows with the square of its length.
    if not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS_MAX or int(text) > maximum:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"{name} is {text[:_TEXT_SHOWN_MAX]!r}; use a number from 0 to {maximum}",
        )

    return int(text)
