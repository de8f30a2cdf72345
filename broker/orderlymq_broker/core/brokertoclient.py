"""
Requests that the broker sends to its clients and expects an answer to: 221, 307, 309, 326.

The rules: an answer counts only if it comes over the connection that was asked. Every question ends exactly
once: with an answer, its deadline, its connection or the leadership. The number of open questions is limited
per asking connection, per asked connection, and in all. Of the last limit, no account or address may hold
more than it leaves to others. Tools and replies have separate limits, so that neither crowds the other out.
The callers: ``processors/admin/``, ``processors/observe/listeners.py`` and ``processors/send/replies.py``.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from orderlymq_broker.core.effects import Caller, Effect, Now, Send
from orderlymq_broker.core.quotas import Owner, owner_of
from orderlymq_broker.core.requestcontext import Context, RequestRefused
from orderlymq_broker.core.uncommitted import count_down
from orderlymq_broker.state.sharedroom import SharedRoom
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand


class Share(NamedTuple):
    """How many questions of one kind may be open.

    Attributes:
        of_asker: by one connection.
        of_asked: to one connection.
    """

    kind: str
    in_all: int
    of_asker: int
    of_asked: int


# Tools ask one client at a time, or all members of a group. More questions to one client come from a loop that
# does not wait for its answers.
TOOLS: Final = Share("tools", 4_096, 1_024, 64)
# A client gets a reply within milliseconds, and may wait for many. 2 KiB each, without the reply itself.
REPLIES: Final = Share("replies", 8_192, 2_048, 1_024)
# The asker of the broker's own questions.
NOBODY: Final = Caller(0, "", 0)


class Silence(Enum):
    """The reason why there is no answer; the value is a text for people."""

    TIMEOUT = "the client did not answer in time"
    CLOSED = "the client's connection was closed"
    ENDED = "the leader changed before the client answered; ask again"


# Which limit of a share, and the connection's number.
_Use: TypeAlias = tuple[Share, str, int]
Answered: TypeAlias = Callable[[RemotingCommand | Silence], list[Effect]]


@dataclass(frozen=True, slots=True)
class Question:
    """One open request.

    *deadline_ms* is monotonic. *uses* are the limits that it counts against, and *owner* is charged for it in
    *share*.
    """

    deadline_ms: int
    answered: Answered
    uses: tuple[_Use, ...]
    share: Share
    owner: Owner


class ClientCalls:
    """The open requests, by connection and opaque."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open: dict[tuple[int, int], Question] = {}
        self._uses: Counter[_Use] = Counter()
        self._rooms = {share: SharedRoom(share.in_all) for share in (TOOLS, REPLIES)}

    def __len__(self) -> int:
        return len(self._open)

    def ask(
        self,
        connection: int,
        command: RemotingCommand,
        deadline_ms: int,
        answered: Answered,
        *,
        asker: Caller,
        share: Share = TOOLS,
    ) -> Send:
        """Return the effect that sends *command*; *answered* is called once, with the outcome.

        *asker* is the client on whose behalf the broker asks.

        Raises:
            RequestRefused: too many questions are open (2).
        """
        limits: dict[_Use, int] = {
            (share, "of this connection", asker.connection): share.of_asker,
            (share, "to this client", connection): share.of_asked,
        }
        for use, limit in limits.items():
            if self._uses[use] >= limit:
                raise RequestRefused(
                    ResponseCode.SYSTEM_BUSY,
                    f"{limit} requests to clients are open {use[1]}; try again later",
                )
        room, owner = self._rooms[share], owner_of(asker)
        if not room.has_room(owner, 1):
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"{room.used} requests to clients are open in total, {room.part(owner)} of them "
                "by your account or address; try again later",
            )
        self._uses.update(limits.keys())
        room.take(owner, 1)
        command.opaque = self._context.next_opaque()
        question = Question(deadline_ms, answered, tuple(limits), share, owner)
        self._open[connection, command.opaque] = question

        return Send(connection, command)

    def ask_all(
        self,
        asked: Iterable[tuple[int, RemotingCommand, Answered]],
        deadline_ms: int,
        *,
        asker: Caller,
    ) -> list[Send]:
        """Ask several clients as `ask` does, or none of them.

        Raises:
            RequestRefused: too many questions are open, or would be (2).
        """
        sends: list[Send] = []
        try:
            for connection, command, answered in asked:
                sends.append(self.ask(connection, command, deadline_ms, answered, asker=asker))
        except RequestRefused:
            for send in sends:
                self._forget((send.connection, send.command.opaque))
            raise

        return sends

    def replied(self, response: RemotingCommand, caller: Caller) -> list[Effect]:
        """Process an answer; an answer without an open question is dropped."""
        return self._end([(caller.connection, response.opaque)], response)

    def tick(self, now: Now) -> list[Effect]:
        """End the questions whose deadline has passed."""
        over = [
            key for key, question in self._open.items() if question.deadline_ms <= now.monotonic_ms
        ]

        return self._end(over, Silence.TIMEOUT)

    def closed(self, connection: int) -> list[Effect]:
        """End the questions that were sent over a closed connection."""
        return self._end([key for key in self._open if key[0] == connection], Silence.CLOSED)

    def ended(self) -> list[Effect]:
        """End all questions, because this replica no longer leads."""
        return self._end(list(self._open), Silence.ENDED)

    def _end(self, keys: list[tuple[int, int]], outcome: RemotingCommand | Silence) -> list[Effect]:
        effects: list[Effect] = []
        for key in keys:
            question = self._forget(key)
            if question is not None:
                effects += question.answered(outcome)

        return effects

    def _forget(self, key: tuple[int, int]) -> Question | None:
        question = self._open.pop(key, None)
        if question is not None:
            count_down(self._uses, question.uses)
            self._rooms[question.share].take(question.owner, -1)

        return question
