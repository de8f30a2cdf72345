"""
The settings file of a replica while that runs: its live settings take effect, others wait for the next start.

Rule: a file that cannot be used leaves the present settings effective, and is told once.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from orderlymq_broker.core.livesettings import LIVE, text_of, with_live
from orderlymq_broker.settings import BrokerSettings, load
from orderlymq_runtime.filestamp import file_stamp
from orderlymq_runtime.settingsfile import SettingsError

_log = logging.getLogger(__name__)


class SettingsFile:
    """Follows the settings file at *path*; *changed* is told what holds from now on."""

    def __init__(
        self, path: Path, settings: BrokerSettings, changed: Callable[[BrokerSettings], None]
    ) -> None:
        self._path = path
        self._settings = settings
        self._changed = changed
        # Not as it is now: it may have changed since it was read for the start.
        self._stamp: tuple[int, int] | None = None

    def refresh(self) -> None:
        """Read the file if it has changed."""
        stamp = file_stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            fresh = load(self._path)
        except SettingsError as error:
            _log.error("%s; the present settings stay effective", error)
            return
        before, self._settings = self._settings, with_live(self._settings, fresh)
        told = [
            f"{name} {text_of(before, name)} -> {text_of(self._settings, name)}"
            for name in LIVE
            if text_of(before, name) != text_of(self._settings, name)
        ]
        if self._settings != before:
            _log.info("live settings were read again: %s", ", ".join(told) or "retention.time")
            self._changed(self._settings)
