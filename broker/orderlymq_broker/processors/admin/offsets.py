"""
Administration of consumer offsets: 15 of a tool, 43, 45, 222 with 220, 223 with 221, 314.

The rules: a reset computes the offsets here, by store time, or takes exactly the offsets of its body. It computes
them queue by queue, as a list is written, and stores nothing before it has all of them. It is refused if the topic or
the consumer group changed meanwhile. It stores the offsets as a record and then notifies the members (220). They
stop, adopt the offsets and repeat them, as ``groups/offsets.py`` expects. While no member is online, a reset of all
queues answers 206; tools then set the offsets one by one (15). Model: Broker2Client. For one queue, mqadmin sends 15
and then 222; either sets the offset, with or without members online.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from orderlymq_broker.core.bodylimits import ANSWER_SIZE_MAX
from orderlymq_broker.core.brokertoclient import TOOLS, ClientCalls, Silence
from orderlymq_broker.core.clientsessions import Session
from orderlymq_broker.core.effects import Caller, CallSoon, Effect, Now, Send
from orderlymq_broker.core.listings import Rows, table
from orderlymq_broker.core.requestcontext import (
    Context,
    RequestRefused,
    answer,
    answer_lost,
    unanswered,
)
from orderlymq_broker.core.responses import LOST, answer_list, change, raise_unknown_group
from orderlymq_broker.core.uncommitted import LeaderView
from orderlymq_broker.processors.admin.topics import find_topic
from orderlymq_broker.processors.fetch.query import QueryProcessor
from orderlymq_broker.processors.groups.fence import Fence
from orderlymq_broker.processors.groups.groupcreation import known_group
from orderlymq_broker.processors.groups.offsets import Committer
from orderlymq_broker.state.records import Commit, GroupSet
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import ConsumerStatus, OffsetTable
from orderlymq_protocol.body.declaration import ModelError
from orderlymq_protocol.body.fastjson import JsonError
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import LanguageCode, RequestCode, ResponseCode
from orderlymq_protocol.frame.command import FLAG_ONEWAY, RemotingCommand
from orderlymq_protocol.header.catalogue import (
    CloneGroupOffsetHeader,
    GetConsumerStatusHeader,
    ResetOffsetHeader,
)
from orderlymq_protocol.header.pull import UpdateConsumerOffsetHeader

# A tool waits 5 s for an answer; the members must have answered before that.
STATUS_TIMEOUT_MS: Final = 3_000
# The most bytes of members' answers that all open requests together keep; a queue takes about 60 bytes.
KEPT_SIZE_MAX: Final = 4 << 20
# The most offsets that one request may copy; a single topic never has as many.
CLONED_MAX: Final = 10_000

_NEWEST: Final = -1
# The work of resetting one queue, in rows of a list: a search by time reads about a dozen entries.
_ROW_WORK: Final = 10


@dataclass(slots=True)
class _Reset:
    """A reset whose offsets are being computed; nothing is stored before all of them are known.

    Attributes:
        group: the group's configuration when the request came; a group that was deleted and created again has another.
        view: the leader's view when the request came.
        given: the offsets that the request itself names, by queue.
        offsets: the offsets found so far, by queue.
        kept: the queues whose offsets do not change.
    """

    header: ResetOffsetHeader
    topic: Topic
    group: GroupSet | None
    view: LeaderView
    request: RemotingCommand
    caller: Caller
    given: dict[int, int] | None
    offsets: dict[int, int] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)

    @property
    def is_force(self) -> bool:
        """Whether the reset may also move offsets forward."""
        names_offset = self.given is not None or _named_offset(self.header) is not None

        return self.header.is_force or names_offset

    def queue_ids(self) -> Iterable[int]:
        """Return the queues to reset."""
        if self.given is not None:
            return self.given
        number = self.header.queue_id
        if number is not None and number >= 0:
            return (number,)

        return range(self.topic.queue_count)


class OffsetAdministration:
    """Serves administrators' requests about offsets."""

    def __init__(
        self,
        context: Context,
        queries: QueryProcessor,
        committer: Committer,
        fence: Fence,
        asker: ClientCalls,
    ) -> None:
        self._context = context
        self._queries = queries
        self._committer = committer
        self._fence = fence
        self._asker = asker
        # Bytes of members' answers that open requests keep.
        self._kept_size = 0

    # -- questions ---------------------------------------------------------------------------------

    def all_offsets(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 43: the offsets of all groups."""
        offsets = self._context.state.offsets

        def rows() -> Rows:
            for group in sorted(offsets.groups()):
                for topic, queues in sorted(offsets.of_group(group).items()):
                    yield (
                        f"{topic}@{group}",
                        {str(queue_id): queues[queue_id] for queue_id in sorted(queues)},
                    )

        return answer_list(self._context, request, caller, table("offsetTable", rows()))

    def delay_offsets(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 45: the progress of each delay level."""
        delay = self._context.state.delay
        table = {str(queue_id + 1): delay[queue_id] for queue_id in sorted(delay)}

        return answer(request, caller, body=fastjson.dumps({"offsetTable": table}))

    # -- reset -------------------------------------------------------------------------------------

    def commit(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 15: a commit, or a tool's reset of a queue that a member of an ordered group has locked."""
        if not request.is_oneway:
            said = UpdateConsumerOffsetHeader.from_ext(request.ext)
            place = (said.consumer_group, said.topic, said.queue_id)
            if said.commit_offset >= 0 and self._fence.is_of_tool(*place, caller, request.ext):
                header = ResetOffsetHeader(
                    said.topic, said.consumer_group, 0, True, said.queue_id, said.commit_offset
                )
                return self._reset(header, request, caller)

        return self._committer.update(request, caller, now)

    def reset(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 222: set a group's offsets in a topic to a time, or to those in the body (ours); notify its members."""
        # Other brokers, which do not read the body, refuse the request because it has no timestamp.
        ext = {"timestamp": "0", **request.ext} if request.body else request.ext

        return self._reset(ResetOffsetHeader.from_ext(ext), request, caller)

    def _reset(
        self, header: ResetOffsetHeader, request: RemotingCommand, caller: Caller
    ) -> list[Effect]:
        topic = self._topic_to_reset(header)
        given = self._given(request.body, topic) if request.body else None
        state = self._context.state
        reset = _Reset(
            header,
            topic,
            state.groups.get(header.group),
            self._context.view,
            unanswered(request),
            caller,
            given,
        )
        rows = table("offsetTable", self._rows(reset))

        return answer_list(
            self._context,
            request,
            caller,
            ((text, _ROW_WORK * work) for text, work in rows),
            then=lambda body: [CallSoon(partial(self._store, reset, body))],
        )

    def _topic_to_reset(self, header: ResetOffsetHeader) -> Topic:
        """Return the topic of a reset if the reset is allowed.

        Raises:
            RequestRefused: topic, queue or group do not exist or are being deleted, or no member is online (206).
        """
        topic = self._context.state.topics.get(header.topic)
        if topic is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
            )
        raise_unknown_group(self._context, header.group)
        self._committer.check_staying(header.group, [topic.name])
        if not self._sessions_of(header.group) and not _names_queue(header):
            raise RequestRefused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        if header.queue_id is not None and header.queue_id >= topic.queue_count:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"topic[{topic.name}] has no queue {header.queue_id}, only queues 0 to "
                f"{topic.queue_count - 1}",
            )

        return topic

    def _rows(self, reset: "_Reset") -> Iterator[tuple[MessageQueue, int]]:
        """Compute and yield the offset of every queue after a reset; stop if the leadership ends."""
        header, broker = reset.header, self._context.settings.group
        for queue_id in reset.queue_ids():
            if self._context.view is not reset.view:
                return
            offset = self._compute(reset, queue_id)
            if self._is_forward(reset, queue_id, offset):
                offset = self._context.state.offsets.get(header.group, header.topic, queue_id) or 0
                reset.kept.add(queue_id)
            reset.offsets[queue_id] = offset
            yield MessageQueue(header.topic, broker, queue_id), offset

    def _store(self, reset: "_Reset", body: bytes, now: Now) -> list[Effect]:
        """Store the offsets of a reset, which *body* lists, if it is still allowed; answer when they are applied."""
        request, caller = reset.request, reset.caller
        if self._context.view is not reset.view:
            return answer_lost(request, caller, None, LOST)
        try:
            moved = self._moved(reset)
        except RequestRefused as refused:
            return answer(request, caller, refused.code, remark=refused.remark)
        records = [*self._committer.take(), *self._committer.reset(moved, now)]

        def done(_: Now) -> list[Effect]:
            return [*self._push(reset, body), *answer(request, caller, body=body)]

        if not records:
            return done(now)

        return change(self._context, records, request, caller, done=done, in_parts=True)

    def _moved(self, reset: "_Reset") -> list[Commit]:
        """Return the changes that a reset makes now.

        Raises:
            RequestRefused: the topic or the group was changed meanwhile, or there is no room.
        """
        header, state = reset.header, self._context.state
        topic = self._topic_to_reset(header)
        moved = [
            Commit(header.group, topic.name, queue_id, offset)
            for queue_id, offset in reset.offsets.items()
            if queue_id not in reset.kept
            and self._is_change(header.group, topic.name, queue_id, offset)
        ]
        is_other = topic is not reset.topic or state.groups.get(header.group) is not reset.group
        if is_other or any(self._is_forward(reset, each.queue_id, each.offset) for each in moved):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"topic[{topic.name}] or group[{header.group}] was changed meanwhile; send the "
                "request again",
            )
        self._committer.check_room(moved)

        return moved

    def _is_change(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a reset to an offset changes anything.

        A reset to the stored offset does if more is consumed than this offset says: by key, or by the holder of a lock.
        """
        state = self._context.state
        place = (group, topic, queue_id)

        return (
            state.offsets.get(*place) != offset
            or state.is_by_key(group)
            or state.locks.epoch(*place) > 0
        )

    def _is_forward(self, reset: "_Reset", queue_id: int, offset: int) -> bool:
        """Return whether an offset would move a group forward although the reset may only move it back."""
        if reset.is_force:
            return False
        present = self._context.state.offsets.get(reset.header.group, reset.topic.name, queue_id)

        return present is not None and offset > present

    def _given(self, body: bytes, topic: Topic) -> dict[int, int]:
        """Return the offsets in a body by queue; each must be of a queue of this topic and within its bounds."""
        try:
            table = OffsetTable.from_json(body).offset_table
        except (JsonError, ModelError) as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the offsets: {error}") from error
        broker = self._context.settings.group
        for place, offset in table.items():
            queue = topic.queues.get(place.queue_id)
            low, high = (0, 0) if queue is None else (queue.min_offset, queue.next_offset)
            is_here = (place.topic, place.broker_name) == (topic.name, broker)
            if not is_here or not 0 <= place.queue_id < topic.queue_count:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR, f"topic[{topic.name}] has no queue {place}"
                )
            if not low <= offset <= high:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"offset {offset} is outside of queue {place.queue_id} of {topic.name}, which holds {low} to {high}",
                )

        return {place.queue_id: offset for place, offset in sorted(table.items())}

    def _compute(self, reset: "_Reset", queue_id: int) -> int:
        header = reset.header
        if reset.given is not None:
            return reset.given[queue_id]
        queue = reset.topic.queues.get(queue_id)
        if queue is None:
            return 0
        offset = _named_offset(header)
        if offset is not None:
            return max(queue.min_offset, min(offset, queue.next_offset))
        if header.timestamp == _NEWEST:
            return queue.next_offset

        return self._queries.search(queue, header.timestamp, "LOWER")

    def _push(self, reset: "_Reset", body: bytes) -> list[Effect]:
        """Return the requests that tell a group's members the offsets at which to continue."""
        header = reset.header
        ext = ResetOffsetHeader(header.topic, header.group, header.timestamp, False).to_ext()
        sessions = self._sessions_of(header.group)
        listed = b""
        if any(session.language == LanguageCode.CPP for session in sessions):
            listed = _listed(header.topic, self._context.settings.group, reset.offsets)
        effects: list[Effect] = []
        for session in sessions:
            command = RemotingCommand(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                self._context.next_opaque(),
                FLAG_ONEWAY,
                dict(ext),
                listed if session.language == LanguageCode.CPP else body,
            )
            effects.append(Send(session.caller.connection, command))

        return effects

    # -- what members think ------------------------------------------------------------------------

    def member_status(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 223: ask the members of a group for their offsets (221); leave out members that fail or send too much."""
        header = GetConsumerStatusHeader.from_ext(request.ext)
        members = [
            (client_id, session)
            for session in self._sessions_of(header.group)
            for client_id in sorted(session.client_ids)
            if header.client_addr in (None, "", client_id)
            and (header.group, client_id) in self._context.sessions.presence
        ]
        if not members:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{header.group}]",
            )
        if len(members) > TOOLS.of_asker:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"group[{header.group}] has {len(members)} members, but at most {TOOLS.of_asker} "
                "can be asked at a time: name one as clientAddr",
            )
        kept, missing = unanswered(request), len(members)
        rows: list[bytes] = []

        def answered(client_id: str, response: RemotingCommand | Silence) -> list[Effect]:
            nonlocal missing
            rows.append(self._keep(client_id, response))
            missing -= 1
            if missing:
                return []
            self._kept_size -= sum(map(len, rows))
            table = b",".join(filter(None, rows))
            body = b'{"consumerTable":{' + table + b'},"messageQueueTable":{}}'
            return answer(kept, caller, body=body)

        deadline_ms = now.monotonic_ms + STATUS_TIMEOUT_MS

        code, ext = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header.to_ext()
        asked = [
            (
                session.caller.connection,
                RemotingCommand(code, ext=ext),
                partial(answered, client_id),
            )
            for client_id, session in members
        ]

        return [*self._asker.ask_all(asked, deadline_ms, asker=caller)]

    def _keep(self, client_id: str, response: RemotingCommand | Silence) -> bytes:
        """Return a member's offsets as JSON for the answer, and count its size; empty if it failed or there is no room.

        Each is written when it arrives, because writing all of them together takes seconds.
        """
        if (
            not isinstance(response, RemotingCommand)
            or response.code != ResponseCode.SUCCESS
            or len(response.body) > min(ANSWER_SIZE_MAX, KEPT_SIZE_MAX - self._kept_size)
        ):
            return b""
        try:
            table = ConsumerStatus.from_json(response.body).message_queue_table
            row = fastjson.dumps({client_id: table})[1:-1]
        except (JsonError, ModelError):
            # One client's fault must not hide the answers of the others.
            return b""
        if self._kept_size + len(row) > KEPT_SIZE_MAX:
            return b""
        self._kept_size += len(row)

        return row

    # -- copies ------------------------------------------------------------------------------------

    def clone(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 314: copy the offsets of one group to another."""
        header = CloneGroupOffsetHeader.from_ext(request.ext)
        state = self._context.state
        raise_unknown_group(self._context, header.src_group)
        source = state.offsets.of_group(header.src_group)
        topics = [header.topic] if header.topic else sorted(source)
        for topic in topics:
            find_topic(self._context, topic)
        if not header.offline and state.members.of_group(header.dest_group):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"members of group[{header.dest_group}] are online and would overwrite the "
                "offsets; stop its consumers first",
            )
        commits = [
            Commit(header.dest_group, topic, queue_id, offset)
            for topic in topics
            for queue_id, offset in sorted(source.get(topic, {}).items())
        ]
        if not commits:
            return answer(request, caller)
        if len(commits) > CLONED_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"group[{header.src_group}] has {len(commits)} offsets, but at most {CLONED_MAX} "
                "are copied in one request: name a topic",
            )
        known_group(self._context, header.dest_group)
        self._committer.check_staying(header.dest_group, topics)
        self._committer.check_room(commits)
        records = [*self._committer.take(), *self._committer.reset(commits, now)]

        return change(self._context, records, request, caller, in_parts=True)

    def _sessions_of(self, group: str) -> list[Session]:
        sessions = self._context.sessions
        found = [sessions.get(connection) for connection in sessions.members_at(group)]

        return [session for session in found if session is not None]


def _names_queue(header: ResetOffsetHeader) -> bool:
    return header.queue_id is not None and header.queue_id >= 0


def _named_offset(header: ResetOffsetHeader) -> int | None:
    """Return the offset that a reset of one queue names, or None."""
    offset = header.offset

    return offset if _names_queue(header) and offset is not None and offset >= 0 else None


def _listed(topic: str, broker: str, offsets: Mapping[int, int]) -> bytes:
    """Return the body of 220 in the form that the C++ client reads: a list instead of a map."""
    rows = [
        {**MessageQueue(topic, broker, queue_id).to_json_value(), "offset": offset}
        for queue_id, offset in offsets.items()
    ]

    return fastjson.dumps({"offsetTable": rows})
