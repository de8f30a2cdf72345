"""
Queue locks as clients request them: 41, 42, the lock table (20501), and the leader's clock of leases.

The rules: a reply leaves when its record is committed, one record per request. A lease runs on this replica's
monotonic clock from the moment at which it applied the grant, as the leader or, for a later leader, as a follower.
That is never before the client asked, so a lease is longer than needed, never shorter. A replica that has not seen
the renewal itself runs the lease in full. A lease has expired if strictly more time than its length has passed.
Gathered offset commits go into the log before any change of a lock. ``state/groups/locks.py`` has the table itself,
and tells why an expiry cannot free a renewed lock.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from orderlymq_broker.core.capacity import check_backlog
from orderlymq_broker.core.deadlines import DeadlineQueue
from orderlymq_broker.core.effects import Caller, Effect, Now
from orderlymq_broker.core.entrybuilder import in_pieces, parts
from orderlymq_broker.core.listings import array
from orderlymq_broker.core.requestcontext import (
    Context,
    RequestRefused,
    answer,
    check_name,
    unanswered,
)
from orderlymq_broker.core.responses import answer_list, answer_when_applied
from orderlymq_broker.processors.groups.clientids import check as check_owner
from orderlymq_broker.processors.groups.clientids import claim
from orderlymq_broker.processors.groups.fence import refuse_by_key, refuse_concurrent
from orderlymq_broker.processors.groups.groupcreation import missing_group
from orderlymq_broker.processors.groups.locklog import LockReports
from orderlymq_broker.processors.groups.offsets import Committer
from orderlymq_broker.state.groups.lockrecords import (
    LockRef,
    LocksExpired,
    LocksGranted,
    LocksReleased,
    LocksRequested,
)
from orderlymq_broker.state.groups.locks import Lock
from orderlymq_broker.state.records import MemberLeft, Outcome, Record
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.clients import BROADCASTING, LOCK_QUEUES_MAX, LockBatchRequest
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.names import check_group_name

# Shorter leases would end between two renewals of a busy client; longer ones would make other clients wait too long.
LEASE_MS_MIN: Final = 1_000
LEASE_MS_MAX: Final = 10 * 60 * 1_000
CLIENT_ID_LENGTH_MAX: Final = 512
# The most locks of all groups in all queues, held or free (a free one stays for its epoch): 75 MB on every replica.
LOCKS_MAX: Final = 250_000
# Leases that a new leader starts at a time: about 10 ms.
STARTED_MAX: Final = 4_096
# Leases that one tick ends: about 15 ms.
ENDED_MAX: Final = 4_096
# A refused client still counts as wanting the queue for this long; RocketMQ's clients ask again every 20 s.
REFUSAL_MS: Final = 30_000

# A follower is not told which locks end, and no replica is told which locks are deleted with their topic. A replica
# that has noted far more locks than are held removes the others.
_SEEN_SLACK: Final = 1_000


_Key = tuple[str, str, int]


class LockProcessor:
    """Serves lock requests and ends leases."""

    def __init__(self, context: Context, committer: Committer) -> None:
        self._context = context
        self._committer = committer
        self._deadlines: DeadlineQueue[_Key] = DeadlineQueue()
        # In a new leader: starts the next leases.
        self._starting: Iterator[None] = iter(())
        # The latest renewal of each lock that this replica applied since it started: stamp and time.
        self._seen: dict[_Key, tuple[int, int]] = {}
        self.reports = LockReports()
        # The client that was last refused a held lock, and when; never many more than there are locks.
        self._refused: dict[_Key, tuple[str, int]] = {}

    # -- requests ----------------------------------------------------------------------------------

    def lock(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 41: grant the queues that are free or that the client holds already."""
        body = LockBatchRequest.from_json(request.body)
        check_client(body.client_id, body.consumer_group)
        check_count(body)
        context = self._context
        config = context.state.groups.get(body.consumer_group)
        refuse_by_key(config)
        member = context.state.members.get(body.consumer_group, body.client_id)
        is_ordered = member is None or member.message_model != BROADCASTING
        if is_ordered:
            refuse_concurrent(config)
        session = claim(context, body.client_id, caller, now)
        session.language, session.version = request.language, request.version
        wanted = [queue for queue in dict.fromkeys(body.queues) if self._is_ours(queue)]
        # The group must exist, because stored locks belong to it.
        makes_group = config is None and bool(wanted)
        missing = [missing_group(context, body.consumer_group)] if makes_group else []
        if missing or config is not None:
            context.sessions.last_seen(body.consumer_group, body.client_id, caller.connection, now)
        if not wanted:
            return answer(request, caller, body=_granted_body(()))
        check_backlog(context)
        self._check_room(body.consumer_group, wanted)
        kept = unanswered(request)
        records: list[Record] = [*self._committer.take(), *missing]
        over = self._over(body, wanted, now)
        holders = self._holders(body.consumer_group, wanted, over)
        if over:
            records += self._end({body.consumer_group: over})
        records += [
            LocksRequested(
                body.consumer_group,
                body.client_id,
                f"{caller.host}:{caller.port}",
                self._lease(body.lease_ms),
                queues,
                orderly=is_ordered,
            )
            for queues in parts([(queue.topic, queue.queue_id) for queue in wanted])
        ]

        def applied(outcomes: Sequence[Outcome], then: Now) -> list[Effect]:
            epochs = {
                (topic, queue_id): epoch
                for outcome in outcomes
                if isinstance(outcome, LocksGranted)
                for topic, queue_id, epoch in outcome.granted
            }
            self._note_refusals(body, wanted, epochs, then)
            pairs = [
                (queue, epochs[queue.topic, queue.queue_id])
                for queue in wanted
                if (queue.topic, queue.queue_id) in epochs
            ]
            self._report(body, dict(pairs), holders, then)
            return answer(kept, caller, body=_granted_body(pairs, self._held(body, pairs)))

        return answer_when_applied(kept, caller, records, then=applied, in_parts=True)

    def unlock(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 42: free the queues that the client holds and ignore the others."""
        body = LockBatchRequest.from_json(request.body)
        check_client(body.client_id, body.consumer_group)
        check_count(body)
        check_owner(self._context, body.client_id, caller, now)
        # A queue without a number is never held.
        queues = tuple((each.topic, each.queue_id) for each in body.queues if each.queue_id >= 0)
        if not queues:
            return answer(request, caller)

        # Propose it even if nothing is held, because the lock request may be on its way through the log.
        released = releases(body.consumer_group, body.client_id, queues)

        return answer_when_applied(
            request, caller, [*self._committer.take(), *released], in_parts=True
        )

    def table(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 20501: the held locks of a group or of all, whether each holder is connected, and which client waits."""
        locks = self._context.state.locks
        only = request.ext.get("consumerGroup")

        def rows() -> Iterator[dict[str, Any]]:
            for group in [only] if only else sorted(locks.held_of):
                found = sorted(locks.held(group), key=lambda each: (each.topic, each.queue_id))
                yield from (self._row(lock, now) for lock in found)

        return answer_list(self._context, request, caller, array("locks", rows()))

    def _row(self, lock: Lock, now: Now) -> dict[str, Any]:
        return {
            "topic": lock.topic,
            "brokerName": self._context.settings.group,
            "queueId": lock.queue_id,
            "consumerGroup": lock.group,
            "clientId": lock.client_id,
            "address": lock.address,
            "epoch": lock.epoch,
            "leaseMillis": lock.lease_ms,
            "heldSinceMillis": lock.held_since_ms,
            "connected": bool(self._context.sessions.of_client(lock.client_id)),
            "wantedBy": self._wanted_by(lock, now),
        }

    # -- leases ------------------------------------------------------------------------------------

    def start(self, now: Now) -> None:
        """Run each lease from the last renewal seen here, or else from now; if there are many, some in the next ticks."""
        self._deadlines.clear()
        self._starting = self._start(list(self._context.state.locks.held()), now)
        next(self._starting, None)

    def _start(self, held: Sequence[Lock], now: Now) -> Iterator[None]:
        locks = self._context.state.locks
        for number, lock in enumerate(held, 1):
            key = (lock.group, lock.topic, lock.queue_id)
            found = locks.get(*key)
            # A lock that was renewed since runs already; one that was freed needs no lease. A reset changes only the epoch.
            if found is not None and found.stamp == lock.stamp:
                stamp, at_ms = self._seen.get(key, (0, 0))
                began_ms = at_ms if stamp == lock.stamp else now.monotonic_ms
                self._deadlines.set(key, began_ms + lock.lease_ms)
            if number % STARTED_MAX == 0:
                yield

    def stop(self) -> None:
        """Clear all leases and all refused clients."""
        self._starting = iter(())
        self._deadlines.clear()
        self._refused.clear()

    def granted(self, outcome: LocksGranted, now: Now) -> None:
        """Start or renew the leases of granted queues."""
        self.seen(outcome, now)
        end = now.monotonic_ms + outcome.lease_ms
        for topic, queue_id, _ in outcome.granted:
            self._deadlines.set((outcome.group, topic, queue_id), end)

    def seen(self, outcome: LocksGranted, now: Now) -> None:
        """Note when a grant was applied here, in case this replica leads later."""
        for topic, queue_id, _ in outcome.granted:
            lock = self._context.state.locks.get(outcome.group, topic, queue_id)
            if lock is not None:
                self._seen[outcome.group, topic, queue_id] = (lock.stamp, now.monotonic_ms)
        locks = self._context.state.locks
        if len(self._seen) > 2 * locks.held_count + _SEEN_SLACK:
            self._seen = {key: seen for key, seen in self._seen.items() if locks.get(*key)}

    def freed(self, queues: Sequence[_Key]) -> list[_Key]:
        """Stop the leases of freed queues; return the queues that are free now."""
        free = [key for key in queues if self._context.state.locks.get(*key) is None]
        for key in free:
            self._deadlines.cancel(key)
            self._refused.pop(key, None)

        return free

    def tick(self, now: Now) -> list[Effect]:
        """Propose the end of the leases that have expired; if there are many, some in the next ticks."""
        next(self._starting, None)
        over: dict[str, list[LockRef]] = {}
        for key in islice(self._deadlines.pop_expired(now.monotonic_ms), ENDED_MAX):
            lock = self._context.state.locks.get(*key)
            if lock is not None:
                over.setdefault(key[0], []).append(LockRef(lock.topic, lock.queue_id, lock.stamp))
        if not over:
            return []
        self._context.counters["leases_expired"] += sum(map(len, over.values()))

        return in_pieces([*self._committer.take(), *self._end(over)])

    def leased(self) -> list[_Key]:
        """Return the locks whose leases run."""
        return list(self._deadlines.ends)

    def expiring(self, keys: Iterable[_Key], now: Now, part: int) -> list[tuple[Lock, int]]:
        """Return the locks with less than 1/*part* of their lease left, and their remaining time (ms)."""
        found = []
        for key in keys:
            lock, end_ms = self._context.state.locks.get(*key), self._deadlines.ends.get(key)
            if lock is not None and end_ms is not None:
                left_ms = end_ms - now.monotonic_ms
                if left_ms * part < lock.lease_ms:
                    found.append((lock, max(0, left_ms)))

        return found

    # -- parts -------------------------------------------------------------------------------------

    def _end(self, over: Mapping[str, Sequence[LockRef]]) -> list[Record]:
        """Return the records that end these leases, and the memberships of holders that this leader has not heard of.

        Holders that this leader has heard of are marked, and leave if their next heartbeat does not come.

        Other members may return until the leader's grace ends. If the leader waited as long for holders that it has
        not heard of, they would keep their share of the queues at each change of leader.
        """
        state, sessions = self._context.state, self._context.sessions
        records: list[Record] = []
        for group, refs in over.items():
            records += [LocksExpired(group, part) for part in parts(refs)]
            ending: Counter[str] = Counter()
            for ref in refs:
                lock = state.locks.get(group, ref.topic, ref.queue_id)
                if lock is not None:
                    ending[lock.client_id] += 1
            for client_id, count in sorted(ending.items()):
                if count < len(state.locks.held_by(client_id, group)):
                    continue
                presence = sessions.presence.get((group, client_id))
                if presence is None:
                    records.append(MemberLeft(group, client_id))
                else:
                    presence.lapsed = True

        return records

    def _note_refusals(
        self,
        body: LockBatchRequest,
        wanted: Sequence[MessageQueue],
        granted: Container[tuple[str, int]],
        now: Now,
    ) -> None:
        for queue in wanted:
            key = (body.consumer_group, queue.topic, queue.queue_id)
            if (queue.topic, queue.queue_id) in granted:
                # A renewal by the holder does not mean that the refused client no longer waits.
                if self._refused.get(key, ("", 0))[0] == body.client_id:
                    del self._refused[key]
            elif self._context.state.locks.get(*key) is not None:
                self._refused[key] = (body.client_id, now.monotonic_ms)
        locks = self._context.state.locks
        if len(self._refused) > 2 * locks.held_count + _SEEN_SLACK:
            # Remove those of deleted topics and groups.
            self._refused = {key: each for key, each in self._refused.items() if locks.get(*key)}

    def _wanted_by(self, lock: Lock, now: Now) -> str:
        """Return the client that was recently refused a lock; empty if there is none."""
        client_id, at_ms = self._refused.get((lock.group, lock.topic, lock.queue_id), ("", 0))
        return client_id if now.monotonic_ms - at_ms < REFUSAL_MS else ""

    def _over(
        self, body: LockBatchRequest, wanted: list[MessageQueue], now: Now
    ) -> tuple[LockRef, ...]:
        """Return the wanted locks of other clients whose lease has expired although no tick has ended it yet."""
        refs = []
        for queue in wanted:
            key = (body.consumer_group, queue.topic, queue.queue_id)
            end = self._deadlines.ends.get(key)
            if end is None or end >= now.monotonic_ms:
                continue
            lock = self._context.state.locks.get(*key)
            if lock is not None and lock.client_id != body.client_id:
                refs.append(LockRef(lock.topic, lock.queue_id, lock.stamp))

        return tuple(refs)

    def _holders(
        self, group: str, wanted: list[MessageQueue], over: tuple[LockRef, ...]
    ) -> dict[MessageQueue, tuple[str, bool]]:
        """Return the holder of each queue (empty if there is none), and whether its lease has expired."""
        expired = {(ref.topic, ref.queue_id) for ref in over}
        found = {}
        for queue in wanted:
            lock = self._context.state.locks.get(group, queue.topic, queue.queue_id)
            holder = "" if lock is None else lock.client_id
            found[queue] = (holder, (queue.topic, queue.queue_id) in expired)

        return found

    def _report(
        self,
        body: LockBatchRequest,
        granted: Mapping[MessageQueue, int],
        before: Mapping[MessageQueue, tuple[str, bool]],
        now: Now,
    ) -> None:
        """Log the outcome of a request."""
        refused = {
            queue: lock.client_id
            for queue in before.keys() - granted.keys()
            if (
                lock := self._context.state.locks.get(
                    body.consumer_group, queue.topic, queue.queue_id
                )
            )
        }
        got = {queue: who for queue, who in before.items() if queue in granted}
        self.reports.decided(
            body.consumer_group, body.client_id, got, dict(sorted(refused.items())), now
        )

    def _held(
        self, body: LockBatchRequest, granted: Sequence[tuple[MessageQueue, int]]
    ) -> list[list[str | int]]:
        """Return the parked keys of granted queues; their new consumer must know them before its first message."""
        return [
            [held.topic, held.queue_id, held.key, held.offset, held.message_id]
            for queue, _ in granted
            for held in self._context.state.parked.of_queue(
                body.consumer_group, queue.topic, queue.queue_id
            ).values()
        ]

    def _check_room(self, group: str, wanted: Sequence[MessageQueue]) -> None:
        """Refuse locks of queues that the group has never locked if there are too many locks.

        Raises:
            RequestRefused: there are too many (1).
        """
        locks = self._context.state.locks
        room = LOCKS_MAX - locks.count - self._context.entries.pending_rows["locks",]
        if len(wanted) <= room:
            return
        new = sum(not locks.epoch(group, each.topic, each.queue_id) for each in wanted)
        if new and new > room:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"this broker group already has the largest number of locks, {LOCKS_MAX} queues "
                "of consumer groups; delete groups or topics that are not needed",
            )

    def _is_ours(self, queue: MessageQueue) -> bool:
        if queue.broker_name != self._context.settings.group:
            return False
        topic = self._context.state.topics.get(queue.topic)

        return topic is not None and 0 <= queue.queue_id < topic.queue_count

    def _lease(self, asked_ms: int | None) -> int:
        if asked_ms is None:
            return self._context.settings.timers.lock_lease_ms

        return max(LEASE_MS_MIN, min(asked_ms, LEASE_MS_MAX))


def releases(group: str, client_id: str, queues: Iterable[tuple[str, int]]) -> list[LocksReleased]:
    """Return the records by which a client releases queues."""
    return [LocksReleased(group, client_id, part) for part in parts(list(queues))]


def check_client(client_id: str, group: str | None = None) -> None:
    """Refuse a client id or group name that cannot be used as a key.

    Raises:
        RequestRefused: it is empty, too long, or has characters that are not allowed.
    """
    if not client_id or len(client_id) > CLIENT_ID_LENGTH_MAX or "\x00" in client_id:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"the client id must have 1 to {CLIENT_ID_LENGTH_MAX} characters and no zero byte",
        )
    if group is not None:
        check_name(check_group_name, group)


def check_count(body: LockBatchRequest) -> None:
    """Refuse a request for more queues than one turn of the event loop can process.

    Raises:
        RequestRefused: it names too many (1).
    """
    if len(body.queues) > LOCK_QUEUES_MAX:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"the request names {len(body.queues)} queues, but at most {LOCK_QUEUES_MAX} can be "
            "locked or released in one request: divide them over several requests or consumers",
        )


def _granted_body(
    granted: Sequence[tuple[MessageQueue, int]], held: Sequence[list[str | int]] = ()
) -> bytes:
    """Return the reply to 41; ``epochs`` and ``parkedKeys`` are our own, and other clients ignore them."""
    return fastjson.dumps(
        {
            "epochs": [epoch for _, epoch in granted],
            **({"parkedKeys": held} if held else {}),
            "lockOKMQSet": [queue.to_json_value() for queue, _ in granted],
        }
    )
