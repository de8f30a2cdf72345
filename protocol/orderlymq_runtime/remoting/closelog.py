"""The log lines of connections that this process closes: the reason, and only a few lines a second."""

import logging
import math
import time
from collections.abc import Callable
from typing import Final

#: Lines for one kind of close in one period, so that a peer that opens many connections cannot fill the log.
CLOSES_LOGGED_MAX: Final = 20
CLOSES_PERIOD_S: Final = 1.0


class CloseLog:
    """Logs closes by kind; closes beyond the limit are left out, and one line says so."""

    def __init__(
        self, logger: logging.Logger, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._seconds = seconds
        self._periods: dict[str, tuple[float, int]] = {}

    def note(self, who: object, kind: str, reason: str, level: int = logging.INFO) -> None:
        """Log that the connection of *who* is closed, unless too many of its *kind* were logged just now.

        Use few kinds, because each one is remembered.
        """
        now = self._seconds()
        began, count = self._periods.get(kind, (-math.inf, 0))
        if now - began >= CLOSES_PERIOD_S:
            began, count = now, 0
        self._periods[kind] = began, count + 1
        if count < CLOSES_LOGGED_MAX:
            self._logger.log(level, "%s: closed: %s", who, reason)
        elif count == CLOSES_LOGGED_MAX:
            text = "more connections are closed and only counted, as %s: %s"
            self._logger.log(level, text, kind, reason)
