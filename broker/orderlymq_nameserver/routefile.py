"""
The file that keeps the routes of ordered topics over a restart of the name server.

The rule: until a broker group registers again, its routes stay as before the restart, because a shorter list
of queues would move keys. Its registration is then accepted unless it is older than the file's content, as
that of a replica that lags. The version in the file is the first one with these topics. Only names of brokers
that sign are stored. A file that cannot be used is treated as missing, because the broker groups report the
same data.
"""

import logging
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec

from orderlymq_nameserver.registrations import Broker, RoutedTopic
from orderlymq_nameserver.routes import RouteRegistry
from orderlymq_protocol.body.catalogue import DataVersion, QueueData
from orderlymq_protocol.decodeerrors import UNREADABLE
from orderlymq_protocol.integers import INT32_MAX, INT32_MIN
from orderlymq_runtime.durablefiles import replace_file

_log = logging.getLogger(__name__)

# A hundred broker groups of 10,000 ordered topics.
FILE_SIZE_MAX: Final = 64 << 20

# These types accept every value that a registration may have (`QueueData`): one unreadable row would lose all
# others.
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=65_536)]
_Bits: TypeAlias = Annotated[int, msgspec.Meta(ge=INT32_MIN, le=INT32_MAX)]


class _Queues(msgspec.Struct, array_like=True):
    read: _Count
    write: _Count
    perm: _Bits
    flags: _Bits
    is_ordered: bool


class _Version(msgspec.Struct, array_like=True, frozen=True):
    counter: int
    timestamp: int


class _Group(msgspec.Struct):
    cluster: str
    addresses: dict[int, str]
    topics: dict[str, _Queues]
    awaited: list[str] = []
    heard: list[str] = []
    # None in a file of an earlier release.
    version: _Version | None = None


class RouteFile:
    """Stores the routes of ordered topics of *routes*, which start with the content of *path*."""

    def __init__(self, path: Path, routes: RouteRegistry) -> None:
        self._path = path
        self._routes = routes
        self._saved = b""
        self._groups: dict[str, _Group] = {}
        try:
            if path.stat().st_size > FILE_SIZE_MAX:
                raise OSError(f"the file has more than {FILE_SIZE_MAX} bytes")
            data = path.read_bytes()
            groups = msgspec.json.decode(data, type=dict[str, _Group])
            routes.restore(_read(groups))
        except FileNotFoundError:
            return
        except (OSError, *UNREADABLE) as error:
            _log.error(
                "%s: %s; routes are available when the broker groups have registered", path, error
            )
        else:
            self._saved, self._groups = data, groups

    def save(self) -> None:
        """Write the file if its content would change."""
        if not self._routes.is_changed:
            return
        self._routes.is_changed = False
        groups = _written(self._routes.ordered())
        for name, group in groups.items():
            former = self._groups.get(name)
            if former is not None and (group.version is None or group.topics == former.topics):
                group.version = former.version
        data = msgspec.json.encode(groups)
        if data == self._saved:
            return
        if len(data) > FILE_SIZE_MAX:
            _log.error(
                "%s: the routes take %d bytes, but only %d can be read: delete ordered topics "
                "that are not needed; a restart would begin with older routes",
                self._path,
                len(data),
                FILE_SIZE_MAX,
            )
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, data, 0o666)
        except OSError as error:
            self._routes.is_changed = True  # the next call tries again
            reason = error.strerror or error
            _log.error(
                "%s: %s; free space on its disk: a restart would begin with older routes",
                self._path,
                reason,
            )
        else:
            self._saved, self._groups = data, groups


def _written(brokers: dict[str, Broker]) -> dict[str, _Group]:
    return {
        name: _Group(
            broker.cluster,
            broker.last_addresses,
            {
                topic: _Queues(
                    known.queue.read_queue_nums,
                    known.queue.write_queue_nums,
                    known.queue.perm,
                    known.queue.topic_sys_flag,
                    known.is_ordered,
                )
                for topic, known in broker.topics.items()
            },
            sorted(broker.awaited),
            sorted(broker.heard),
            _Version(broker.version.counter, broker.version.timestamp) if broker.version else None,
        )
        for name, broker in brokers.items()
    }


def _read(groups: dict[str, _Group]) -> dict[str, Broker]:
    return {
        name: Broker(
            group.cluster,
            last_addresses=group.addresses,
            topics={
                topic: RoutedTopic(
                    QueueData(name, found.read, found.write, found.perm, found.flags),
                    found.is_ordered,
                    group.version.counter if group.version else 0,
                )
                for topic, found in group.topics.items()
            },
            kept=DataVersion(group.version.counter, group.version.timestamp)
            if group.version
            else None,
            awaited=frozenset(group.awaited),
            heard=frozenset(group.heard),
            is_trusted=True,
        )
        for name, group in groups.items()
    }
