"""
The audit log: who did what to which object, when, and with what result.

Rules: the line that announces an action is written before the action; if it cannot be written, nothing is done. If the line with
the result cannot be written, the action is done all the same, and the missing line is reported. A line is one JSON object,
and is written whole or not at all. A page shows the last lines, too; the log itself is a file or standard error.
"""

import logging
import os
import stat
import time
from collections import deque
from typing import IO, Final

import orjson

from orderlymq.errors import OrderlyMQError
from orderlymq_console.models import AuditLine

SHOWN_MAX: Final = 200
_log = logging.getLogger(__name__)


class AuditFailed(OrderlyMQError):  # noqa: N818 - says what happened
    """The audit log cannot be written, so nothing was done; make room for it."""


class Audit:
    """Writes lines and remembers the last ones."""

    def __init__(self, log: IO[str]) -> None:
        self._log = log
        self._lines: deque[AuditLine] = deque(maxlen=SHOWN_MAX)

    @property
    def lines(self) -> tuple[AuditLine, ...]:
        """The last lines, the newest first."""
        return tuple(reversed(self._lines))

    def begin(self, account: str, address: str, action: str, thing: dict[str, str]) -> None:
        """Write that an account is going to do something.

        Args:
            account: name of the account.
            address: address from which it acts.
            action: retry, skip, release, redrive, reset.
            thing: the object: group, topic, key and so on.

        Raises:
            AuditFailed: The line cannot be written.
        """
        line = _line(account, address, action, thing, "begins")
        try:
            _append(self._log, _text(line))
        except (OSError, ValueError) as error:
            raise AuditFailed(
                f"the audit log cannot be written: {error}; nothing was done"
            ) from error
        self._lines.append(line)

    def end(
        self, account: str, address: str, action: str, thing: dict[str, str], outcome: str
    ) -> str:
        """Write the result of an action: done, refused or failed, with details. Return why the line is not in the log; empty if it is."""
        line = _line(account, address, action, thing, outcome)
        self._lines.append(line)
        try:
            _append(self._log, _text(line))
        except (OSError, ValueError) as error:
            _log.error("the audit log cannot be written: %s; it lacks %s", error, _text(line))
            return f"the audit log cannot be written: {error}"
        return ""


def _line(
    account: str, address: str, action: str, thing: dict[str, str], outcome: str
) -> AuditLine:
    return AuditLine(
        at_ms=time.time_ns() // 1_000_000,
        account=account,
        address=address,
        action=action,
        thing=thing,
        outcome=outcome,
    )


def _text(line: AuditLine) -> str:
    return orjson.dumps({"audit": line.model_dump(by_alias=True)}).decode() + "\n"


def _append(log: IO[str], text: str) -> None:
    """Write a line unbuffered, because a buffer would write it with a later line. After a failure, cut off the part that was written."""
    try:
        number = log.fileno()
    except (OSError, AttributeError):  # not a file, but a text in memory
        log.write(text)
        log.flush()
        return
    rest = text.encode()
    kept = os.fstat(number)
    try:
        while rest:
            rest = rest[os.write(number, rest) :]
    except OSError:
        written = len(text.encode()) - len(rest)
        if stat.S_ISREG(kept.st_mode) and os.fstat(number).st_size == kept.st_size + written:
            os.ftruncate(number, kept.st_size)
            os.lseek(number, 0, os.SEEK_END)
        raise
