"""
The audit log: who did what to what, when, and what became of it.

Rules: the line that says what is going to be done is written before it is done; when it cannot be written, nothing is done. A
line is one JSON object. The last ones stand on a page, too; the log itself is a file or standard error.
"""

import time
from collections import deque
from typing import IO, Final

import orjson

from orderlymq.errors import OrderlyMQError
from orderlymq_console.models import AuditLine

SHOWN_MAX: Final = 200


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

    def write(
        self, account: str, address: str, action: str, thing: dict[str, str], outcome: str
    ) -> None:
        """Write a line.

        Args:
            account: who.
            address: from where.
            action: retry, skip, release, reset.
            thing: group, topic, key and the like.
            outcome: begins; done, refused or failed with what is known.

        Raises:
            AuditFailed: It cannot be written.
        """
        line = AuditLine(
            at_ms=time.time_ns() // 1_000_000,
            account=account,
            address=address,
            action=action,
            thing=thing,
            outcome=outcome,
        )
        text = orjson.dumps({"audit": line.model_dump(by_alias=True)}).decode()
        try:
            self._log.write(f"{text}\n")
            self._log.flush()
        except (OSError, ValueError) as error:
            raise AuditFailed(
                f"the audit log cannot be written: {error}; nothing was done"
            ) from error
        self._lines.append(line)
