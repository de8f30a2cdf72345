"""
Observers see every send and every listener call of this process: for traces, metrics and tests.

Rule: an observer changes nothing of the outcome; its errors are logged and dropped. Without one this costs
the look at an empty list. An observer may mark a message before it is sent, with properties of its own.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from orderlymq.message import Message, SendResult

_log = logging.getLogger(__name__)


class Observer(Protocol):
    """Sees what producers and consumers do; called on their event loops, so it must not block."""

    def sending(self, group: str, topic: str, messages: Sequence[Message], /) -> object:
        """See messages before they are sent together; the returned value comes back with their outcome.

        *group* and *topic* are the names that brokers know, with the namespace.
        """

    def sent(
        self, token: Any, messages: Sequence[Message], outcome: SendResult | BaseException, /
    ) -> None:
        """See where they are stored, or why it is not known that they are."""

    def before(self, context: Any, /) -> None:
        """See a listener call (`orderlymq.ConsumeContext`) before it."""

    def after(self, context: Any, /) -> None:
        """See how it ended."""


Whole: TypeAlias = Callable[[str], str]

installed: list[Observer] = []
"""All observers of this process."""


def install(observer: Observer) -> Callable[[], None]:
    """Let *observer* see everything from now on; return what takes it out again."""
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
    """Do the *work* of sending messages of one topic and notify the observers; *whole* adds the namespace to its name."""
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
    """Begin a send that nobody waits for and notify the observers, also of its end."""
    tokens = _sending(group, whole, [message])

    def ended(future: "asyncio.Future[SendResult]") -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        _sent(tokens, [message], future.result() if error is None else error)

    future = enter()
    if tokens:
        future.add_done_callback(ended)
    return future
