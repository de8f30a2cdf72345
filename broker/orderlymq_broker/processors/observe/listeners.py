"""
Reports of consumers about the listeners of blocked queues: tries, last error, since when (307).

The rules: only members whose queues are almost blocked are asked, each once per examination, a few at a time, and only
clients known to answer. Their reports are hints for people and decide nothing. An answer that cannot be read counts as
none. RocketMQ's clients report when the listener was last called and how much is cached. Our SDK
also reports how often the first message failed and with which error.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orderlymq_broker.core.bodylimits import ANSWER_SIZE_MAX
from orderlymq_broker.core.brokertoclient import NOBODY, ClientCalls, Silence
from orderlymq_broker.core.effects import Effect, Now
from orderlymq_broker.core.requestcontext import Context, RequestRefused
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.fastjson import JsonError
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import LanguageCode, RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.plurals import counted

# Members that are asked per examination: one answer reports all queues of the member.
ASKED_MAX: Final = 16
TIMEOUT_MS: Final = 4_000
ERROR_LENGTH_MAX: Final = 300
# V3_1_8_SNAPSHOT, the first version that answers 307.
RUNNING_INFO_VERSION: Final = 62
# Other clients may treat an unknown request as an error of their own.
_ANSWERING: Final = frozenset(
    {LanguageCode.JAVA, LanguageCode.CPP, LanguageCode.PYTHON, LanguageCode.GO}
)
# The reported numbers about a queue: our name, and the client's name.
_NUMBERS: Final = (
    ("listenerTries", "omqTries"),
    ("listenerCalled", "lastConsumeTimestamp"),
    ("cached", "cachedMsgCount"),
)
UNKNOWN: Final[Mapping[str, Any]] = {
    **{ours: None for ours, _ in _NUMBERS},
    "listenerError": None,
    "listenerSuspended": None,
    "listenerRunning": None,
}

_Member = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A queue of a group that makes no progress; *holder* is the client with its lock, or None."""

    group: str
    topic: str
    queue_id: int
    holder: str | None


class ListenerWatch:
    """Asks members about their listeners; a part of the leader's watch."""

    def __init__(self, context: Context, calls: ClientCalls) -> None:
        self._context = context
        self._calls = calls
        self._asked: set[_Member] = set()
        self._reported: dict[_Member, dict[tuple[str, int], dict[str, Any]]] = {}

    def ask(self, suspects: Iterable[Suspect], now: Now) -> list[Effect]:
        """Ask the holders of suspected queues; drop the reports of other members."""
        members: dict[_Member, None] = {}
        # One suspect is enough for all queues of a holder, or of a group without locks.
        for suspect in {(each.group, each.holder): each for each in suspects}.values():
            members.update(dict.fromkeys(self._members(suspect)))
        self._reported = {
            member: said for member, said in self._reported.items() if member in members
        }
        effects: list[Effect] = []
        for member in members:
            if len(effects) == ASKED_MAX:
                break
            if member not in self._asked:
                effects += self._ask_one(member, now)

        return effects

    def said_of(self, suspect: Suspect) -> dict[str, Any]:
        """Return the known facts about the listener of a queue; every value is None if there is no report."""
        place = (suspect.topic, suspect.queue_id)
        for member in self._members(suspect):
            found = self._reported.get(member, {}).get(place)
            if found is not None:
                return found

        return dict(UNKNOWN)

    def ended(self) -> None:
        """Clear everything, because another replica leads and asks."""
        self._asked.clear()
        self._reported.clear()

    # -- parts -------------------------------------------------------------------------------------

    def _members(self, suspect: Suspect) -> list[_Member]:
        """Return the clients that may have the queue: its holder or, without a lock, any member of the group."""
        if suspect.holder is not None:
            return [(suspect.group, suspect.holder)]
        found = self._context.state.members.of_group(suspect.group)

        return [(suspect.group, client_id) for client_id in sorted(found)]

    def _ask_one(self, member: _Member, now: Now) -> list[Effect]:
        group, client_id = member
        sessions = self._context.sessions
        presence = sessions.presence.get(member)
        session = sessions.get(presence.connection) if presence is not None else None
        if (
            session is None
            or session.language not in _ANSWERING
            or session.version < RUNNING_INFO_VERSION
        ):
            return []
        command = RemotingCommand(
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            ext={"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"},
        )

        def answered(response: RemotingCommand | Silence) -> list[Effect]:
            self._asked.discard(member)
            if isinstance(response, RemotingCommand) and response.code == ResponseCode.SUCCESS:
                self._reported[member] = read_running_info(response.body)
            return []

        deadline_ms = now.monotonic_ms + TIMEOUT_MS
        try:
            question = self._calls.ask(
                session.caller.connection, command, deadline_ms, answered, asker=NOBODY
            )
        except RequestRefused:
            return []
        self._asked.add(member)

        return [question]


def read_running_info(body: bytes) -> dict[tuple[str, int], dict[str, Any]]:
    """Return a consumer's report about its queues, by topic and queue; empty if it cannot be read."""
    if len(body) > ANSWER_SIZE_MAX:
        return {}
    try:
        table = fastjson.loads(body)["mqTable"].items()
    except (JsonError, KeyError, TypeError, AttributeError):
        return {}
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for queue, info in table:
        if isinstance(queue, MessageQueue) and isinstance(info, Mapping):
            error = info.get("omqLastError")
            found[queue.topic, queue.queue_id] = {
                **{ours: _number(info.get(theirs)) for ours, theirs in _NUMBERS},
                "listenerError": error[:ERROR_LENGTH_MAX] if isinstance(error, str) else None,
                "listenerSuspended": _flag(info.get("omqSuspended")),
                "listenerRunning": _flag(info.get("omqRunning")),
            }

    return found


def _number(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def in_words(row: Mapping[str, Any]) -> str:
    """Describe the listener of a blocked queue; empty if nothing is known about it."""
    tries, error, cached = row["listenerTries"], row["listenerError"], row["cached"]
    words = (
        (row["listenerSuspended"], "its program has suspended the consumer"),
        (tries, f"its listener has failed {counted(tries or 0, 'time')}"),
        (error, f"last with {error}"),
        (row["listenerRunning"], "its listener was called and has not returned"),
        (
            tries == 0 and not row["listenerSuspended"] and not row["listenerRunning"],
            "its listener has not failed on it"
            if row["listenerRunning"] is None
            else "its listener was not called with it",
        ),
        (
            tries is None and cached is not None,
            f"its consumer has {counted(cached or 0, 'message')} of it and reports no errors",
        ),
    )

    return ", ".join(text for applies, text in words if applies)
