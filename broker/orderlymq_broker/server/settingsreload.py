"""
The settings file of a running replica: its live settings take effect, others wait for the next start.

Rule: if a file cannot be used, the present settings stay effective, and this is logged once.
"""

import logging
from pathlib import Path

from orderlymq_broker.core.livesettings import LIVE, text_of, with_live
from orderlymq_broker.settings import BrokerSettings, load
from orderlymq_runtime.followedfiles import FollowedFiles
from orderlymq_runtime.settingsfile import SettingsError

_log = logging.getLogger(__name__)


class SettingsReload:
    """Follows the settings file at *path*."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Do not take the file's present state as read: it may have changed since it was read for the start.
        self._followed = FollowedFiles(
            path, log=_log, stays="the previous settings stay effective", are_read=False
        )

    def refresh(self, before: BrokerSettings) -> BrokerSettings:
        """Return the settings that take effect after *before*; the same object if the file says nothing new."""
        fresh = self._followed.read_changed(lambda: load(self._path), SettingsError)
        if fresh is None:
            return before
        after = with_live(before, fresh)
        if after == before:
            return before
        changed = [
            f"{name} {text_of(before, name)} -> {text_of(after, name)}"
            for name in LIVE
            if text_of(before, name) != text_of(after, name)
        ]
        _log.info("live settings were read again: %s", ", ".join(changed) or "retention.time")
        return after
