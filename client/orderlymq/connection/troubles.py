"""
Troubles between a client and its brokers: each is logged once, again while it lasts, and when it ends.

Rules: a lost broker is one trouble, however many queues and calls it affects. A refusal is another trouble, per kind
of call. Each call reports how it ended; further details go to the debug log.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from orderlymq.errors import BrokerError
from orderlymq_protocol.codes import ResponseCode

_log = logging.getLogger(__name__)

AGAIN_S: Final = 30.0
# The codes of a broker that does not lead, or not yet: the leader has to be found.
NO_LEADER: Final = (ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE)
# Codes that mean "try later"; the message is not stored (wire reference 4.9, and code 14 of a leader that lost its
# term or whose disk is full).
LATER: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        ResponseCode.GO_AWAY,
    }
)
# Refusals that stay until an administrator changes something.
_CERTAIN: Final = (
    ResponseCode.NO_PERMISSION,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
)


def passes(error: BrokerError) -> bool:
    """Return whether another try may get another answer."""
    if (
        error.code == ResponseCode.SYSTEM_ERROR
    ):  # usually a refusal, except from a replica that does not lead
        return error.remark.endswith("try again") or "does not lead" in error.remark
    return error.code in LATER


class Troubles:
    """The troubles of one client.

    Attributes:
        on_refused: gets each refusal that stays until an administrator changes something.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.on_refused: Callable[[BrokerError], None] | None = None
        self._now_s = now_s
        self._lasting: dict[tuple[str, ...], tuple[float, float]] = {}

    def failed(self, broker: str, what: str, error: object) -> None:
        """Note that a call to *broker* failed; *what* distinguishes refusals."""
        if not isinstance(error, BrokerError) or (error.code in NO_LEADER and passes(error)):
            self._note(
                (broker,), f"the connection to {broker} is lost and will be retried: {error}"
            )
            return
        self._reached(broker)
        self._note((broker, what), f"{broker} refuses {what}: {error}")
        self.refused(error)

    def refused(self, error: BrokerError) -> None:
        """Pass a refusal to `on_refused`; the caller has logged it, or it was logged before."""
        if (error.code in _CERTAIN or is_denied(error)) and self.on_refused is not None:
            self.on_refused(error)

    def answered(self, broker: str, what: str) -> None:
        """Note that a call to *broker* succeeded."""
        if self._lasting:
            self._reached(broker)
            self._lasting.pop((broker, what), None)

    def _reached(self, broker: str) -> None:
        lost = self._lasting.pop((broker,), None)
        if lost is not None:
            _log.warning("%s is back after %.0f s", broker, self._now_s() - lost[0])

    def _note(self, about: tuple[str, ...], text: str) -> None:
        now_s = self._now_s()
        since_s, due_s = self._lasting.get(about, (now_s, now_s))
        if now_s >= due_s:
            _log.warning("%s", text)
            due_s = now_s + AGAIN_S
        self._lasting[about] = since_s, due_s


def is_denied(error: BrokerError) -> bool:
    """Return whether a permission is missing: like RocketMQ's, brokers report that in the remark of any error."""
    return "AclException" in error.remark
