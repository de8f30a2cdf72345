"""
The rebalance of a member of a group: which queues this member is to have, computed again and again.

Rule: not knowing is no reason to give anything up. A topic whose queues or members cannot be known keeps the
queues that it has. A topic that does not exist yet, the own retry topic in the first second above all, is
looked for soon and then ever less often, up to the rebalance interval.
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
    """Computes the queues of one member; `soon` asks for it now.

    Args:
        topics: the subscriptions, by topic.
        everything: every member works on all queues, as in a group that consumes by key.
        present: the queues that the member has or is trying to get.
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
        """Compute now: the members, the queues or the subscriptions are others."""
        self._wanted.set()

    async def run(self) -> None:
        """Compute for ever."""
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
        """Compute this member's queues and hand them on; return whether all could be known."""
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
            # Java would drop every queue here; a new leader may only not have heard of us yet.
            _log.info("doRebalance, %s is not in the list of %s yet", client_id, self._group)
            await self._instance.heartbeats.beat_all()
            return None
        strategy = self._settings.allocate_message_queue_strategy
        if self._settings.server_assignment:
            return await self._calls.assigned(topic, strategy.name)
        return assign(strategy, self._group, client_id, route.subscribe, members)
