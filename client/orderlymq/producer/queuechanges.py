"""
Sends to a topic whose number of queues changes.

While a topic expands, it refuses sends until its old queues are drained. Such a refusal is definite: the send waits
for the end of the change, reads the new queues and chooses again. Its caller sees only a pause. Each send carries the
number of queues that it was chosen from, so that no broker takes one that was chosen from an old list. If an earlier
try may have stored the message, the send stays unknown, however it ends later.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from orderlymq.connection.instance import ClientInstance
from orderlymq.connection.routes import TopicRoute
from orderlymq.errors import SendUnknown
from orderlymq.producer.sendoutcome import QueuesChanged, still_unknown
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.extensions import EXT_QUEUE_TOTAL

T = TypeVar("T")

# When a refused send looks again. It looks first immediately: the list may be old and the change over.
_PAUSES_S: Final = (0.0, 0.02, 0.05, 0.1, 0.2)


def chosen_from(route: TopicRoute, command: RemotingCommand) -> RemotingCommand:
    """Return the send; for an ordered topic add the number of queues that its queue was chosen from."""
    if route.is_ordered:
        command.ext[EXT_QUEUE_TOTAL] = str(len(route.publish))
    return command


async def through_changes(
    instance: ClientInstance,
    topic: str,
    send: Callable[[], Awaitable[T]],
    *,
    patience_s: float,
    end_s: float | None = None,
) -> T:
    """Call *send*, which asks for the current route, and call it again while the topic's queues change.

    It is called until *end_s* on the monotonic clock; if that is None, until *patience_s* seconds
    after the first refusal.

    Raises:
        SendRefused: The change takes longer; nothing is stored.
        SendUnknown: A try before the change may have been stored, and no later one is acknowledged.
    """
    tries = 0
    maybe_stored = False
    while True:
        try:
            return await send()
        except QueuesChanged as changed:
            maybe_stored |= changed.maybe_stored
            now_s = time.monotonic()
            end_s = now_s + patience_s if end_s is None else end_s
            pause_s = _PAUSES_S[min(tries, len(_PAUSES_S) - 1)]
            if now_s + pause_s >= end_s:
                refused = changed.refused
                raise still_unknown(refused) if maybe_stored else refused from changed
        except Exception as error:
            if not maybe_stored or isinstance(error, SendUnknown):
                raise
            raise still_unknown(error) from error
        tries += 1
        await asyncio.sleep(pause_s)
        await instance.try_refresh(topic)
