"""Answers that only some requests may get: a client that gets one for another request then acts wrongly."""

from collections.abc import Mapping
from typing import Final

from orderlymq_broker.server.router import PULL_CODES
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.header.send import SEND_CODES

_ASKS_FOR_MESSAGES: Final = frozenset(map(int, PULL_CODES))
_SENDS: Final = frozenset(map(int, SEND_CODES))
_SUBSCRIBES: Final = _ASKS_FOR_MESSAGES | {RequestCode.HEART_BEAT, RequestCode.CHECK_CLIENT_CONFIG}
_NOBODY: Final[frozenset[int]] = frozenset()

_ONLY_FOR: Final[Mapping[int, frozenset[int]]] = {
    ResponseCode.PULL_NOT_FOUND: _ASKS_FOR_MESSAGES,
    ResponseCode.PULL_RETRY_IMMEDIATELY: _ASKS_FOR_MESSAGES,
    ResponseCode.PULL_OFFSET_MOVED: _ASKS_FOR_MESSAGES,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: _SUBSCRIBES,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: _SUBSCRIBES,
    ResponseCode.ORDERLYMQ_QUEUES_CHANGED: _SENDS,
    ResponseCode.FLUSH_DISK_TIMEOUT: _SENDS,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: _SENDS,
    ResponseCode.SLAVE_NOT_AVAILABLE: _SENDS,
    # Clients report these about a transaction; a broker never sends them.
    ResponseCode.TRANSACTION_SHOULD_COMMIT: _NOBODY,
    ResponseCode.TRANSACTION_SHOULD_ROLLBACK: _NOBODY,
    ResponseCode.TRANSACTION_STATE_UNKNOW: _NOBODY,
    ResponseCode.TRANSACTION_STATE_GROUP_WRONG: _NOBODY,
}
_CODES: Final = frozenset(int(code) for code in ResponseCode)


def may_answer(request_code: int, code: int) -> bool:
    """Return whether *code* is an answer of the protocol that a request of this code may get."""
    return code in _CODES and request_code in _ONLY_FOR.get(code, (request_code,))
