"""
Observers see every send and every listener call of this process: for traces, metrics and tests.

Rule: an observer does not change the outcome; its errors are logged and dropped. Without observers the only cost is
checking an empty list. An observer may add its own properties to a message before it is sent.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from orderlymq.message import Message, SendResult

_log = logging.getLogger(__name__)


class Observer(Protocol):
    """An observer of producers and consumers. It is called on their event loops, so it must not block."""

    def sending(self, group: str, topic: str, messages: Sequence[Message], /) -> object:
        """Handle messages that are about to be sent together; `sent` gets the returned value as its token.

        *group* and *topic* are the names that brokers know, with the namespace.
        """

    def sent(
        self, token: Any, messages: Sequence[Message], outcome: SendResult | BaseException, /
    ) -> None:
        """Handle the outcome of a send: the place of the messages, or the error."""

    def before(self, context: Any, /) -> None:
        """Handle a listener call (`orderlymq.ConsumeContext`) before it starts."""

    def after(self, context: Any, /) -> None:
        """Handle the same call after it has ended."""


Whole: TypeAlias = Callable[[str], str]

installed: list[Observer] = []
"""All observers of this process."""


def install(observer: Observer) -> Callable[[], None]:
    """Let *observer* see everything from now on; return a function that removes it."""
    installed.append(observer)
    return lambda: installed.remove(observer)


def notify(call: Callable[..., Any], *arguments: object) -> Any:
    """Call an observer; its errors are logged and dropped."""
    try:
        return call(*arguments)
    except Exception:
        _log.exception("the observer %r failed", call)
        return None


def _sending(
    group: str, whole: Whole, messages: Sequence[Message]
) -> list[tuple[Observer, object]]:
    return [
        (each, notify(each.sending, group, whole(messages[0].topic), messages))
        for each in installed
    ]


def _sent(
    tokens: list[tuple[Observer, object]],
    messages: Sequence[Message],
    outcome: SendResult | BaseException,
) -> None:
    for each, token in tokens:
        notify(each.sent, token, messages, outcome)


async def observed(
    group: str,
    whole: Whole,
    messages: Sequence[Message],
    work: Callable[[], Awaitable[SendResult]],
) -> SendResult:
    """Send messages of one topic by *work* and notify the observers; *whole* adds the namespace to the topic."""
    tokens = _sending(group, whole, messages)
    try:
        result = await work()
    except BaseException as error:
        _sent(tokens, messages, error)
        raise
    _sent(tokens, messages, result)
    return result


def observed_future(
    group: str, whole: Whole, message: Message, enter: Callable[[], "asyncio.Future[SendResult]"]
) -> "asyncio.Future[SendResult]":
    """Begin a send that the caller does not await, and notify the observers of its start and its end."""
    tokens = _sending(group, whole, [message])

    def ended(future: "asyncio.Future[SendResult]") -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        _sent(tokens, [message], future.result() if error is None else error)

    future = enter()
    if tokens:
        future.add_done_callback(ended)
    return future
