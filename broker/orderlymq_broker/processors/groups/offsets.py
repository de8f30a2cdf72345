"""
Consumer offsets: 15, the commit that a pull carries, and the query 14.

The rules: only the leader answers 14, from the applied state, after it has applied all earlier commits. A commit that
wants no answer is gathered. It goes into the log with the next tick or before any change of a lock, so the hand-over
of its queue never overtakes it. It carries the epoch under which it was accepted. Offsets move forward only, with
three exceptions: a tool may set those of a group without members online; clients that were told to reset (220) may
repeat the reset; and pull consumers choose their offsets if no order is kept. ``fence.py`` decides who may commit.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Final

from orderlymq_broker.core.capacity import check_backlog
from orderlymq_broker.core.effects import Caller, Effect, Now, Propose
from orderlymq_broker.core.entrybuilder import OFFSET_MOVES, in_pieces, parts
from orderlymq_broker.core.longwalks import WALK_STEP_MAX
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer, unanswered
from orderlymq_broker.core.responses import answer_when_applied
from orderlymq_broker.processors.groups.clientids import check_named
from orderlymq_broker.processors.groups.fence import Fence, Verdict, refuse_by_key
from orderlymq_broker.processors.groups.groupcreation import known_group
from orderlymq_broker.state.records import (
    Commit,
    OffsetsCommitted,
    OffsetsReset,
    Record,
)
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.body.clients import CONSUME_ACTIVELY
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import QueryConsumerOffsetHeader
from orderlymq_protocol.header.extensions import EXT_CLIENT_ID
from orderlymq_protocol.header.pull import PullMessageHeader, UpdateConsumerOffsetHeader

# A client that is told to reset stops for 10 s and writes the new offset with its next commit, 5 s later at most.
# RocketMQ's Java client does so for one broker group after the other, which takes 645 s for 64 of them
# (`spec.groups`). Ordered listeners of 5.5 wait for each busy queue. While a queue waits for its turn, its former
# offset is committed every 5 s.
RESET_ECHO_MS: Final = 15 * 60_000
# A pull consumer is not told to reset. During this time, a commit of its former offset does not count as a seek:
# within it, the consumer either asks for the new offset or never does.
RESET_UNHEARD_MS: Final = 60_000
# The most offsets of all groups in all queues: up to 200 MB of memory on every replica, and 5 MiB in the answer to 43.
OFFSETS_MAX: Final = 500_000

_NOT_FOUND: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
_OVERTAKEN: Final = (
    "offset {offset} of queue {queue} of topic {topic} in the group {group} was not stored: the "
    "queue's lock has changed meanwhile; lock it (code 41) before committing"
)

_FULL: Final = (
    "offset {offset} of queue {queue} of topic {topic} in the group {group} was not stored: this "
    "broker group already has the largest number of offsets, {limit} queues of consumer groups; "
    "delete groups or topics that are not needed"
)

_Key = tuple[str, str, int]


class Committer:
    """Gathers commits and answers offset queries."""

    def __init__(self, context: Context, fence: Fence) -> None:
        self._context = context
        self._fence = fence
        self._pending: dict[_Key, Commit] = {}
        # Offset and time of each reset (monotonic ms), in the order of the times.
        self._resets: dict[_Key, tuple[int, int]] = {}

    def update(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 15: commit an offset."""
        context = self._context
        header = UpdateConsumerOffsetHeader.from_ext(request.ext)
        group, name, queue_id = header.consumer_group, header.topic, header.queue_id
        topic = context.state.topics.by_name.get(name)
        if topic is None or not 0 <= queue_id < topic.queue_count:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] has no queue {queue_id}"
            )
        known_group(self._context, group)  # the offset belongs to the group
        self.check_staying(group, [name])
        check_named(context, request.ext, caller, now)
        verdict = self._fence.judge_commit(
            group, name, queue_id, caller, request.ext, wants_answer=not request.is_oneway
        )
        if not verdict.passes:
            if self._is_stored_reset((group, name, queue_id), header.commit_offset, now):
                return answer(request, caller)
            refuse_by_key(context.state.groups.get(group))
            context.counters["fenced_commits"] += 1
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, verdict.refusal)
        session = context.sessions.get(caller.connection)
        if session is not None:
            session.committed = True
        problem = self._out_of_range(topic, queue_id, header.commit_offset)
        if problem:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, problem)
        if self._is_reset(header, request, caller, now):
            return self._reset_now(header, request, caller)
        refuse_by_key(context.state.groups.get(group))
        if not request.is_oneway:
            check_backlog(context)
        self.check_room([Commit(group, name, queue_id, header.commit_offset)])
        self._gather(group, topic, queue_id, header.commit_offset, verdict.epoch)
        if request.is_oneway:
            return []
        records = self.take()
        if not records:
            return self._answer_commit(header, request, caller)
        kept = unanswered(request)

        return answer_when_applied(
            kept, caller, records, then=lambda _, __: self._answer_commit(header, kept, caller)
        )

    def commit_with_pull(
        self,
        header: PullMessageHeader,
        topic: Topic,
        verdict: Verdict,
        ext: dict[str, str],
        caller: Caller,
    ) -> None:
        """Take the commit carried by a pull that passed; if the commit is refused, the pull is still served."""
        if EXT_CLIENT_ID not in ext and self._context.sessions.get(caller.connection) is None:
            # The pull's sender was only assumed to be the holder; its commit is checked on its own.
            verdict = self._fence.judge_commit(
                header.consumer_group, topic.name, header.queue_id, caller, ext, wants_answer=False
            )
        offset = header.commit_offset
        if verdict.refusal:
            self._context.counters["fenced_commits"] += 1
        elif not self._out_of_range(topic, header.queue_id, offset):
            try:
                self.check_staying(header.consumer_group, [topic.name])
                self.check_room(
                    [Commit(header.consumer_group, topic.name, header.queue_id, offset)]
                )
            except RequestRefused:
                return
            self._gather(header.consumer_group, topic, header.queue_id, offset, verdict.epoch)

    def query(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 14; never answer with an error code while the result is uncertain."""
        header = QueryConsumerOffsetHeader.from_ext(request.ext)
        key = (header.consumer_group, header.topic, header.queue_id)
        if key in self._pending or OFFSET_MOVES in self._context.entries.pending_removals:
            # The answer must not become smaller after a crash of this leader, and must follow the sender's own
            # commits. A record without commits moves nothing, but is applied after the others.
            check_backlog(self._context)
            records, kept = self.take() or [OffsetsCommitted(())], unanswered(request)
            return [
                Propose(records, applied=lambda _, __: self._answer_query(header, kept, caller))
            ]

        return self._answer_query(header, request, caller)

    def take(self) -> list[Record]:
        """Return the gathered commits as records and clear them; the caller proposes them first."""
        if not self._pending:
            return []
        commits = list(self._pending.values())
        self._pending.clear()

        return [OffsetsCommitted(part) for part in parts(commits)]

    def tick(self, now: Now) -> list[Effect]:
        """Propose the commits gathered since the last tick, a few thousand at most; remove resets that are over.

        Do not propose while other commits are uncommitted: clients repeat an offset until it is stored, so on a full
        disk these proposals would pile up.
        """
        if self._resets:
            # The oldest come first; the others have their turn in the next ticks.
            first = islice(self._resets.items(), WALK_STEP_MAX)
            over_ms = now.monotonic_ms - RESET_ECHO_MS
            for key in [key for key, (_, reset_ms) in first if reset_ms <= over_ms]:
                del self._resets[key]
        if OFFSET_MOVES in self._context.entries.pending_removals:
            return []
        return in_pieces(self.take())

    def reset(self, commits: Sequence[Commit], now: Now) -> list[Record]:
        """Return the records that set offsets, even backwards, and expect clients to repeat the reset.

        For administration: gathered commits of these queues are dropped, and until
        ``RESET_ECHO_MS`` have passed, a commit of exactly the reset offset counts as a reset.
        """
        for commit in commits:
            key = _key(commit)
            self._pending.pop(key, None)
            self._resets.pop(key, None)
            self._resets[key] = (commit.offset, now.monotonic_ms)

        return [OffsetsReset(part, fences=True) for part in parts(commits)]

    def check_staying(self, group: str, topics: Iterable[str]) -> None:
        """Refuse offsets that would follow a deletion in the log: a new topic or group of the same name would get them.

        Raises:
            RequestRefused: the group or a topic is being deleted (1).
        """
        removals = self._context.entries.pending_removals
        for place in (
            (("group", group), *(("topic", topic) for topic in topics)) if removals else ()
        ):
            if place in removals:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR, f"{place[0]}[{place[1]}] is being deleted"
                )

    def room(self) -> int:
        """Return how many more offsets there may be; stored, gathered and proposed ones count."""
        return offsets_room(self._context, OFFSETS_MAX) - len(self._pending)

    def check_room(self, commits: Sequence[Commit]) -> None:
        """Refuse new offsets, of queues in which a group has none yet, if there are too many.

        Raises:
            RequestRefused: there are too many (1).
        """
        offsets = self._context.state.offsets
        room = self.room()
        if room >= len(commits):
            return
        new = [each for each in commits if offsets.get(*_key(each)) is None]
        new = [each for each in new if _key(each) not in self._pending]
        if len(new) > max(room, 0):
            self._context.counters["commits_without_room"] += 1
            first = new[0]
            remark = _FULL.format(
                offset=first.offset,
                queue=first.queue_id,
                topic=first.topic,
                group=first.group,
                limit=OFFSETS_MAX,
            )
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, remark)

    def forget(self) -> None:
        """Drop the gathered commits: the leadership is lost, and no answer has confirmed them."""
        self._pending.clear()
        self._resets.clear()

    def forget_deleted(self, topics: Collection[str], groups: Collection[str]) -> None:
        """Drop the gathered commits of deleted topics and groups, because new ones may have their names by the next tick.

        Called once per entry; it takes about 10 ms for 100,000 offsets that were reset within the last 15 minutes.
        """
        for kept in (self._pending, self._resets):
            for key in [key for key in kept if key[0] in groups or key[1] in topics]:
                del kept[key]

    # -- parts -------------------------------------------------------------------------------------

    def _out_of_range(self, topic: Topic, queue_id: int, offset: int) -> str:
        """Return why an offset cannot be kept; beyond the end, the group would skip messages that are stored later."""
        queue = topic.queues.get(queue_id)
        end = queue.next_offset if queue is not None else 0
        if 0 <= offset <= end:
            return ""
        self._context.counters["commits_out_of_range"] += 1
        return (
            f"offset {offset} is outside of queue {queue_id} of {topic.name}, which ends at {end}"
        )

    def _gather(self, group: str, topic: Topic, queue_id: int, offset: int, epoch: int) -> None:
        """Keep a commit for the next record, unless it does not move forward."""
        stored = self._context.state.offsets.get(group, topic.name, queue_id)
        if stored is not None and offset <= stored:
            if offset < stored:
                self._context.counters["commits_backwards"] += 1
            return
        key = (group, topic.name, queue_id)
        pending = self._pending.get(key)
        if pending is None or offset > pending.offset or epoch != pending.epoch:
            self._pending[key] = Commit(group, topic.name, queue_id, offset, epoch)

    def _last_reset(self, key: _Key, now: Now) -> tuple[int, int]:
        """Return the offset of a queue's last reset and its age in ms, or -1 and ``RESET_ECHO_MS`` if none is kept."""
        offset, reset_ms = self._resets.get(key, (-1, now.monotonic_ms - RESET_ECHO_MS))

        return offset, now.monotonic_ms - reset_ms

    def _is_stored_reset(self, key: _Key, offset: int, now: Now) -> bool:
        """Return whether a former holder repeats a reset that is stored; such a client requests its lock next."""
        wanted, age_ms = self._last_reset(key, now)
        stored = self._context.state.offsets.get(*key)

        return age_ms < RESET_ECHO_MS and offset == wanted == stored

    def _is_reset(
        self, header: UpdateConsumerOffsetHeader, request: RemotingCommand, caller: Caller, now: Now
    ) -> bool:
        """Return whether a commit may move backwards."""
        key = (header.consumer_group, header.topic, header.queue_id)
        offset, age_ms = self._last_reset(key, now)
        if age_ms < RESET_ECHO_MS and offset == header.commit_offset:
            return True
        # A member that has not heard of the reset yet continues at its former offset, which is no step back.
        if age_ms >= RESET_UNHEARD_MS and self._goes_back(header, request.ext, caller):
            return True
        return (
            not request.is_oneway
            and EXT_CLIENT_ID not in request.ext
            and not self._context.state.members.of_group(header.consumer_group)
            and not self._consumes(caller, header.consumer_group)
        )

    def _goes_back(
        self, header: UpdateConsumerOffsetHeader, ext: dict[str, str], caller: Caller
    ) -> bool:
        """Return whether a pull consumer went back, as after a seek; in an ordered group it may not."""
        state, group = self._context.state, header.consumer_group
        key = (group, header.topic, header.queue_id)
        pending = self._pending.get(key)
        present = state.offsets.get(*key) if pending is None else pending.offset
        if present is None or header.commit_offset >= present:
            return False
        if state.is_ordered(group) or state.is_by_key(group):
            return False
        members = state.members.of_group(group)
        session = self._context.sessions.get(caller.connection)
        named = ext.get(EXT_CLIENT_ID)
        if named is None and (session is None or not session.client_ids):
            # Java up to 4.4 commits to the second port (VIP channel), on which no heartbeat comes.
            here = state.members.at_host(group, caller.host)
            types = [each.consume_type for each in here]
            return bool(types) and all(each == CONSUME_ACTIVELY for each in types)
        ids = session.client_ids if session is not None and named is None else {named or ""}

        return any(
            each in members and members[each].consume_type == CONSUME_ACTIVELY for each in ids
        )

    def _consumes(self, caller: Caller, group: str) -> bool:
        """Return whether a connection consumes for the group, even if it is no longer a member's."""
        session = self._context.sessions.get(caller.connection)

        return session is not None and session.consumes(group)

    def _reset_now(
        self, header: UpdateConsumerOffsetHeader, request: RemotingCommand, caller: Caller
    ) -> list[Effect]:
        check_backlog(self._context)
        commit = Commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        self.check_room([commit])
        key = _key(commit)
        self._pending.pop(key, None)
        if self._resets.get(key, (commit.offset, 0))[0] != commit.offset:
            # Earlier resets to other offsets are no longer valid.
            del self._resets[key]

        return answer_when_applied(request, caller, [*self.take(), OffsetsReset((commit,))])

    def _answer_commit(
        self, header: UpdateConsumerOffsetHeader, request: RemotingCommand, caller: Caller
    ) -> list[Effect]:
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        stored = self._context.state.offsets.get(group, topic, queue_id)
        if stored is None or stored < header.commit_offset:
            # The lock under which it was accepted was released earlier in the log.
            self._context.counters["fenced_commits"] += 1
            remark = _OVERTAKEN.format(
                offset=header.commit_offset, queue=queue_id, topic=topic, group=group
            )
            return answer(request, caller, ResponseCode.SYSTEM_ERROR, remark=remark)

        return answer(request, caller)

    def _answer_query(
        self, header: QueryConsumerOffsetHeader, request: RemotingCommand, caller: Caller
    ) -> list[Effect]:
        state = self._context.state
        stored = state.offsets.get(header.consumer_group, header.topic, header.queue_id)
        if stored is None:
            topic = state.topics.get(header.topic)
            queue = topic.queues.get(header.queue_id) if topic is not None else None
            begins_at_zero = queue is None or queue.min_offset == 0
            if not begins_at_zero or header.set_zero_if_not_found is False:
                return answer(request, caller, ResponseCode.QUERY_NOT_FOUND, remark=_NOT_FOUND)
            stored = 0

        return answer(request, caller, ext={"offset": str(stored)})


def offsets_room(context: Context, offsets_max: int) -> int:
    """Return how many more offsets fit under a limit; proposed ones count."""
    return offsets_max - context.state.offsets.count - context.entries.pending_rows["offsets",]


def _key(commit: Commit) -> _Key:
    return commit.group, commit.topic, commit.queue_id
