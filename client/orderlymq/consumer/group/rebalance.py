"""
The rebalance of one member of a consumer group: computes repeatedly which queues this member should have.

Rule: missing information is no reason to give a queue up. If the queues or the members of a topic are unknown, the
member keeps its queues of that topic. If a topic does not exist yet, such as the group's own retry topic in the first
second, the search is repeated soon and then less and less often, up to the rebalance interval.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from orderlymq.connection.instance import ClientInstance
from orderlymq.consumer.assignment import assign
from orderlymq.consumer.group.calls import GroupCalls
from orderlymq.consumer.settings import ConsumerSettings, MessageModel
from orderlymq.durations import seconds
from orderlymq.errors import BrokerError, NameServersUnreachable, TopicNotFound
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.names import retry_topic
from orderlymq_runtime.process.waits import wait_for

_log = logging.getLogger(__name__)

_MISSING_FIRST_S: Final = 0.2


class Rebalance:
    """Computes the queues of one member; `soon` starts the computation now.

    Args:
        topics: the subscriptions, by topic.
        everything: true if every member works on all queues, as in a consumer group that consumes by key.
        present: returns the queues that the member has or is trying to get.
        assigned: gets the assigned queues.
    """

    def __init__(
        self,
        instance: ClientInstance,
        calls: GroupCalls,
        group: str,
        settings: ConsumerSettings,
        *,
        topics: Mapping[str, object],
        everything: bool,
        present: Callable[[], Iterable[MessageQueue]],
        assigned: Callable[[frozenset[MessageQueue]], Awaitable[None]],
    ) -> None:
        self._instance = instance
        self._calls = calls
        self._group = group
        self._settings = settings
        self._topics = topics
        self._everything = everything or settings.message_model is MessageModel.BROADCASTING
        self._present = present
        self._assigned = assigned
        self._wanted = asyncio.Event()

    def soon(self) -> None:
        """Compute now, because the members, the queues or the subscriptions have changed."""
        self._wanted.set()

    async def run(self) -> None:
        """Compute for ever, at the interval and after each `soon`."""
        missing_s = _MISSING_FIRST_S
        interval_s = seconds(self._instance.settings.rebalance_interval)
        while True:
            self._wanted.clear()
            if await self._compute():
                wait_s, missing_s = interval_s, _MISSING_FIRST_S
            else:
                wait_s, missing_s = min(missing_s, interval_s), missing_s * 2
            await wait_for(self._wanted, wait_s)

    async def _compute(self) -> bool:
        """Compute this member's queues and hand them on; return whether the queues of all topics were known."""
        wanted: set[MessageQueue] = set()
        complete = True
        for topic in list(self._topics):
            present = {queue for queue in self._present() if queue.topic == topic}
            found = await self._queues_of(topic)
            if found is None:
                complete = False
                wanted |= present
            else:
                wanted |= set(found)
        await self._assigned(frozenset(wanted))
        return complete

    async def _queues_of(self, topic: str) -> list[MessageQueue] | None:
        try:
            route = await self._instance.route(topic)
        except TopicNotFound as error:
            is_own = topic == retry_topic(self._group)
            _log.log(logging.DEBUG if is_own else logging.WARNING, "%s", error)
            return None
        except (NameServersUnreachable, BrokerError) as error:
            _log.warning("no rebalance of %s: %s", topic, error)
            return None
        if self._everything:
            return list(route.subscribe)
        members = await self._calls.members(topic)
        if members is None:
            return None
        client_id = self._instance.client_id
        if client_id not in members:
            # A Java client would drop every queue here; but a new leader may not know this client yet.
            _log.info("doRebalance, %s is not in the list of %s yet", client_id, self._group)
            await self._instance.heartbeats.beat_all()
            return None
        strategy = self._settings.allocate_message_queue_strategy
        if self._settings.server_assignment:
            return await self._calls.assigned(topic, strategy.name)
        return assign(strategy, self._group, client_id, route.subscribe, members)
