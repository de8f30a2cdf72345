"""
Requests that the broker sends to its clients and wants answered: 221, 307, 309.

The rules: an answer counts only when it comes over the connection that was asked; every question ends,
with an answer, with its deadline, with the connection or with leadership, and exactly once; there is a
limit to how many are open. Who asks: ``processors/admin/``, ``processors/observe/listeners.py`` and
``processors/send/replies.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from orderlymq_broker.core.effects import Effect, Now, Peer, Send
from orderlymq_broker.core.requestcontext import Context, RequestRefused
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand

# Tools ask one client at a time; more than this is a loop that does not wait for its answers.
OPEN_MAX: Final = 4_096


class Silence(Enum):
    """Why there is no answer; the value is for people."""

    TIMEOUT = "the client did not answer in time"
    CLOSED = "the client's connection was closed"
    ENDED = "the leader changed before the client answered; ask again"


Answered: TypeAlias = Callable[[RemotingCommand | Silence], list[Effect]]


@dataclass(frozen=True, slots=True)
class Question:
    """One open request; *deadline_ms* is monotonic."""

    deadline_ms: int
    answered: Answered


class ClientCalls:
    """The open requests, by connection and opaque."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open: dict[tuple[int, int], Question] = {}

    def __len__(self) -> int:
        return len(self._open)

    def ask(
        self, connection: int, command: RemotingCommand, deadline_ms: int, answered: Answered
    ) -> Send:
        """Return the effect that sends *command*; *answered* is called once, with what came of it.

        Raises:
            RequestRefused: too many questions are open (2).
        """
        if len(self._open) >= OPEN_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"{OPEN_MAX} requests to clients are open; try again later",
            )
        command.opaque = self._context.next_opaque()
        self._open[connection, command.opaque] = Question(deadline_ms, answered)

        return Send(connection, command)

    def replied(self, response: RemotingCommand, peer: Peer) -> list[Effect]:
        """Take an answer; one that nobody waits for is dropped."""
        question = self._open.pop((peer.connection, response.opaque), None)

        return [] if question is None else question.answered(response)

    def tick(self, now: Now) -> list[Effect]:
        """End the questions whose time is over."""
        over = [
            key for key, question in self._open.items() if question.deadline_ms <= now.monotonic_ms
        ]

        return self._end(over, Silence.TIMEOUT)

    def closed(self, connection: int) -> list[Effect]:
        """End the questions that went over a closed connection."""
        return self._end([key for key in self._open if key[0] == connection], Silence.CLOSED)

    def ended(self) -> list[Effect]:
        """End all questions: this replica leads no more."""
        return self._end(list(self._open), Silence.ENDED)

    def _end(self, keys: list[tuple[int, int]], silence: Silence) -> list[Effect]:
        return [effect for key in keys for effect in self._open.pop(key).answered(silence)]
