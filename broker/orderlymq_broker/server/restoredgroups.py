"""
The broker groups that were restored from the same backup as this one; kept until every name server knows all of them.

The rule: a name server that knows only some of them may not return the route of an ordered topic. With only a part of
its queues, keys would go to other queues. So the restore writes the names into each replica, which sends them when it
registers. They are removed when every name server has answered that it awaits none, so that a group removed later is
not waited for.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from orderlymq_broker.store.kv import Batch, Family, KeyValueStore
from orderlymq_broker.store.layout import META_RESTORED

_log = logging.getLogger(__name__)

# The separator in the name server's header; no group's name contains it.
SEPARATOR: Final = ";"


def note_groups(batch: Batch, groups: Iterable[str]) -> None:
    """Store, at a restore, the names of all groups that are restored together."""
    batch.put(Family.META, META_RESTORED, SEPARATOR.join(sorted(groups)).encode())


class RestoredGroups:
    """The names that one replica registers at each of *name_servers*, from the store that *store* returns."""

    def __init__(self, store: Callable[[], KeyValueStore], name_servers: Iterable[str]) -> None:
        self._store = store
        self._untold = set(name_servers)
        self._awaited: str | None = None
        value = store().get(Family.META, META_RESTORED)
        self.names = None if value is None else value.decode()

    def heard(self, name_server: str, awaited: str | None) -> None:
        """Note which groups a name server awaits, in the form of its answer; remove the names when none awaits any."""
        if self.names is None:
            return
        if awaited:
            self._untold.add(name_server)
            if awaited != self._awaited:
                _log.warning(
                    "name server %s gives no route of ordered topics until these groups register, too: %s",
                    name_server,
                    awaited,
                )
            self._awaited = awaited
            return
        self._untold.discard(name_server)
        if not self._untold:
            batch = Batch()
            batch.delete(Family.META, META_RESTORED)
            self._store().stage(batch)
            self.names = None
