"""
What a run of the suite must have reached at least once.

The rule: a simulator that never comes to a situation proves nothing about it. A name that is missing fails
the suite; a new situation that matters gets its name here.
"""

from collections import Counter
from typing import Final

WANTED: Final = (
    "address held by another",
    "all crashed at once",
    "authority lost or won",
    "broker paused",
    "client of a follower let go",
    "client passed on let go",
    "commit of a zombie answered",
    "commit refused",
    "consumer closed",
    "consumer crashed",
    "consumer paused beyond its lease",
    "consumption restarted behind its plan",
    "core: access_denied",
    "core: duplicate_sends",
    "core: fenced_commits",
    "core: fenced_pulls",
    "core: leases_expired",
    "core: members_expired",
    "core: transactions_ended_again",
    "core: views_dropped",
    "dead letter",
    "delayed message handed on",
    "delivery dropped before its listener",
    "disk full",
    "disk wiped",
    "end of a transaction not told",
    "end of a transaction repeated",
    "forwarded request answered",
    "forwarded to who leads no more",
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
    "name server lost",
    "notified of a change",
    "one-way partition",
    "partial partition",
    "process ended by its disk",
    "producer of a transaction crashed",
    "proposal lost",
    "pull of a zombie answered",
    "pull refused",
    "registration expired",
    "repeat acknowledged",
    "request forwarded",
    "request timed out",
    "request without rights answered",
    "requests waited for a leader",
    "rights taken away",
    "rolled back",
    "route not to be had",
    "route unknown to a name server",
    "send refused for good",
    "send refused once",
    "send tried again",
    "send unknown",
    "snapshot installed",
    "transaction checked",
    "transaction committed",
    "transaction ended by a check",
    "transaction given up",
    "transaction rolled back",
    "uncommitted tail cut",
    "unsynced ticket at risk in a crash",
)


def missing(coverage: Counter[str]) -> list[str]:
    """Return what was never reached."""
    return [name for name in WANTED if not coverage[name]]
