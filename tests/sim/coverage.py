"""
What a run of the suite must have reached at least once.

The rule: a simulator that never comes to a situation proves nothing about it. A name that is missing fails
the suite; a new situation that matters gets its name here.
"""

from collections import Counter
from typing import Final

WANTED: Final = (
    "all crashed at once",
    "authority lost or won",
    "broker paused",
    "client of a follower let go",
    "commit refused",
    "consumer closed",
    "consumer crashed",
    "consumer paused beyond its lease",
    "consumption restarted behind its plan",
    "core: duplicate_sends",
    "core: fenced_commits",
    "core: fenced_pulls",
    "core: leases_expired",
    "core: members_expired",
    "core: views_dropped",
    "dead letter",
    "delivery dropped before its listener",
    "disk full",
    "disk wiped",
    "late result of a lost queue dropped",
    "leader changed under locks",
    "leader stepped down alive",
    "leadership transferred",
    "lease expired",
    "listener outlived its lease",
    "lock given back",
    "lock taken from a dead client",
    "log compacted",
    "membership changed",
    "notified of a change",
    "one-way partition",
    "partial partition",
    "process ended by its disk",
    "proposal lost",
    "pull refused",
    "repeat acknowledged",
    "request timed out",
    "requests waited for a leader",
    "rolled back",
    "send refused for good",
    "send refused once",
    "send tried again",
    "send unknown",
    "snapshot installed",
    "uncommitted tail cut",
    "unsynced ticket at risk in a crash",
)


def missing(coverage: Counter[str]) -> list[str]:
    """Return what was never reached."""
    return [name for name in WANTED if not coverage[name]]
