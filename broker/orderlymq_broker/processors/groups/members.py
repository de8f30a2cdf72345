"""
Membership of consumer groups: heartbeats (34), leaving (35), the list (38), deaths (20502).

The rules: a member is a record, written when it joins or changes, never for each heartbeat. If a heartbeat changes
something, its reply leaves when the change is applied. Members from an earlier leader stay in the list until they
fail to return within the grace, or are proven dead. When a connection closes, its client is removed from the list
unless it holds locks. A closed connection proves nothing, because RocketMQ's clients pull over the next one long
before they identify themselves. Besides, no other member could have the locked queues yet. ``rebalance.py`` notifies
the other members.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from orderlymq_broker.core.bodylimits import read_heartbeat
from orderlymq_broker.core.capacity import check_backlog
from orderlymq_broker.core.clientsessions import Session, TooMuchSaid
from orderlymq_broker.core.effects import Caller, Effect, Now
from orderlymq_broker.core.entrybuilder import ENTRY_CHANGES_USUAL, in_pieces
from orderlymq_broker.core.longwalks import walk
from orderlymq_broker.core.operators import check_token
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer
from orderlymq_broker.core.responses import answer_when_applied
from orderlymq_broker.processors.fetch.filter import check_expression, check_tags
from orderlymq_broker.processors.fetch.sql import WORDS_MAX, count_words
from orderlymq_broker.processors.groups.clientids import check as check_owner
from orderlymq_broker.processors.groups.clientids import claim
from orderlymq_broker.processors.groups.groupcreation import check_own_topic
from orderlymq_broker.processors.groups.locks import check_client, releases
from orderlymq_broker.processors.groups.offsets import Committer
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.groups.lockrecords import ClientDead, LocksReleased
from orderlymq_broker.state.groups.members import large_part, owner_of, size_of
from orderlymq_broker.state.lanes.lanerecords import LanesReturned
from orderlymq_broker.state.records import (
    GroupSet,
    MemberLeft,
    MemberSeen,
    Record,
    Subscription,
    TopicSet,
)
from orderlymq_broker.state.sharedroom import SharedRoom
from orderlymq_protocol.body.clients import (
    EXPRESSION_SQL92,
    EXPRESSION_TAG,
    CheckClientRequest,
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    SubscriptionData,
)
from orderlymq_protocol.body.lanes import BY_KEY, BY_QUEUE
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import ConsumerGroupHeader, UnregisterClientHeader
from orderlymq_protocol.message.tags import TagExpressionError, TagFilter
from orderlymq_protocol.names import TOPIC_LENGTH_MAX, dlq_topic, retry_topic

# A sentence about a pod and its node; it is stored in the log.
PROOF_LENGTH_MAX: Final = 1_024
# Enough for a client in hundreds of raft groups; if an address is left out, the proof only becomes void.
_ADDRESSES_LENGTH_MAX: Final = 16_384


# The addresses of a client's connections, or None if they do not matter.
Ends: TypeAlias = frozenset[tuple[str, int]] | None
_Arrival: TypeAlias = tuple[Session, str, ConsumerData]


class MembershipProcessor:
    """Maintains the members of the groups."""

    def __init__(self, context: Context, committer: Committer) -> None:
        self._context = context
        self._committer = committer
        self._led_since_ms = 0
        self._next_scan_ms = 0

    # -- requests ----------------------------------------------------------------------------------

    def heartbeat(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 34: a heartbeat."""
        context = self._context
        session = context.sessions.get(caller.connection)
        if session is None or session.heartbeat != request.body or not request.body:
            session = self._read_heartbeat(request, caller, now)
        else:
            session = claim(context, session.heartbeat_client, caller, now)
        client_id = session.heartbeat_client
        records: list[Record] = []
        for consumer in session.consumers[client_id]:
            self._heartbeat_of(consumer, client_id, session, now)
            if context.leading:
                records += self._missing(consumer, client_id, session, len(records))
        if not records:
            return answer(request, caller)
        check_backlog(context)
        self._check_members(records)

        return answer_when_applied(request, caller, records)

    def unregister(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 35: the client leaves a group and releases its locks."""
        context = self._context
        header = UnregisterClientHeader.from_ext(request.ext)
        check_client(header.client_id)
        check_owner(context, header.client_id, caller, now)
        session = context.sessions.get(caller.connection)
        if session is not None:
            session.heartbeat = b""
        if header.producer_group:
            if session is not None:
                groups = session.producer_groups.get(header.client_id, set())
                context.sessions.take_producers(
                    session, header.client_id, groups - {header.producer_group}
                )
            context.sessions.retire(header.producer_group, caller.connection)
        group = header.consumer_group
        if not group:
            return answer(request, caller)
        context.sessions.leave(group, header.client_id)
        if not context.leading:
            return answer(request, caller)
        check_client(header.client_id, group)
        # Propose it even if the client is unknown, because its heartbeat or lock request may be on its way.
        records: list[Record] = [
            *self._committer.take(),
            *releases(
                group, header.client_id, context.state.locks.held_by(header.client_id, group)
            ),
            LocksReleased(group, header.client_id, None),
            MemberLeft(group, header.client_id),
        ]
        if context.state.is_by_key(group):
            records.append(LanesReturned(group, header.client_id))

        return answer_when_applied(request, caller, records, in_parts=True)

    def list_members(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 38: the client ids of a group's members."""
        group = ConsumerGroupHeader.from_ext(request.ext).consumer_group
        members = self._context.state.members.of_group(group)
        if not members:
            return answer(
                request,
                caller,
                ResponseCode.SYSTEM_ERROR,
                remark=f"no consumer for this group, {group}",
            )

        return answer(request, caller, body=ConsumerIdList(tuple(sorted(members))).to_json())

    def check_config(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 46: check whether the client's subscription can be served."""
        subscription = CheckClientRequest.from_json(request.body).subscription_data
        check_expression(self._context, subscription.expression_type, subscription.sub_string)

        return answer(request, caller)

    def report_death(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 20502: a client is proven dead; locks requested from outside `addresses` are those of a living client."""
        token = check_token(self._context, request.ext, now)
        client_id = request.ext.get("clientId", "")
        check_client(client_id)
        proof = request.ext.get("proof", "")[:PROOF_LENGTH_MAX] or "reported without a reason"
        places = request.ext.get("addresses")
        addresses = None if places is None else tuple(places[:_ADDRESSES_LENGTH_MAX].split(","))
        # If the operator is a new one, propose the record even if it changes nothing, because it ends the former
        # operator. An entry that is not applied yet may be the client's first lock.
        is_idle = not self._context.entries.uncommitted_count
        if (
            is_idle
            and not self._is_known(client_id)
            and token <= self._context.state.operator_token
        ):
            return answer(request, caller)

        record = ClientDead(client_id, proof, token, addresses)

        return answer_when_applied(request, caller, self._expire(record), in_parts=True)

    # -- events ------------------------------------------------------------------------------------

    def start(self, now: Now) -> list[Effect]:
        """Begin to lead: give known members time to return, and add those that are connected here already."""
        self._led_since_ms = now.monotonic_ms
        self._next_scan_ms = now.monotonic_ms

        return walk(self._context, self._present(), self._take_in, now)

    def _present(self) -> Iterator[_Arrival]:
        """Yield the groups that connected clients have named in heartbeats."""
        for session in list(self._context.sessions.all()):
            for client_id, consumers in list(session.consumers.items()):
                for consumer in consumers:
                    yield session, client_id, consumer

    def _take_in(self, arrivals: Sequence[_Arrival], _: Now) -> list[Effect]:
        sessions = self._context.sessions
        records: list[Record] = []
        for session, client_id, consumer in arrivals:
            # A member that left since, moved, or changed its subscription must not return with its former data.
            presence = sessions.presence.get((consumer.group_name, client_id))
            is_here = presence is not None and presence.connection == session.caller.connection
            if is_here and consumer in session.consumers.get(client_id, ()):
                records += self._missing(consumer, client_id, session, len(records))

        return in_pieces(records)

    def client_dead(self, client_id: str, proof: str, ends: Ends = None) -> list[Effect]:
        """Remove a dead client's locks and memberships.

        *ends* are the addresses of its connections if the proof concerns the program behind them. A lock that was
        requested from another address then belongs to another program with the same client id, which may be alive;
        the same holds for lanes of a member whose heartbeat came from another address.
        """
        addresses = None if ends is None else tuple(sorted(f"{host}:{port}" for host, port in ends))
        # Propose it even if nothing of the client is applied, because its heartbeat or lock request may be on its way.
        record = ClientDead(client_id, proof, addresses=addresses)

        return in_pieces(self._expire(record))

    def closed(self, session: Session) -> list[Effect]:
        """Remove the clients of a closed connection from their groups, unless they are known at another one.

        A holder of locks stays a member until it has none. No other member can have its queues before that, and
        a Java client that has already returned would drop them if the list did not contain it.
        """
        context = self._context
        connection = session.caller.connection
        gone: list[Record] = []
        for client_id in sorted(session.client_ids):
            for group in context.sessions.groups_of(client_id):
                presence = context.sessions.presence[group, client_id]
                if presence.connection != connection:
                    continue
                context.sessions.leave(group, client_id)
                if self._holds(group, client_id):
                    continue
                # Not only if the state contains it, because its first heartbeat may be on its way.
                if presence.by_heartbeat or context.state.members.get(group, client_id):
                    gone.append(MemberLeft(group, client_id))
        if not gone or not context.leading:
            return []

        return in_pieces([*self._committer.take(), *gone])

    def tick(self, now: Now) -> list[Effect]:
        """Remove the members that have been silent too long."""
        if now.monotonic_ms < self._next_scan_ms:
            return []
        self._next_scan_ms = now.monotonic_ms + self._context.settings.timers.scan_ms

        return walk(self._context, self._known(), self._take_out, now)

    def _known(self) -> Iterator[tuple[str, str]]:
        """Yield all members."""
        members = self._context.state.members
        for group in list(members.groups()):
            for client_id in list(members.of_group(group)):
                yield group, client_id

    def _take_out(self, members: Sequence[tuple[str, str]], now: Now) -> list[Effect]:
        leaving = self._context.entries.pending_removals
        gone = [
            each
            for each in members
            if ("member", *each) not in leaving and self._is_silent(*each, now)
        ]
        for group, client_id in gone:
            self._context.sessions.leave(group, client_id)
            self._forget_heartbeat(client_id)
        self._context.counters["members_expired"] += len(gone)

        return in_pieces(MemberLeft(*each) for each in gone)

    def _is_silent(self, group: str, client_id: str, now: Now) -> bool:
        timers = self._context.settings.timers
        presence = self._context.sessions.presence.get((group, client_id))
        if presence is None:
            waited_ms = now.monotonic_ms - self._led_since_ms
            return waited_ms > timers.member_return_grace_ms and not self._holds(group, client_id)
        # A member that does not renew its locks counts as paused or cut off, unless its next heartbeat comes.
        patience_ms = timers.client_expiry_ms
        if presence.lapsed:
            patience_ms = min(patience_ms, timers.member_return_grace_ms)

        return now.monotonic_ms - presence.seen_ms > patience_ms

    # -- parts -------------------------------------------------------------------------------------

    def _read_heartbeat(self, request: RemotingCommand, caller: Caller, now: Now) -> Session:
        body = read_heartbeat(request.body)
        check_client(body.client_id)
        _check_filters(body)
        for consumer in body.consumer_data_set:
            check_client(body.client_id, consumer.group_name)
            if consumer.concurrency == BY_KEY:
                check_own_topic(dlq_topic(consumer.group_name))
            for subscription in consumer.subscription_data_set:
                # Tags are checked at the pull, because old clients write them in many unexpected ways.
                if subscription.expression_type == EXPRESSION_SQL92:
                    check_expression(
                        self._context, subscription.expression_type, subscription.sub_string
                    )
        sessions = self._context.sessions
        try:
            sessions.check_said(caller, body.client_id, len(request.body))
        except TooMuchSaid as refused:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, str(refused)) from refused
        session = claim(self._context, body.client_id, caller, now, body.consumer_data_set)
        sessions.identified(caller.connection)
        session.heartbeat, session.heartbeat_client = request.body, body.client_id
        session.language, session.version = request.language, request.version
        groups = {producer.group_name for producer in body.producer_data_set}
        sessions.take_producers(session, body.client_id, groups)
        former = session.consumers.get(body.client_id, ())
        sessions.take_said(session, body.client_id, len(request.body), body.consumer_data_set)
        sessions.leave_at(
            caller.connection,
            body.client_id,
            {each.group_name for each in former}
            - {each.group_name for each in body.consumer_data_set},
        )

        return session

    def _check_members(self, records: Sequence[Record]) -> None:
        """Refuse a heartbeat whose members would take too much memory, in total or for one account or address.

        Raises:
            RequestRefused: they would (2).
        """
        members = [record for record in records if isinstance(record, MemberSeen)]
        if not members:
            return
        table, pending = self._context.state.members, self._context.entries.pending_rows
        grows = grows_large = 0
        for member in members:
            size, present = size_of(member), table.get(member.group, member.client_id)
            before = 0 if present is None else size_of(present)
            grows += size - before
            grows_large += large_part(size) - large_part(before)
        owner = owner_of(members[0])  # the same for all, because a heartbeat comes from one client
        own, all_of_them = pending["members", *owner], pending["members",]

        def has_room(room: SharedRoom, more: int) -> bool:
            return more <= 0 or room.has_room(owner, more, pending=own, pending_of_all=all_of_them)

        if not (has_room(table.room, grows) and has_room(table.large_room, grows_large)):
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"the members of all consumer groups use {table.room.used} bytes already, "
                f"{table.room.part(owner)} of them for your account or address: subscribe to "
                "fewer topics and tags, or use another broker group",
            )

    def _heartbeat_of(
        self, consumer: ConsumerData, client_id: str, session: Session, now: Now
    ) -> None:
        """Note the connection of a member; if a client id has two connections, the last one counts."""
        context = self._context
        if not (
            consumer.group_name in context.state.groups.by_name or self._makes_groups(planned=0)
        ):
            return  # a group that does not exist has no members
        connection = session.caller.connection
        before = context.sessions.heartbeat(consumer.group_name, client_id, connection, now)
        if before is not None and before.by_heartbeat:
            other = context.sessions.get(before.connection)
            if other is not None:
                # It may be the old connection of the same process, or a second process on the same host with
                # the same id, which would consume everything twice.
                context.note_duplicate(client_id, other.caller, session.caller)

    def _makes_groups(self, planned: int) -> bool:
        """Return whether a group and its retry topic can be created automatically in addition to *planned* records."""
        context = self._context
        return context.settings.auto_create_group and context.entries.has_room(planned + 2)

    def _missing(
        self, consumer: ConsumerData, client_id: str, session: Session, planned: int
    ) -> list[Record]:
        """Return the records that bring the state in line with a heartbeat; *planned* records exist already."""
        state = self._context.state
        group = consumer.group_name
        records: list[Record] = []
        removals = self._context.entries.pending_removals
        # Records proposed here come after its deletion.
        is_deleted = ("group", group) in removals
        config = None if is_deleted else state.groups.get(group)
        if config is None:
            if not self._makes_groups(planned):
                return []  # the answers to its pulls give the reason
            by_key = consumer.concurrency == BY_KEY
            concurrency = BY_KEY if by_key else BY_QUEUE
            config = GroupSet(group, only_if_absent=True, concurrency=concurrency)
            records.append(config)
        retry = missing_retry_topic(state, config)
        if retry and self._context.entries.has_room(planned + 2):
            records += retry
        member = MemberSeen(
            group,
            client_id,
            f"{session.caller.host}:{session.caller.port}",
            session.language,
            session.version,
            consumer.consume_type,
            consumer.message_model,
            consumer.consume_from_where,
            tuple(
                sorted(map(_subscription, consumer.subscription_data_set), key=lambda s: s.topic)
            ),
            session.client_ids[client_id],
        )
        # A member whose removal is proposed is no longer a member when that is applied.
        is_leaving = ("member", group, client_id) in removals or ("client", client_id) in removals
        if is_deleted or is_leaving or state.members.get(group, client_id) != member:
            records.append(member)

        return records

    def _expire(self, record: ClientDead) -> list[Record]:
        context, client_id = self._context, record.client_id
        if self._is_known(client_id):
            context.counters["clients_expired"] += 1
        for group in context.state.members.groups_of(client_id):
            context.sessions.leave(group, client_id)

        # The number of locks that a replica frees in one turn.
        first = [msgspec.structs.replace(record, most=ENTRY_CHANGES_USUAL)]
        parts = first * (context.state.locks.count_of(client_id) // ENTRY_CHANGES_USUAL)

        return [*self._committer.take(), *parts, record]

    def _is_known(self, client_id: str) -> bool:
        state = self._context.state
        return (
            bool(state.members.groups_of(client_id))
            or state.locks.holds_any(client_id)
            or state.lanes.holds_any(client_id)
        )

    def _holds(self, group: str, client_id: str) -> bool:
        """Return whether a member has queues or lanes that no other member can have yet."""
        state = self._context.state

        return state.locks.holds(group, client_id) or state.lanes.holds(group, client_id)

    def _forget_heartbeat(self, client_id: str) -> None:
        # The next heartbeat must be read again, even if its content is the same.
        for session in self._context.sessions.of_client(client_id):
            session.heartbeat = b""


def _check_filters(body: HeartbeatData) -> None:
    """Refuse a heartbeat with more SQL92 than one expression may have, or too many tags.

    Raises:
        RequestRefused: it has too much (23); the remark says what to do.
    """
    words = 0
    for consumer in body.consumer_data_set:
        for subscription in consumer.subscription_data_set:
            if subscription.expression_type == EXPRESSION_SQL92:
                words += count_words(subscription.sub_string)
            else:
                lists = (subscription.code_set, subscription.tags_set)
                check_tags(subscription.sub_string, max(map(len, lists)))
            if words > WORDS_MAX:
                raise RequestRefused(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    f"the SQL92 subscriptions of one client have more than {WORDS_MAX} words and signs; "
                    f"divide them over several clients",
                )


@lru_cache(maxsize=256)  # of 16 KiB at most; heartbeats repeat them
def _codes_of(expression: str) -> frozenset[int]:
    try:
        return TagFilter.parse(expression).codes
    except TagExpressionError:
        return frozenset()


def _subscription(subscription: SubscriptionData) -> Subscription:
    # Go's client hashes the UTF-8 of a tag, but the consume queue has Java's hash. Clients that get too much compare
    # the texts.
    codes = set(subscription.code_set)
    if subscription.expression_type == EXPRESSION_TAG:
        codes |= _codes_of(subscription.sub_string)

    return Subscription(
        subscription.topic,
        subscription.sub_string,
        subscription.expression_type,
        subscription.sub_version,
        tuple(sorted(codes)),
        tuple(sorted(subscription.tags_set)),
    )


def missing_retry_topic(state: BrokerState, config: GroupSet) -> list[Record]:
    """Return the record that creates the retry topic of a group that lacks it.

    The topic must be in the route before a consumer starts. A consumer that finds no route for it looks again
    after half a minute, and its retries wait as long.
    """
    topic, queues = retry_topic(config.name), config.retry_queues
    if queues <= 0 or state.topics.get(topic) is not None or len(topic) > TOPIC_LENGTH_MAX:
        return []

    return [TopicSet(topic, queues, queues, only_if_absent=True)]
