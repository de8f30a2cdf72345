"""
How many files this process may have open, and how many of them may be clients' connections.

Rule: connections never take the last descriptors. A store that cannot open its next file has failed
for good, so a crowd of clients could end a process that has too few of them. `loop` raises the limit
when a process starts, `remoting.server` asks before it takes a connection in.
"""

import logging
import resource
from typing import Final

_log = logging.getLogger(__name__)

# Systems allow a process 1024 by default, however much it may ask for: fewer than a group has clients.
WANTED: Final = 65_536
# A store keeps up to 256 files open and opens new ones while it writes the old ones again. Replicas that have not proven
# who they are may be 256 (``pendinghandshakes`` of the broker) and connections of the HTTP pages 128; name servers and
# logs need a few dozen.
RESERVED: Final = 768


def raise_limit() -> int:
    """Allow this process as many open files as it wants or the system permits; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (
            OSError,
            ValueError,
        ) as error:  # the system has limits of its own, beside the hard one
            _log.debug("the limit of open files stays %d: %s", soft, error)
    return current_limit()


def current_limit() -> int:
    """Return how many files may be open at present."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft


def connections_allowed() -> int:
    """Return how many connections leave enough files for everything else."""
    limit = current_limit()
    return limit - min(RESERVED, limit // 2)
