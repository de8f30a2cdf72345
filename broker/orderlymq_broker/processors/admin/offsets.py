"""
Administration of consumer offsets: 15 of a tool, 43, 45, 222 with 220, 223 with 221, 314.

The rules: a reset computes the offsets here, by store time, or takes exactly those of its body; it stores them as a
record and then notifies the members (220), who stop, take them over and repeat them (``groups/offsets.py`` expects that); while nobody
is online a reset of all queues answers 206, which tools take as the sign to set offsets one by one (15). Model:
Broker2Client. For one queue mqadmin sends 15 and then 222; either sets it, with or without members online.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from orderlymq_broker.core.bodylimits import ANSWER_SIZE_MAX
from orderlymq_broker.core.brokertoclient import ClientCalls, Silence
from orderlymq_broker.core.clientsessions import Session
from orderlymq_broker.core.effects import Effect, Now, Peer, Send
from orderlymq_broker.core.listings import Rows, table
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer, unanswered
from orderlymq_broker.core.responses import answer_list, change, raise_unknown_group
from orderlymq_broker.processors.admin.topics import find_topic
from orderlymq_broker.processors.fetch.query import QueryProcessor
from orderlymq_broker.processors.groups.fence import Fence
from orderlymq_broker.processors.groups.groupcreation import known_group
from orderlymq_broker.processors.groups.offsets import Committer
from orderlymq_broker.state.records import Commit
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

# A tool waits 5 s for an answer; the members must have answered before.
STATUS_TIMEOUT_MS: Final = 3_000
# Offsets that one request copies; one topic never has so many.
CLONED_MAX: Final = 10_000

_NEWEST: Final = -1


class OffsetAdministration:
    """Serves what administrators ask about offsets."""

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

    # -- questions ---------------------------------------------------------------------------------

    def all_offsets(self, request: RemotingCommand, peer: Peer, now: Now) -> list[Effect]:
        """Serve 43: the offsets of all groups."""
        offsets = self._context.state.offsets

        def rows() -> Rows:
            for group in sorted(offsets.groups()):
                for topic, queues in sorted(offsets.of_group(group).items()):
                    yield (
                        f"{topic}@{group}",
                        {str(queue_id): queues[queue_id] for queue_id in sorted(queues)},
                    )

        return answer_list(self._context, request, peer, table("offsetTable", rows()))

    def delay_offsets(self, request: RemotingCommand, peer: Peer, now: Now) -> list[Effect]:
        """Serve 45: how far each delay level is handed on."""
        delay = self._context.state.delay
        table = {str(queue_id + 1): delay[queue_id] for queue_id in sorted(delay)}

        return answer(request, peer, body=fastjson.dumps({"offsetTable": table}))

    # -- reset -------------------------------------------------------------------------------------

    def commit(self, request: RemotingCommand, peer: Peer, now: Now) -> list[Effect]:
        """Serve 15: a commit, or a tool's reset of a queue that a member of an ordered group holds."""
        if not request.is_oneway:
            said = UpdateConsumerOffsetHeader.from_ext(request.ext)
            place = (said.consumer_group, said.topic, said.queue_id)
            if said.commit_offset >= 0 and self._fence.is_of_tool(*place, peer, request.ext):
                header = ResetOffsetHeader(
                    said.topic, said.consumer_group, 0, True, said.queue_id, said.commit_offset
                )
                return self._reset(header, request, peer, now)

        return self._committer.update(request, peer, now)

    def reset(self, request: RemotingCommand, peer: Peer, now: Now) -> list[Effect]:
        """Serve 222: set a group's offsets in a topic to a time, or to those of the body (ours); notify its members."""
        # Without a timestamp other brokers, which read no body, refuse it.
        ext = {"timestamp": "0", **request.ext} if request.body else request.ext

        return self._reset(ResetOffsetHeader.from_ext(ext), request, peer, now)

    def _reset(
        self, header: ResetOffsetHeader, request: RemotingCommand, peer: Peer, now: Now
    ) -> list[Effect]:
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
        wanted, kept = (
            self._given(request.body, topic) if request.body else self._wanted(header, topic)
        )
        moved = [
            Commit(header.group, topic.name, queue_id, offset)
            for queue_id, offset in wanted.items()
            if queue_id not in kept and self._is_change(header.group, topic.name, queue_id, offset)
        ]
        broker = self._context.settings.group
        table = {MessageQueue(topic.name, broker, queue): at for queue, at in wanted.items()}
        self._committer.check_room(moved)
        records = self._committer.take()
        records += self._committer.reset(moved, now)
        body = OffsetTable(table).to_json()

        def done() -> list[Effect]:
            return [*self._push(header, table), *answer(request, peer, body=body)]

        if not records:
            return done()

        return change(self._context, records, request, peer, done=done, in_parts=True)

    def _is_change(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a reset to an offset changes anything.

        One to the stored offset does where more is consumed than that says: by key, or by the holder of a lock.
        """
        state = self._context.state
        place = (group, topic, queue_id)

        return (
            state.offsets.get(*place) != offset
            or state.is_by_key(group)
            or state.locks.epoch(*place) > 0
        )

    def _given(self, body: bytes, topic: Topic) -> tuple[dict[int, int], frozenset[int]]:
        """Return as `_wanted` the offsets that a body names: all of this topic, and within what their queues keep."""
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

        return {place.queue_id: offset for place, offset in sorted(table.items())}, frozenset()

    def _wanted(
        self, header: ResetOffsetHeader, topic: Topic
    ) -> tuple[dict[int, int], frozenset[int]]:
        """Return the offset of every queue after the reset, and the queues that it leaves as they are."""
        queue_ids = range(topic.queue_count)
        if header.queue_id is not None and header.queue_id >= 0:
            if header.queue_id not in queue_ids:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"topic[{topic.name}] has no queue {header.queue_id}, only 0 to {len(queue_ids) - 1}",
                )
            queue_ids = range(header.queue_id, header.queue_id + 1)
        offsets = self._context.state.offsets
        is_force = header.is_force or _named_offset(header) is not None
        wanted: dict[int, int] = {}
        kept: set[int] = set()
        for queue_id in queue_ids:
            wanted[queue_id] = self._compute(header, topic, queue_id)
            present = offsets.get(header.group, topic.name, queue_id)
            if present is not None and wanted[queue_id] > present and not is_force:
                wanted[queue_id] = present
                kept.add(queue_id)

        return wanted, frozenset(kept)

    def _compute(self, header: ResetOffsetHeader, topic: Topic, queue_id: int) -> int:
        queue = topic.queues.get(queue_id)
        if queue is None:
            return 0
        offset = _named_offset(header)
        if offset is not None:
            return max(queue.min_offset, min(offset, queue.next_offset))
        if header.timestamp == _NEWEST:
            return queue.next_offset

        return self._queries.search(queue, header.timestamp, "LOWER")

    def _push(self, header: ResetOffsetHeader, table: Mapping[MessageQueue, int]) -> list[Effect]:
        """Return the requests that send the members of a group the offsets to go on at."""
        ext = ResetOffsetHeader(header.topic, header.group, header.timestamp, False).to_ext()
        plain = OffsetTable(table).to_json()
        effects: list[Effect] = []
        for session in self._sessions_of(header.group):
            body = _listed(table) if session.language == LanguageCode.CPP else plain
            command = RemotingCommand(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                self._context.next_opaque(),
                FLAG_ONEWAY,
                dict(ext),
                body,
            )
            effects.append(Send(session.peer.connection, command))

        return effects

    # -- what members think ------------------------------------------------------------------------

    def member_status(self, request: RemotingCommand, peer: Peer, now: Now) -> list[Effect]:
        """Serve 223: ask the members of a group (221) where they stand; those that do not know are left out."""
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
        kept, missing = unanswered(request), len(members)
        table: dict[str, Mapping[MessageQueue, int]] = {}

        def answered(client_id: str, response: RemotingCommand | Silence) -> list[Effect]:
            nonlocal missing
            if (
                isinstance(response, RemotingCommand)
                and response.code == ResponseCode.SUCCESS
                and len(response.body) <= ANSWER_SIZE_MAX
            ):
                # A client's fault must not hide what the others say.
                with suppress(JsonError, ModelError):
                    table[client_id] = ConsumerStatus.from_json(response.body).message_queue_table
            missing -= 1
            return [] if missing else answer(kept, peer, body=ConsumerStatus({}, table).to_json())

        deadline_ms = now.monotonic_ms + STATUS_TIMEOUT_MS

        return [
            self._asker.ask(
                session.peer.connection,
                RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext=header.to_ext()),
                deadline_ms,
                partial(answered, client_id),
                asker=peer.connection,
            )
            for client_id, session in members
        ]

    # -- copies ------------------------------------------------------------------------------------

    def clone(self, request: RemotingCommand, peer: Peer, now: Now) -> list[Effect]:
        """Serve 314: give a group the offsets of another."""
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
                f"group[{header.dest_group}] is online and would overwrite the offsets; stop its "
                f"consumers first",
            )
        commits = [
            Commit(header.dest_group, topic, queue_id, offset)
            for topic in topics
            for queue_id, offset in sorted(source.get(topic, {}).items())
        ]
        if not commits:
            return answer(request, peer)
        if len(commits) > CLONED_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"group[{header.src_group}] has {len(commits)} offsets, at most {CLONED_MAX} are copied in one request: name a topic",
            )
        known_group(self._context, header.dest_group)
        self._committer.check_staying(header.dest_group, topics)
        self._committer.check_room(commits)
        records = [*self._committer.take(), *self._committer.reset(commits, now)]

        return change(self._context, records, request, peer, in_parts=True)

    def _sessions_of(self, group: str) -> list[Session]:
        sessions = self._context.sessions
        found = [sessions.get(connection) for connection in sessions.members_at(group)]

        return [session for session in found if session is not None]


def _names_queue(header: ResetOffsetHeader) -> bool:
    return header.queue_id is not None and header.queue_id >= 0


def _named_offset(header: ResetOffsetHeader) -> int | None:
    """Return the offset that a reset of one queue names."""
    offset = header.offset

    return offset if _names_queue(header) and offset is not None and offset >= 0 else None


def _listed(table: Mapping[MessageQueue, int]) -> bytes:
    """Return the body of 220 as the C++ client reads it: a list instead of a map."""
    rows = [{**queue.to_json_value(), "offset": offset} for queue, offset in table.items()]

    return fastjson.dumps({"offsetTable": rows})
