"""
How many files this process may have open, and how many of them may be connections of clients.

Rule: connections never take the last descriptors. A store that cannot open its next file has failed
for good, so a crowd of clients could end a process that has too few descriptors. `loop` raises the limit
when a process starts; `remoting.server` asks before it accepts a connection.
"""

import logging
import resource
from typing import Final

_log = logging.getLogger(__name__)

# Systems allow a process 1024 by default, even if it may ask for more; a broker group has more clients than that.
WANTED: Final = 65_536
# A store keeps up to 256 files open, and opens new ones while it rewrites the old ones. There may be 256 replicas that have not
# proven their identity (``pendinghandshakes`` of the broker) and 128 connections of the HTTP pages; name servers and
# logs need a few dozen.
RESERVED: Final = 768


def raise_limit() -> int:
    """Raise the limit of open files to what this process wants, or to what the system permits; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (
            OSError,
            ValueError,
        ) as error:  # the system has other limits than the hard one, too
            _log.debug("the limit of open files stays %d: %s", soft, error)
    return current_limit()


def current_limit() -> int:
    """Return how many files may be open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft


def connections_allowed() -> int:
    """Return how many connections leave enough files for everything else."""
    limit = current_limit()
    return limit - min(RESERVED, limit // 2)
