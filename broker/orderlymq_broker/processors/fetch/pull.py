"""
Pulls: codes 11 and 361, answered immediately or held until there is something to answer.

The rules: the checks come in RocketMQ's order (PullMessageProcessor), then the fence. A held pull is woken when a
message that its filter wants is applied, at its deadline, or when the leadership is lost. It is then checked again
from the start, but neither commits nor waits a second time. An append looks only at the held pulls of its own queue,
so thousands of held pulls cost a send nothing. Filters that read messages have a budget in each turn. When it is
spent, the clients that wait with such a filter are told to pull again, and each of them then gets its own turn. A
pull that arrives before its client's heartbeat is held for a short time. Held pulls are answered in turns of a few
hundred. When no more pulls can wait, the connection with the most of them gives some up.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice
from sys import getsizeof
from typing import Final, TypeVar

from orderlymq_broker.core.effects import Caller, CallSoon, Effect, Now
from orderlymq_broker.core.requestcontext import (
    Context,
    CreateFirst,
    RequestRefused,
    answer,
    unanswered,
)
from orderlymq_broker.core.uncommitted import count_down
from orderlymq_broker.processors.fetch.checks import check_broker, readable_topic
from orderlymq_broker.processors.fetch.filter import choose_filter, memory_of
from orderlymq_broker.processors.fetch.read import (
    BULK_SIZE_MAX,
    SCAN_WORK_MAX,
    SIZE_MAX,
    Matches,
    PropertyTest,
    Reading,
    read_message,
    read_queue,
)
from orderlymq_broker.processors.groups.clientids import check_named
from orderlymq_broker.processors.groups.fence import (
    JUDGED_FIELDS,
    Fence,
    Verdict,
    refuse_by_key,
)
from orderlymq_broker.processors.groups.groupcreation import known_group
from orderlymq_broker.processors.groups.offsets import Committer
from orderlymq_broker.state.records import Append
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.extensions import EXT_BULK
from orderlymq_protocol.header.pull import PullMessageHeader
from orderlymq_protocol.message.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND

# A client's own time-out is 30 s; after a longer wait, no client would receive the answer.
SUSPEND_MS_MAX: Final = 30_000
# A hundred thousand held pulls take about 100 MB, without what clients choose. That is the texts of id, epoch and
# subscription, usually 200 bytes, although a header may have half a megabyte; and filters, of which a large one takes a
# hundred times the bytes of its text.
HELD_MAX: Final = 100_000
HELD_BYTES_MAX: Final = 64 << 20
# The weight of a pull in addition to what its client chooses, used to find the connection with the most.
_HELD_WEIGHT: Final = HELD_BYTES_MAX // HELD_MAX
# The pulls given up together, because finding the connection takes 10 ms when a hundred thousand pulls wait.
_GIVEN_UP_COUNT: Final = 64

# The work of one turn for held pulls: checks of this many, or answers to a sixteenth of it, in a few milliseconds.
RELEASE_WORK_MAX: Final = 4_096
RELEASE_WORK: Final = 16
# The held pulls of a closed connection that one turn removes.
FORGOTTEN_MAX: Final = 4_096
# How many events, such as messages and deadlines, usually have pulls being answered at the same time.
RELEASES_USUAL: Final = 16

# The work that filters may take in one turn before held pulls are answered without filtering: that of one pull.
WAKE_WORK_MAX: Final = SCAN_WORK_MAX

_HEAP_SLACK: Final = 1_000

_QueueKey = tuple[int, int]

# After a rebalance, a consumer of RocketMQ pulls under a new version of its subscription, and sends the heartbeat that
# reports this version only afterwards. If its pull were refused, it would pull again a second later.
EARLY_MS: Final = 500
# The key for such pulls: no queue has it, so no append wakes them.
_EARLY: Final[_QueueKey] = (-1, -1)
_Key = TypeVar("_Key")


class HeldPull:
    """A pull that waits for a message; *request* has the fields for its answer, *size* is the bytes of its texts."""

    __slots__ = (
        "caller",
        "deadline_ms",
        "done",
        "header",
        "key",
        "matches",
        "number",
        "request",
        "size",
    )

    def __init__(
        self,
        request: RemotingCommand,
        caller: Caller,
        header: PullMessageHeader,
        key: _QueueKey,
        matches: Matches | None,
        deadline_ms: int,
        number: int,
        size: int,
    ) -> None:
        self.request = request
        self.caller = caller
        self.header = header
        self.key = key
        self.matches = matches
        self.deadline_ms = deadline_ms
        self.number = number
        self.size = size
        self.done = False


_NONE_HELD: Final[dict[int, HeldPull]] = {}


class PullProcessor:
    """Serves pulls and keeps those that wait.

    Attributes:
        held_count: how many pulls wait.
    """

    def __init__(self, context: Context, fence: Fence, committer: Committer) -> None:
        self._context = context
        self._fence = fence
        self._committer = committer
        self._held: dict[_QueueKey, dict[int, HeldPull]] = {}
        self._by_connection: dict[int, dict[int, HeldPull]] = {}
        # (deadline, number, connection): an entry may outlive its pull, so it must not keep the pull in memory.
        self._deadlines: list[tuple[int, int, int]] = []
        self.held_count = 0
        # The bytes of texts and filters; and how many pulls wait with each filter, by the filter's identity: they share it.
        self._held_bytes = 0
        self._filters: Counter[int] = Counter()
        self._number = 0
        # The total work of filters that read messages.
        self._work = 0
        # The limit of that work for this turn.
        self._limit = 0
        # Pulls to answer, each group with a reason if they are not to be checked again; None stands for a pull only
        # looked at.
        self._due: deque[tuple[Iterator[HeldPull | None], str]] = deque()
        self._goes_on = False
        # Whether heartbeats arrived since the pulls ahead of them were checked, and whether such a check is in progress.
        self._reported = self._seeks_reported = False

    def pull(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 11 and 361: pull messages."""
        header = PullMessageHeader.from_ext(request.ext)
        check_named(self._context, request.ext, caller, now)
        try:
            topic, matches, verdict = self._check(header, request, caller)
        except RequestRefused as refused:
            early = refused.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
            deadline_ms = now.monotonic_ms + EARLY_MS
            if early:
                crowded = self._hold(request, caller, header, _EARLY, None, deadline_ms)
                if crowded is not None:
                    return crowded
            raise
        if header.sys_flag & PULL_COMMIT_OFFSET:
            self._committer.commit_with_pull(header, topic, verdict, request.ext, caller)
        reading = self._read(header, topic, matches, bulk=EXT_BULK in request.ext)
        if reading.is_at_end:
            key = (topic.id, header.queue_id)
            deadline_ms = now.monotonic_ms + min(header.suspend_timeout_millis, SUSPEND_MS_MAX)
            crowded = self._hold(request, caller, header, key, matches, deadline_ms)
            if crowded is not None:
                return crowded

        return self._answer(request, caller, header, reading)

    def wake(self, appended: list[Append]) -> list[Effect]:
        """Answer the held pulls that want one of these messages."""
        if not self._held:
            return []
        return self._release_each(self._wanted(appended, self._number))

    def _wanted(self, appended: list[Append], newest: int) -> Iterator[HeldPull | None]:
        """Check the pulls held up to number *newest*: yield each that wants a message, and None for each other."""
        # By message and identity of a filter, which all pulls with the same expression share.
        verdicts: dict[tuple[int, int], bool] = {}
        for record in appended:
            pulls = self._held.get((record.topic_id, record.queue_id))
            for held in [] if pulls is None else [*pulls.values()]:
                matches = held.matches
                wants = held.number <= newest and (
                    matches is None
                    or (
                        self._is_wanted(matches, record, verdicts)
                        if isinstance(matches, PropertyTest)
                        else matches(record.tags_code)
                    )
                )
                yield held if wants else None

    def _is_wanted(
        self,
        test: PropertyTest,
        record: Append,
        verdicts: dict[tuple[int, int], bool],
    ) -> bool:
        """Return whether a message passes or may pass; the pull is checked again in any case."""
        which = record.physical, id(test)
        known = verdicts.get(which)
        if known is not None:
            return known
        if self._work >= self._limit:
            return True
        topic = self._context.state.topics.by_id.get(record.topic_id)
        if topic is None:
            return True  # the topic was deleted since the message came: the answer reports that
        queue = topic.queue(record.queue_id)
        place = record.queue_offset - queue.tail_start
        message: bytes | memoryview | None
        if place >= 0:
            message = queue.tail[place].message
        else:
            message = read_message(self._context.reader, record.physical)
        self._work += test.work(message) if message is not None else 1
        # Without the message, the result is unknown.
        verdict = verdicts[which] = message is None or test.passes(message)

        return verdict

    def wake_early(self) -> list[Effect]:
        """Check the pulls whose clients' heartbeats have arrived; heartbeats of other members leave pulls waiting."""
        self._reported = True

        return [] if self._seeks_reported else self._release_each(self._if_reported())

    def _if_reported(self) -> Iterator[HeldPull | None]:
        """Check the pulls ahead of a heartbeat, and again if more heartbeats came meanwhile; only one such walk runs."""
        members = self._context.state.members
        self._seeks_reported = True
        while self._reported:
            self._reported = False
            for held in [*self._held.get(_EARLY, {}).values()]:
                header = held.header
                wish = members.subscriptions(header.consumer_group).get(header.topic)
                yield held if wish is not None and wish.version >= header.sub_version else None
        self._seeks_reported = False

    def wake_orphaned(self, groups: Collection[str] | None = None) -> list[Effect]:
        """Answer the held pulls, of some groups or all, whose topic or group is gone or whose group consumes by key."""
        return self._release_each(map(partial(self._if_orphaned, groups), self._all_held()))

    def _if_orphaned(self, groups: Collection[str] | None, held: HeldPull) -> HeldPull | None:
        if groups is not None and held.header.consumer_group not in groups:
            return None
        state = self._context.state
        group = state.groups.get(held.header.consumer_group)
        # A pull that came before its heartbeat is held without a topic.
        is_there = held.key == _EARLY or held.key[0] in state.topics.by_id
        return None if is_there and group is not None and not group.by_key else held

    def _all_held(self) -> list[HeldPull]:
        # About 5 ms for the most pulls that may wait; they are checked in turns.
        return [held for pulls in self._held.values() for held in pulls.values()]

    def tick(self, now: Now) -> list[Effect]:
        """Answer the held pulls whose time is up."""
        return self._release_each(self._timed_out(now))

    def _timed_out(self, now: Now) -> Iterator[HeldPull | None]:
        while self._deadlines and self._deadlines[0][0] <= now.monotonic_ms:
            _, number, connection = heappop(self._deadlines)
            yield self._by_connection.get(connection, _NONE_HELD).get(number)

    def close(self, connection: int) -> list[Effect]:
        """Remove the held pulls of a closed connection, some now and the others in later turns."""
        pulls = self._by_connection.get(connection, _NONE_HELD)
        for held in list(islice(pulls.values(), FORGOTTEN_MAX)):
            self._forget(held)

        return [CallSoon(lambda _: self.close(connection))] if pulls else []

    def release_all(self, reason: str = "LEADER_CHANGED") -> list[Effect]:
        """Tell every waiting consumer to pull again immediately; its new pull is checked from the start."""
        return self._release_each(iter(self._all_held()), reason)

    # -- checks ------------------------------------------------------------------------------------

    def _check(
        self, header: PullMessageHeader, request: RemotingCommand, caller: Caller
    ) -> tuple[Topic, Matches | None, Verdict]:
        """Return topic, filter and the fence's verdict of a pull that may be served.

        Raises:
            RequestRefused: a check failed; the first one that fails gives the reason.
        """
        context = self._context
        check_broker(context)
        config = known_group(context, header.consumer_group)
        refuse_by_key(config)
        topic = readable_topic(context, header.topic, config)
        if not 0 <= header.queue_id < topic.config.read_queues:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{topic.name}] "
                f"topicConfig.readQueueNums:[{topic.config.read_queues}] "
                f"consumer:[{caller.host}:{caller.port}]",
            )
        session = context.note_consumer(header.consumer_group, caller)
        matches = choose_filter(context, header, config)
        verdict = self._fence.judge_pull(
            header.consumer_group, topic.name, header.queue_id, caller, request.ext
        )
        if verdict.refusal:
            context.counters["fenced_pulls"] += 1
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, verdict.refusal)
        if session is not None:
            session.pulled = True

        return topic, matches, verdict

    # -- answers -----------------------------------------------------------------------------------

    def _read(
        self,
        header: PullMessageHeader,
        topic: Topic,
        matches: Matches | None,
        *,
        bulk: bool = False,
    ) -> Reading:
        reading = read_queue(
            self._context.reader,
            topic.queues.get(header.queue_id),
            header.queue_offset,
            count_max=header.max_msg_nums,
            size_max=header.max_msg_bytes or (BULK_SIZE_MAX if bulk else SIZE_MAX),
            matches=matches,
            bulk=bulk,
        )
        if matches is not None:
            self._work += reading.work
        if header.queue_offset > reading.max_offset and self._context.state.members.is_pushing(
            header.consumer_group
        ):
            reading = self._restart_beyond_end(header, reading)
        self._context.positions.note(
            header.consumer_group, topic.name, header.queue_id, reading.next_offset
        )

        return reading

    def _restart_beyond_end(self, header: PullMessageHeader, reading: Reading) -> Reading:
        """Make a push consumer beyond the end continue at its group's offset, or at the first message if there is none.

        The topic was deleted and created again, or restored. At the end, to which RocketMQ sends the consumer, it
        would skip messages acknowledged since. Programs that pull get RocketMQ's answer, because they choose their
        offsets.
        """
        low, high = reading.min_offset, reading.max_offset
        stored = self._context.state.offsets.get(
            header.consumer_group, header.topic, header.queue_id
        )

        return reading._replace(next_offset=min(max(low, stored or 0), high))

    def _answer(
        self, request: RemotingCommand, caller: Caller, header: PullMessageHeader, reading: Reading
    ) -> list[Effect]:
        body = b""
        if reading.messages:
            body = b"".join(reading.messages)
            topic, group = header.topic, header.consumer_group
            self._context.handed_out(caller, topic, group, len(reading.messages), len(body))
        ext = {
            # The address is always the same: it belongs to the leader (brokerId 0).
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(reading.next_offset),
            "minOffset": str(reading.min_offset),
            "maxOffset": str(reading.max_offset),
        }

        return answer(request, caller, reading.code, ext=ext, body=body, remark=reading.status)

    # -- waiting -----------------------------------------------------------------------------------

    def _hold(
        self,
        request: RemotingCommand,
        caller: Caller,
        header: PullMessageHeader,
        key: _QueueKey,
        matches: Matches | None,
        deadline: int,
    ) -> list[Effect] | None:
        """Hold a pull if it wants to wait; return the answers to pulls that make room, or None if it is not held."""
        if not (header.sys_flag & PULL_SUSPEND and header.suspend_timeout_millis > 0):
            return None
        kept = unanswered(request, *JUDGED_FIELDS)
        if not header.sys_flag & PULL_SUBSCRIPTION:
            header.subscription = header.expression_type = None
        size = sum(map(getsizeof, kept.ext.values()))
        size += getsizeof(header.subscription) + getsizeof(header.expression_type)
        crowded: list[Effect] = []
        filter_size = memory_of(matches)
        while (
            self.held_count >= HELD_MAX
            or self._held_bytes + size + filter_size * (id(matches) not in self._filters)
            > HELD_BYTES_MAX
        ):
            if not self._by_connection:
                return None
            most = max(self._by_connection.values(), key=_weight)
            for oldest in [*islice(most.values(), _GIVEN_UP_COUNT)]:
                crowded += self._retry_immediately(oldest, "TOO_MANY_WAIT")
        self._number += 1
        held = HeldPull(kept, caller, header, key, matches, deadline, self._number, size)
        self._held.setdefault(key, {})[held.number] = held
        self._by_connection.setdefault(caller.connection, {})[held.number] = held
        heappush(self._deadlines, (deadline, held.number, caller.connection))
        self.held_count += 1
        self._held_bytes += size
        self._filters[id(matches)] += 1
        if self._filters[id(matches)] == 1:
            self._held_bytes += filter_size

        return crowded

    def _release_each(self, pulls: Iterator[HeldPull | None], reason: str = "") -> list[Effect]:
        """Check and answer held pulls, or end them with a *reason*: a few hundred now, the others in later turns."""
        self._due.append((pulls, reason))

        return [] if self._goes_on else self._answer_due()

    def _go_on(self, now: Now) -> list[Effect]:
        self._goes_on = False
        return self._answer_due()

    def _answer_due(self) -> list[Effect]:
        """Answer the first due pulls; if filters took too much work, tell those with a filter to pull again."""
        self._limit = self._work + WAKE_WORK_MAX
        effects: list[Effect] = []
        # Do more if earlier turns left much, so that the backlog cannot grow without end.
        room = RELEASE_WORK_MAX * (1 + len(self._due) // RELEASES_USUAL)
        while self._due and room > 0:
            pulls, reason = self._due[0]
            for held in pulls:
                if held is None or held.done:
                    room -= 1
                else:
                    effects += self._answer_held(held, reason)
                    room -= RELEASE_WORK
                if room <= 0:
                    break
            else:
                self._due.popleft()
        if self._due:
            self._goes_on = True
            effects.append(CallSoon(self._go_on))

        return effects

    def _answer_held(self, held: HeldPull, reason: str) -> list[Effect]:
        if not self._context.leading:
            reason = "LEADER_CHANGED"
        elif self._work >= self._limit and (
            isinstance(held.matches, PropertyTest) or held.key == _EARLY
        ):
            reason = "FILTERS_BUSY"

        return self._retry_immediately(held, reason) if reason else self._release(held)

    def _retry_immediately(self, held: HeldPull, reason: str) -> list[Effect]:
        """Answer a held pull with PULL_RETRY_IMMEDIATELY; its consumer pulls again, and that pull is checked again."""
        self._forget(held)
        topic = self._context.state.topics.by_id.get(held.key[0])
        queue = topic.queues.get(held.key[1]) if topic is not None else None
        reading = Reading(
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            reason,
            held.header.queue_offset,
            queue.min_offset if queue is not None else 0,
            queue.next_offset if queue is not None else 0,
            [],
        )

        return self._answer(held.request, held.caller, held.header, reading)

    def _release(self, held: HeldPull) -> list[Effect]:
        """Check a held pull again and answer it finally."""
        self._forget(held)
        try:
            topic, matches, _ = self._check(held.header, held.request, held.caller)
        except RequestRefused as refused:
            return answer(held.request, held.caller, refused.code, remark=refused.remark)
        except CreateFirst:
            return answer(
                held.request,
                held.caller,
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remark=f"subscription group [{held.header.consumer_group}] was deleted",
            )

        return self._answer(
            held.request, held.caller, held.header, self._read(held.header, topic, matches)
        )

    def _forget(self, held: HeldPull) -> None:
        held.done = True
        self.held_count -= 1
        self._held_bytes -= held.size
        count_down(self._filters, (id(held.matches),))
        if id(held.matches) not in self._filters:
            self._held_bytes -= memory_of(held.matches)
        _remove(self._held, held.key, held.number)
        _remove(self._by_connection, held.caller.connection, held.number)
        # Entries of answered pulls stay in the heap until most entries are such.
        if len(self._deadlines) > 2 * self.held_count + _HEAP_SLACK:
            self._deadlines = [
                entry
                for entry in self._deadlines
                if entry[1] in self._by_connection.get(entry[2], _NONE_HELD)
            ]
            heapify(self._deadlines)


def _weight(pulls: dict[int, HeldPull]) -> int:
    filters = {id(held.matches): held.matches for held in pulls.values()}

    return sum(held.size + _HELD_WEIGHT for held in pulls.values()) + sum(
        map(memory_of, filters.values())
    )


def _remove(table: dict[_Key, dict[int, HeldPull]], key: _Key, number: int) -> None:
    pulls = table[key]
    del pulls[number]
    if not pulls:
        del table[key]
