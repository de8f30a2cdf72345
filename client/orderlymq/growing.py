"""
Sends and consumers of a topic whose number of queues changes.

A topic that grows refuses sends until its old queues are drained. That refusal is definite, so a send waits for the
end of the change, learns the new queues and chooses again; its caller notices a pause and nothing else. Each
send says from how many queues it was chosen, so that no broker takes one that was chosen from an old list.
Consumers are told by the brokers that there are other queues, and ask the name servers until they see them.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from orderlymq.errors import BrokerError, NameServersUnreachable, TopicNotFound
from orderlymq.instance import ClientInstance
from orderlymq.message import SendResult
from orderlymq.routes import TopicRoute
from orderlymq.sending import QueuesChanged
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand

_log = logging.getLogger(__name__)

QUEUE_TOTAL: Final = "omqQueueTotal"
# How soon a refused send looks again: first at once, for the list may be old and the change over.
_PAUSES_S: Final = (0.0, 0.02, 0.05, 0.1, 0.2)
# The broker's notice is faster than its registration: a consumer asks until it sees a change.
_LOOKS_S: Final = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)


def chosen_from(route: TopicRoute, command: RemotingCommand) -> RemotingCommand:
    """Return a send that says from how many queues it was chosen, where the number is part of the order."""
    if route.is_ordered:
        command.ext[QUEUE_TOTAL] = str(len(route.publish))
    return command


async def through_changes(
    instance: ClientInstance,
    topic: str,
    route: Callable[[], Awaitable[TopicRoute]],
    send: Callable[[TopicRoute], Awaitable[SendResult]],
    *,
    patience_ms: int,
) -> SendResult:
    """Call *send* with the route of now, again while the topic's queues change, within *patience_ms*.

    Raises:
        SendRefused: The change takes longer; nothing is stored.
    """
    end_s = 0.0
    tries = 0
    while True:
        try:
            return await send(await route())
        except QueuesChanged as changed:
            now_s = time.monotonic()
            end_s = end_s or now_s + patience_ms / 1000
            pause_s = _PAUSES_S[min(tries, len(_PAUSES_S) - 1)]
            if now_s + pause_s >= end_s:
                raise changed.refused from changed
        tries += 1
        await asyncio.sleep(pause_s)
        await _look(instance, topic)


async def watch_change(instance: ClientInstance, topics: tuple[str, ...]) -> None:
    """Ask for the routes of *topics* until one has changed; the instance tells its consumers."""
    before = {topic: instance.routes.get(topic) for topic in topics}
    for pause_s in _LOOKS_S:
        await asyncio.sleep(pause_s)
        for topic in topics:
            await _look(instance, topic)
        if any(instance.routes.get(topic) != found for topic, found in before.items()):
            return


async def topic_growth(instance: ClientInstance, topic: str) -> dict[str, dict[str, Any]]:
    """Return phase, barriers and blockers of a topic's growth, by broker group.

    Raises:
        TopicNotFound: No broker has it.
        BrokerError: A broker cannot say.
    """
    await instance.route(topic)
    found: dict[str, dict[str, Any]] = {}
    for name in instance.routes.brokers(topic):
        address = instance.routes.address(name)
        if address is None:
            continue
        answer = await instance.call(address, RequestCode.ORDERLYMQ_QUEUE_GROWTH, {"topics": topic})
        for each in fastjson.loads(answer.body)["topics"]:
            if each["topic"] == topic:
                found[name] = each
    return found


async def _look(instance: ClientInstance, topic: str) -> None:
    try:
        await instance.route(topic, refresh=True)
    except (TopicNotFound, NameServersUnreachable, BrokerError) as error:
        _log.debug("the route of %s is not known anew: %s", topic, error)
