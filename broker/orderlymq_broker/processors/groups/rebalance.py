"""
Notices of changes (40): which members they reach, and which notices are repeated.

The rules: a notice is worth its rebalance only if there is a queue to take. RocketMQ's consumers ask for a queue once
per rebalance, 4.x again after 20 s, 5.x after half a second. Therefore the notice about a dead member follows the
release of its locks. While a freed queue has no holder, its group is notified again a few times. The reason is that a
notice can be lost in a client that is about to sleep or is between two connections. All changes of one log entry, of
which there may be thousands, give one notice for each member. Notices also reach members that a new leader knows only
by their pulls, because RocketMQ's heartbeats come every 30 s.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from orderlymq_broker.core.effects import CallSoon, Effect, Now, Send
from orderlymq_broker.core.longwalks import walk
from orderlymq_broker.core.requestcontext import Context
from orderlymq_broker.state.groups.locks import Lock
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import FLAG_ONEWAY, RemotingCommand

# Soon after the first notice, and again after a RocketMQ 4.x consumer has pulled again, which it
# does 3 s after a failed pull.
REMIND_AFTER_MS: Final = (1_000, 4_000)

# The notices sent, and the queues examined, before other work gets its turn: about 10 ms.
NOTICES_MAX: Final = 1_024

_Key = tuple[str, str, int]


@dataclass(slots=True)
class _Reminder:
    """Queues of one group that became free, and when the group is notified again (monotonic ms)."""

    queues: set[_Key]
    due_ms: list[int]


class RebalanceNotifier:
    """Notifies the members of groups to rebalance (40)."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reminders: dict[str, _Reminder] = {}
        # Groups changed by the entry that is being applied, in the order of the changes.
        self._changed: dict[str, None] = {}

    def start(self, now: Now) -> list[Effect]:
        """Begin to lead: remind groups of queues that were free already, because their notice may be lost."""
        self.stop()

        return walk(self._context, self._locks(), self._remind_of_free, now)

    def _locks(self) -> Iterator[Lock | None]:
        """Yield the locks, held or free, of all groups that have members, and a None for each group."""
        state = self._context.state
        for group in list(state.members.groups()):
            yield None
            yield from state.locks.of_group(group)

    def _remind_of_free(self, locks: Sequence[Lock | None], now: Now) -> list[Effect]:
        keys = ((lock.group, lock.topic, lock.queue_id) for lock in locks if lock is not None)
        self._remind(filter(self._is_free, keys), now)

        return []

    def stop(self) -> None:
        """Clear the notices that were due."""
        self._reminders.clear()
        self._changed.clear()

    def notify(self, groups: Iterable[str], **more: str) -> list[Effect]:
        """Tell the members of these groups to rebalance (40), some in later turns if many; *more* is for our SDK."""
        return self._in_turns(self._notices(groups, more))

    def _notices(self, groups: Iterable[str], more: dict[str, str]) -> Iterator[Send]:
        context = self._context
        for group in dict.fromkeys(groups):
            config = context.state.groups.get(group)
            if config is not None and not config.notify_changes:
                continue
            for connection in context.sessions.consumers_at(group):
                notice = RemotingCommand(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                    context.next_opaque(),
                    FLAG_ONEWAY,
                    {"consumerGroup": group, **more},
                )
                yield Send(connection, notice)

    def _in_turns(self, notices: Iterator[Send | None]) -> list[Effect]:
        """Return some notices now and the others in later turns; None stands for a queue that needs no notice."""
        some = list(islice(notices, NOTICES_MAX))
        effects: list[Effect] = [each for each in some if each is not None]
        if len(some) == NOTICES_MAX:
            effects.append(CallSoon(lambda _: self._in_turns(notices)))

        return effects

    def freed(self, queues: Sequence[_Key], now: Now) -> None:
        """Note queues that are free now; their groups are reminded until a member takes them."""
        self.changed((), queues, now)

    def changed(self, groups: Sequence[str], queues: Sequence[_Key], now: Now) -> None:
        """Note groups whose members joined, left or changed their topics, and *queues* that are free now."""
        self._remind(queues, now)
        self._changed.update(dict.fromkeys((*groups, *(group for group, _, _ in queues))))

    def notices(self) -> list[Effect]:
        """Notify the members of the changes since the last call, each member once."""
        groups, self._changed = self._changed, {}

        return self.notify(groups)

    def tick(self, now: Now) -> list[Effect]:
        """Remind groups whose queues no member has taken."""
        at_ms = now.monotonic_ms
        due: list[tuple[str, _Reminder]] = []
        for group, reminder in self._reminders.items():
            if reminder.due_ms and reminder.due_ms[0] <= at_ms:
                reminder.due_ms = [due_ms for due_ms in reminder.due_ms if due_ms > at_ms]
                due.append((group, reminder))

        return self._in_turns(self._again(due))

    def _again(self, due: Sequence[tuple[str, _Reminder]]) -> Iterator[Send | None]:
        """Yield the notices about queues that are still free, and a None for each queue that was examined."""
        for group, reminder in due:
            for key in list(reminder.queues):
                if not self._is_free(key):
                    reminder.queues.discard(key)
                yield None
            if self._reminders.get(group) is not reminder:
                continue  # another leadership has begun
            if reminder.queues:
                yield from self._notices([group], {})
            if not (reminder.queues and reminder.due_ms):
                self._reminders.pop(group, None)

    # -- parts -------------------------------------------------------------------------------------

    def _remind(self, queues: Iterable[_Key], now: Now) -> None:
        for key in queues:
            due_ms = [now.monotonic_ms + after_ms for after_ms in REMIND_AFTER_MS]
            reminder = self._reminders.setdefault(key[0], _Reminder(set(), due_ms))
            reminder.queues.add(key)
            reminder.due_ms = due_ms

    def _is_free(self, key: _Key) -> bool:
        group, topic_name, queue_id = key
        topic = self._context.state.topics.get(topic_name)
        exists = topic is not None and queue_id < topic.config.read_queues

        return exists and self._context.state.locks.get(group, topic_name, queue_id) is None
