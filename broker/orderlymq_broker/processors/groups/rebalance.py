"""
Notices of change (40): whom they reach, and which are repeated.

The rules: a notice is worth its rebalance only when there is something to take. RocketMQ's consumers ask
for a queue once per rebalance, 4.x again after 20 s, 5.x after half a second; so the notice about
a dead member follows the release of its locks. While a freed queue has no holder its group is notified
again, a few times: a notice may get lost in a client that is about to sleep, or find it between two
connections. What one entry of the log changes is one notice for each member, as a thousand may come or go with it. It reaches members that a new leader knows by their pulls alone, as RocketMQ's
heartbeats come every 30 s.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from orderlymq_broker.core.effects import Effect, Now, Send
from orderlymq_broker.core.requestcontext import Context
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import FLAG_ONEWAY, RemotingCommand

# Soon after the first notice, and once more when a RocketMQ 4.x consumer has pulled again, which it
# does 3 s after a pull that failed.
REMIND_AFTER_MS: Final = (1_000, 4_000)

_Key = tuple[str, str, int]


@dataclass(slots=True)
class _Reminder:
    """Queues of one group that became free, and when it is notified again (monotonic ms)."""

    queues: set[_Key]
    due_ms: list[int]


class RebalanceNotifier:
    """Notifies the members of groups to rebalance (40)."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reminders: dict[str, _Reminder] = {}
        # Groups that the entry which is being applied has changed, in the order of their changes.
        self._changed: dict[str, None] = {}

    def start(self, now: Now) -> None:
        """Begin to lead: remind groups of queues that were free already, lest their notice was lost."""
        self.stop()
        state = self._context.state
        for group in state.members.groups():
            self._remind(state.locks.free(group), now)

    def stop(self) -> None:
        """Forget the notices that were due."""
        self._reminders.clear()
        self._changed.clear()

    def notify(self, groups: Iterable[str], **more: str) -> list[Effect]:
        """Notify the members of these groups (40) to rebalance; *more* is for our SDK."""
        context = self._context
        effects: list[Effect] = []
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
                effects.append(Send(connection, notice))

        return effects

    def freed(self, queues: Sequence[_Key], now: Now) -> None:
        """Note queues that are free now, which are announced again while nobody has taken them."""
        self.changed((), queues, now)

    def changed(self, groups: Sequence[str], queues: Sequence[_Key], now: Now) -> None:
        """Note members that came, went or want other topics, and *queues* that are free now."""
        self._remind(queues, now)
        self._changed.update(dict.fromkeys((*groups, *(group for group, _, _ in queues))))

    def notices(self) -> list[Effect]:
        """Notify the members of what was noted since the last call, each member once."""
        groups, self._changed = self._changed, {}

        return self.notify(groups)

    def tick(self, now: Now) -> list[Effect]:
        """Notify again where nobody seems to have heard."""
        at_ms = now.monotonic_ms
        groups: list[str] = []
        for group, reminder in list(self._reminders.items()):
            if reminder.due_ms[0] > at_ms:
                continue
            reminder.due_ms = [due_ms for due_ms in reminder.due_ms if due_ms > at_ms]
            reminder.queues = {key for key in reminder.queues if self._is_free(key)}
            if reminder.queues:
                groups.append(group)
            if not (reminder.queues and reminder.due_ms):
                del self._reminders[group]

        return self.notify(groups)

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
