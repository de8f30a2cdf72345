"""
The broker without its sockets: requests, outcomes and time in, effects out.

The rules: the code is pure and synchronous, and only the state machine changes the state. A replica that is not the
leader refuses a request that it cannot serve (sends with 14). Where clients of RocketMQ would misread an error code, it
closes the connection instead of answering (offset queries). A reply that depends on a record leaves when the record is
applied. To add a request code, add one entry to ``_handlers`` or to ``admin/processor.py``.
``replication/loop.py`` is the shell that drives this module.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from orderlymq_broker.core.brokertoclient import ClientCalls
from orderlymq_broker.core.capacity import set_disk
from orderlymq_broker.core.effects import Caller, Effect, Now, Propose, Refusal
from orderlymq_broker.core.operators import check_token, note_token
from orderlymq_broker.core.requestcontext import (
    Context,
    CreateFirst,
    Handler,
    RequestRefused,
    answer,
)
from orderlymq_broker.core.uncommitted import LeaderView, Waiter
from orderlymq_broker.processors.admin.access import AccessControl, is_of_operator
from orderlymq_broker.processors.admin.config import EndedOverrides
from orderlymq_broker.processors.admin.processor import Administration
from orderlymq_broker.processors.admin.rotation import SecretRotation
from orderlymq_broker.processors.creations import Creations
from orderlymq_broker.processors.fetch.pull import PullProcessor
from orderlymq_broker.processors.fetch.query import QueryProcessor
from orderlymq_broker.processors.followers import Followers
from orderlymq_broker.processors.groups.assignment import AssignmentProcessor
from orderlymq_broker.processors.groups.fence import Fence
from orderlymq_broker.processors.groups.locks import LockProcessor
from orderlymq_broker.processors.groups.members import Ends, MembershipProcessor
from orderlymq_broker.processors.groups.offsets import Committer
from orderlymq_broker.processors.groups.parkedkeys import ParkedKeyProcessor
from orderlymq_broker.processors.groups.rebalance import RebalanceNotifier
from orderlymq_broker.processors.lanes.service import LaneService
from orderlymq_broker.processors.observe.status import findings_for, status
from orderlymq_broker.processors.observe.watch import Watch
from orderlymq_broker.processors.schedule.delaylevels import DelayService
from orderlymq_broker.processors.schedule.recalls import RecallProcessor
from orderlymq_broker.processors.schedule.retries import RetryProcessor
from orderlymq_broker.processors.schedule.timers import TimerService
from orderlymq_broker.processors.send.copies import CopyProcessor
from orderlymq_broker.processors.send.replies import ReplyProcessor
from orderlymq_broker.processors.send.sends import SendProcessor
from orderlymq_broker.processors.topics.bootstrap import bootstrap_records
from orderlymq_broker.processors.topics.expansionrequests import ExpansionProcessor
from orderlymq_broker.processors.topics.pendingretries import RetryWatch
from orderlymq_broker.processors.topics.retention import RetentionService
from orderlymq_broker.processors.transactions.checks import CheckService
from orderlymq_broker.processors.transactions.halves import TransactionProcessor
from orderlymq_broker.settings import BrokerSettings
from orderlymq_broker.state.admin.accessrecords import AccessChanged
from orderlymq_broker.state.admin.settingsrecords import SettingsChanged
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.groups.lockrecords import LocksFreed, LocksGranted
from orderlymq_broker.state.lanes.lanerecords import LanesGranted, LanesMoved
from orderlymq_broker.state.records import (
    Append,
    AssignmentChanged,
    GroupChanged,
    MembersChanged,
    OffsetsCommitted,
    OffsetsMoved,
    Outcome,
    TopicChanged,
)
from orderlymq_broker.state.topics.expansionrecords import ExpansionMoved
from orderlymq_broker.store.kv import Reader
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.declaration import ModelError
from orderlymq_protocol.body.fastjson import JsonError
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import FLAG_RESPONSE, RemotingCommand
from orderlymq_protocol.header.declaration import HeaderError
from orderlymq_protocol.message.record import RecordError
from orderlymq_protocol.unsupported import remark_of

# A dead letter may need its retry topic and its dead-letter topic; no request needs more than these.
CREATIONS_MAX: Final = 3


class BrokerCore:
    """The core of one replica: it turns requests and events into effects.

    Life cycle: it starts as a follower; ``become_leader`` and ``become_follower`` may follow any number of times.
    Callers pass all times in; nothing here waits.
    """

    def __init__(self, settings: BrokerSettings, state: BrokerState, reader: Reader) -> None:
        self.context = Context(settings, state, reader)
        state.tail.resize(settings.storage.tail_cache_size)
        self.access = AccessControl(self.context)
        self.rotation = SecretRotation(self.context)
        self.overrides = EndedOverrides(self.context)
        self.fence = Fence(self.context)
        self.committer = Committer(self.context, self.fence)
        self.checks = CheckService(self.context, self.access.may_publish)
        self.transactions = TransactionProcessor(self.context, self.checks)
        self.timers = TimerService(self.context)
        self.sends = SendProcessor(
            self.context, self.transactions, self.timers, self.access.check_publish
        )
        self.copies = CopyProcessor(self.context)
        self.calls = ClientCalls(self.context)
        self.replies = ReplyProcessor(self.context, self.sends, self.calls)
        self.recalls = RecallProcessor(self.context, self.timers)
        self.pulls = PullProcessor(self.context, self.fence, self.committer)
        self.locks = LockProcessor(self.context, self.committer)
        self.members = MembershipProcessor(self.context, self.committer)
        self.retries = RetryProcessor(self.context)
        self.delays = DelayService(self.context)
        self.rebalance = RebalanceNotifier(self.context)
        retrying = RetryWatch(self.context)
        self.expansions = ExpansionProcessor(
            self.context, self.rebalance.notify, self.committer.take, self.committer.room, retrying
        )
        self.assignments = AssignmentProcessor(self.context, self.rebalance.notify)
        self.lanes = LaneService(self.context)
        self.parked_keys = ParkedKeyProcessor(
            self.context, self.lanes.overview.held, self.lanes.overview.release
        )
        self.queries = QueryProcessor(self.context)
        self.retention = RetentionService(
            self.context,
            (self.delays.first_waiting, self.timers.first_waiting, state.transactions.first_open),
            self.lanes.overview.owed,
        )
        self.watch = Watch(self.context, self.locks, self.queries, self.calls)
        self.administration = Administration(
            self.context,
            self.queries,
            self.committer,
            self.fence,
            self.retention,
            self.calls,
            retrying,
        )
        self._creations = Creations(self.context, self._serve, self._refuse)
        self._handlers = self._handlers_of_a_leader()
        followers = Followers(self.context)
        self._refusals = followers.handlers(self.transactions.refuse_end)
        self._other_refusal = followers.refuse
        # Handlers that read only committed data, or only this replica's own connections. The list of members is not
        # among them: a follower's list may be old, and a client that is missing in it drops all its queues.
        self._follower_handlers: dict[int, Handler] = {
            code: self._handlers[code]
            for code in (
                RequestCode.QUERY_MESSAGE,
                RequestCode.VIEW_MESSAGE_BY_ID,
                RequestCode.HEART_BEAT,
                RequestCode.UNREGISTER_CLIENT,
                RequestCode.CHECK_CLIENT_CONFIG,
                RequestCode.ORDERLYMQ_GROUP_STATUS,
            )
        }
        for_administrators = self.administration.handlers()
        self._handlers.update(for_administrators)
        self._follower_handlers.update(for_administrators)

    def _handlers_of_a_leader(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self.sends.send,
            RequestCode.SEND_MESSAGE_V2: self.sends.send,
            RequestCode.SEND_BATCH_MESSAGE: self.sends.send,
            RequestCode.ORDERLYMQ_APPEND_COPIES: self.copies.append,
            RequestCode.SEND_REPLY_MESSAGE: self.replies.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.replies.reply,
            RequestCode.PULL_MESSAGE: self.pulls.pull,
            RequestCode.LITE_PULL_MESSAGE: self.pulls.pull,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.administration.offsets.commit,
            RequestCode.QUERY_CONSUMER_OFFSET: self.committer.query,
            RequestCode.QUERY_MESSAGE: self.queries.by_key,
            RequestCode.VIEW_MESSAGE_BY_ID: self.queries.by_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.queries.by_time,
            RequestCode.GET_MAX_OFFSET: self.queries.max_offset,
            RequestCode.GET_MIN_OFFSET: self.queries.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.queries.earliest_time,
            RequestCode.HEART_BEAT: self.members.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.members.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.members.list_members,
            RequestCode.CHECK_CLIENT_CONFIG: self.members.check_config,
            RequestCode.CONSUMER_SEND_MSG_BACK: self.retries.send_back,
            RequestCode.END_TRANSACTION: self.transactions.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.transactions.resume,
            RequestCode.RECALL_MESSAGE: self.recalls.recall,
            RequestCode.LOCK_BATCH_MQ: self.locks.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.locks.unlock,
            RequestCode.ORDERLYMQ_GROUP_STATUS: self._answer_status,
            RequestCode.ORDERLYMQ_LOCK_TABLE: self.locks.table,
            RequestCode.ORDERLYMQ_CLIENT_DEAD: self.members.report_death,
            RequestCode.ORDERLYMQ_CHANGE_QUEUES: self.expansions.change,
            RequestCode.ORDERLYMQ_QUEUE_EXPANSION: self.expansions.status,
            RequestCode.ORDERLYMQ_SET_ASSIGNMENT: self.assignments.change,
            RequestCode.ORDERLYMQ_GROUP_MEMBERS: self.assignments.members,
            RequestCode.ORDERLYMQ_HOLD_KEY: self.parked_keys.hold,
            RequestCode.ORDERLYMQ_PARKED_KEYS: self.parked_keys.held,
            RequestCode.ORDERLYMQ_RELEASE_KEY: self.parked_keys.release,
            **self.lanes.handlers(),
        }

    # -- requests ----------------------------------------------------------------------------------

    @property
    def codes(self) -> list[int]:
        """The request codes that are served, sorted."""
        return sorted(self._handlers)

    def handle(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve one request, or take a client's answer to a request of the broker."""
        if request.flag & FLAG_RESPONSE:
            return self.calls.replied(request, caller)
        handler = self._handlers.get(request.code)
        if handler is None:
            return answer(
                request,
                caller,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=remark_of(request.code),
            )
        if not self.context.leading:
            handler = self._follower_handlers.get(request.code)
            if handler is None:
                # Permissions are not checked: the accounts that this replica knows may be old, or not loaded yet.
                return self._refuse_as_follower(request, caller)

        return self._run(handler, request, caller, now)

    def _run(
        self,
        handler: Handler,
        request: RemotingCommand,
        caller: Caller,
        now: Now,
        *,
        creations: int = 0,
        refuses: bool = False,
    ) -> list[Effect]:
        """Return the effects of *handler*. A handler that *refuses* needs no permission, no token and no time."""
        try:
            if refuses:
                return handler(request, caller, now)
            if creations == 0:
                caller = self.admit(request, caller, now)
            elif is_of_operator(request):
                # A newer operator may have taken over while the topic or group was created.
                check_token(self.context, request.ext, now)
            effects = handler(request, caller, now)
            return [*self.note_operator(request), *effects] if is_of_operator(request) else effects
        except RequestRefused as refused:
            return answer(request, caller, refused.code, ext=refused.ext, remark=refused.remark)
        except CreateFirst as first:
            if creations == CREATIONS_MAX:
                remark = "a topic or group of the request was deleted meanwhile; try again"
                return answer(request, caller, ResponseCode.SYSTEM_ERROR, remark=remark)
            # Do not keep the exception: the waiter would hold it, and it holds the waiter and each frame that it passed.
            waiter = Waiter(request, caller, creations + 1)
            return self._creations.wait(first.names, first.records, waiter)
        except RecordError as illegal:
            return answer(request, caller, ResponseCode.MESSAGE_ILLEGAL, remark=str(illegal))
        except (HeaderError, ModelError, JsonError) as unreadable:
            return answer(request, caller, ResponseCode.SYSTEM_ERROR, remark=str(unreadable))

    def admit(self, request: RemotingCommand, caller: Caller, now: Now) -> Caller:
        """Count a request and return the sender with its account; the operator's own account has no quota.

        Requests that ``server/router.py`` passes to others to answer are counted here as well.

        Raises:
            RequestRefused: its address or account has used up its quota (2), the account lacks the permission, or the
                request is from an operator that another operator has replaced.
        """
        quotas = self.context.quotas
        refusal = quotas.of_address(request, caller, now)
        if not refusal:
            caller = self.access.admit(request, caller, now)
            accounts = self.context.state.access.accounts
            account = accounts.get(caller.account) if caller.account else None
            if account is not None:
                refusal = quotas.of_account(account.quota, request, caller, now)
        if refusal:
            self.context.counters["quota_refusals"] += 1
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, refusal)
        if is_of_operator(request):
            check_token(self.context, request.ext, now)
        self.context.sessions.opened(caller.connection)
        return caller

    def note_operator(self, request: RemotingCommand) -> list[Effect]:
        """Return the effects that make an operator known to all replicas if the admitted request is from a new one."""
        return note_token(self.context, request.ext) if is_of_operator(request) else []

    def _serve(self, waiter: Waiter, now: Now) -> list[Effect]:
        request, caller, creations = waiter
        if not self.context.leading:
            return self.handle(request, caller, now)
        return self._run(self._handlers[request.code], request, caller, now, creations=creations)

    def _refuse(self, waiter: Waiter, refusal: Refusal | None) -> list[Effect]:
        request, caller, _ = waiter
        if refusal is not None:
            return answer(request, caller, refusal.code, remark=refusal.remark)
        return self._refuse_as_follower(request, caller)

    def _refuse_as_follower(self, request: RemotingCommand, caller: Caller) -> list[Effect]:
        refusal = self._refusals.get(request.code, self._other_refusal)
        handler = self._follower_handlers.get(request.code, refusal)

        return self._run(handler, request, caller, Now(0, 0), creations=CREATIONS_MAX, refuses=True)

    # -- leadership --------------------------------------------------------------------------------

    def become_leader(self, term: int, physical_end: int, now: Now) -> list[Effect]:
        """Begin to lead; the whole log is applied and *physical_end* is its end."""
        context = self.context
        context.term = term
        context.view = LeaderView()
        context.entries.reset(physical_end)
        context.leader_known = True
        records = bootstrap_records(context.settings, context.state)
        if not records:
            return self._start_leading(now)

        def applied(_: Sequence[Outcome], later: Now) -> list[Effect]:
            return self._start_leading(later) if context.term == term else []

        # Without its system topics, a fresh broker would refuse sends that it should serve.
        return [Propose(records, applied=applied)]

    def _start_leading(self, now: Now) -> list[Effect]:
        self.context.leading = True
        self.access.start(now.wall_ms)
        self.overrides.start()
        self.context.ages.start(now)
        self.locks.start(now)
        self.delays.start(now)
        self.timers.start(now)
        self.checks.start(now)
        self.expansions.start()
        self.retention.start(now)

        return [*self.lanes.start(now), *self.rebalance.start(now), *self.members.start(now)]

    def become_follower(self, leader_known: bool) -> list[Effect]:
        """Stop leading: answer waiting requests and clear the leader's state."""
        context = self.context
        was_leading, context.leading = context.leading, False
        context.leader_known = leader_known
        context.term = 0
        if not was_leading:
            return []
        context.unparked_groups.clear()
        self.committer.forget()
        context.positions.clear()
        self.locks.stop()
        self.rebalance.stop()
        context.view = LeaderView()
        context.entries.reset(context.state.physical_end)

        self.watch.ended()
        self.administration.figures.ended()

        return [*self.pulls.release_all(), *self.lanes.stop(), *self.calls.ended()]

    def follow(self, manifest: BrokerSettings) -> list[Effect]:
        """Apply the settings of the changed manifest."""
        self.context.follow(manifest)

        return self._complete() if self.context.leading else []

    def _complete(self) -> list[Effect]:
        """Propose the initial topics of a broker with the present settings, if any of them is missing."""
        missing = bootstrap_records(self.context.settings, self.context.state)

        return [Propose(missing)] if missing else []

    def proposals_lost(self) -> None:
        """Drop the leader's view: offsets given to records that may never be applied are invalid."""
        self.context.counters["views_dropped"] += 1
        self.context.view = LeaderView()
        self.context.entries.reset(self.context.state.physical_end)

    # -- events ------------------------------------------------------------------------------------

    def applied(self, outcomes: Sequence[Outcome], now: Now) -> list[Effect]:
        """React to the outcomes of an applied entry; called before the callbacks of its proposals."""
        if not self.context.leading:
            for outcome in outcomes:
                if type(outcome) is LocksGranted:
                    self.locks.seen(outcome, now)
                elif type(outcome) is SettingsChanged:
                    self.context.refresh_settings()
            return []
        effects: list[Effect] = []
        appended: list[Append] = []
        others: list[Outcome] = []
        for outcome in outcomes:
            if type(outcome) is Append:
                appended.append(outcome)
            else:
                others.append(outcome)
                effects += self._react(outcome, now)
        if others:
            effects += [*self._judge_again(others, now), *self.rebalance.notices()]
        if appended:
            counters = self.context.counters
            counters["messages_in"] += len(appended)
            counters["bytes_in"] += sum([record.size for record in appended])
            self.timers.appended(appended)
            self.watch.appended(appended)
            self.administration.figures.appended(appended)
            effects += self.pulls.wake(appended)
            effects += self.lanes.appended(appended, now)

        return effects

    def _react(self, outcome: Outcome, now: Now) -> list[Effect]:
        """Keep the leader's clocks in step with the tables, and notify the members of consumer groups."""
        match outcome:
            case LocksGranted():
                self.locks.granted(outcome, now)
                return []
            case LocksFreed():
                self.rebalance.freed(self.locks.freed(outcome.queues), now)
                return []
            case MembersChanged():
                self.context.positions.left(outcome.groups)
                self.rebalance.changed(outcome.groups, self.locks.freed(outcome.freed), now)
                return self.lanes.changed(outcome.lanes, now)
            case LanesGranted() | LanesMoved():
                return self.lanes.changed(outcome, now)
            case OffsetsMoved(reset=pairs) if pairs:
                self.context.positions.reset(pairs)
                return self.lanes.fetcher.moved(pairs, now)
            case SettingsChanged():
                self.context.refresh_settings()
                return self._complete()
            case ExpansionMoved():
                return self.expansions.moved(outcome)
            case AssignmentChanged(group, changed=True):
                return self.rebalance.notify([group])
            case _:
                return []

    def _judge_again(self, outcomes: Sequence[Outcome], now: Now) -> list[Effect]:
        """Check waiting requests again, once for all outcomes of an entry: it may contain a thousand deletions."""
        effects: list[Effect] = []
        topics = [each for each in outcomes if isinstance(each, TopicChanged)]
        groups = [each for each in outcomes if isinstance(each, GroupChanged)]
        deleted_topics = {each.name for each in topics if each.deleted}
        deleted_groups = {each.name for each in groups if each.deleted}
        changed = {each.name for each in groups if each.mode_changed}
        if deleted_topics or deleted_groups:
            self.committer.forget_deleted(deleted_topics, deleted_groups)
            self.context.positions.deleted(deleted_topics, deleted_groups)
            # Requests for a deleted topic or group would wait in vain.
            effects += [*self.pulls.wake_orphaned(), *self.lanes.recheck_waiting(now)]
        elif changed:
            effects += [
                *self.pulls.wake_orphaned(changed),
                *self.lanes.recheck_waiting(now, changed),
            ]
        if any(isinstance(each, MembersChanged) for each in outcomes):
            effects += self.pulls.wake_early()
        if self.access.enabled and any(
            isinstance(each, AccessChanged) and each.changed for each in outcomes
        ):
            # A waiting consumer may have lost its permission; it sends its request again, which is then checked again.
            reason = "ACCESS_CHANGED"
            effects += self.pulls.release_all(reason)
            effects += self.lanes.fetcher.release_all(reason)

        return effects

    def refused(self, proposal: Propose, refusal: Refusal) -> list[Effect]:
        """Tell the proposer that its proposal cannot be stored; it has no other way to notice."""
        self.context.counters["proposals_refused"] += 1
        effects = proposal.lost(refusal) if proposal.lost is not None else []
        # The proposal may contain commits of other clients, which are stored nevertheless.
        commits = [each for each in proposal.records if type(each) is OffsetsCommitted]
        if 0 < len(commits) < len(proposal.records):
            effects.append(Propose(commits))

        return effects

    def tick(self, now: Now) -> list[Effect]:
        """Perform the due work; called about every 100 ms."""
        if not self.context.leading:
            return []
        self.administration.figures.tick(now)

        return [
            *self.pulls.tick(now),
            *self.committer.tick(now),
            *self.locks.tick(now),
            *self.lanes.tick(now),
            *self.members.tick(now),
            *self.rotation.tick(now),
            *self.overrides.tick(now),
            *self.rebalance.tick(now),
            *self.delays.tick(now),
            *self.timers.tick(now),
            *self.checks.tick(now),
            *self.expansions.tick(now),
            *self.retention.tick(now),
            *self.watch.tick(now),
            *self.calls.tick(now),
        ]

    def is_client(self, connection: int) -> bool:
        """Return whether a request of *connection* was served, so that its caller is no longer a stranger.

        A replica that does not lead checks neither signatures nor quotas of forwarded requests, so these do not count.
        """
        is_admitted = not self.access.enabled or connection in self.access.admitted
        return is_admitted and self.context.quotas.admits(connection)

    def connection_closed(self, connection: int) -> list[Effect]:
        """Remove a connection; its clients leave their groups but keep their locks."""
        self.access.closed(connection)
        effects = self.pulls.close(connection)
        self.lanes.fetcher.close(connection)
        self.context.listings.close(connection)
        session = self.context.sessions.close(connection)
        self.context.quotas.close(connection)

        if session is not None:
            effects += self.members.closed(session)
        self.watch.closed(connection)

        return [*effects, *self.calls.closed(connection)]

    def client_dead(self, client_id: str, proof: str, ends: Ends = None) -> list[Effect]:
        """Remove the locks and memberships of a client that is proven dead; *ends* as in `MembershipProcessor`."""
        return self.members.client_dead(client_id, proof, ends) if self.context.leading else []

    def group_status(self, asked: RemotingCommand | None = None) -> dict[str, Any]:
        """Return the group's status for operators, ready for JSON.

        With *asked*, an admitted request, the status shows only those client texts that its account may read.
        """
        found = status(
            self.context,
            self.administration.figures.per_second,
            held_pulls=self.pulls.held_count,
        )

        report = self.watch.report()
        if asked is not None:
            report = findings_for(report, partial(self._may_read, asked))

        return {**found, "watch": report}

    def _may_read(self, asked: RemotingCommand, row: Mapping[str, Any]) -> bool:
        return self.access.may_read(asked, group=row.get("group", ""), topic=row.get("topic", ""))

    def _answer_status(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        body = {**self.context.replication, **self.group_status(request)}

        return answer(request, caller, body=fastjson.dumps(body))

    def clients_of(self, connection: int) -> list[str]:
        """Return the client ids that have identified themselves over a connection, sorted."""
        session = self.context.sessions.get(connection)

        return sorted(session.client_ids) if session is not None else []

    def set_environment(self, disk_ratio: float, replication: dict[str, Any]) -> None:
        """Store observations of the shell that the core cannot make itself."""
        set_disk(self.context, disk_ratio)
        self.context.replication = replication
