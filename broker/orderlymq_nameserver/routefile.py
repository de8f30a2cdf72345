"""
The file that keeps the routes of ordered topics over a restart of the name server.

The rule: until a group registers again it stands in the routes as it did, as if the name server had not ended: a shorter
list of queues would move keys. What the group registers then is believed, whatever its version. Only names of brokers that
sign are kept. A file that cannot be used is as good as none: the groups report the same.
"""

import logging
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec

from orderlymq_nameserver.registrations import Broker, RoutedTopic
from orderlymq_nameserver.routes import RouteRegistry
from orderlymq_protocol.body.catalogue import QueueData
from orderlymq_protocol.decodeerrors import UNREADABLE
from orderlymq_runtime.durablefiles import replace_file

_log = logging.getLogger(__name__)

# A hundred groups of 10,000 ordered topics.
FILE_SIZE_MAX: Final = 64 << 20

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=65_536)]
_Bits: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=0x7FFF_FFFF)]


class _Queues(msgspec.Struct, array_like=True):
    read: _Count
    write: _Count
    perm: _Bits
    flags: _Bits
    is_ordered: bool


class _Group(msgspec.Struct):
    cluster: str
    addresses: dict[int, str]
    topics: dict[str, _Queues]
    awaited: list[str] = []
    heard: list[str] = []


class RouteFile:
    """Keeps the routes of ordered topics of *routes*, which begin with what *path* holds."""

    def __init__(self, path: Path, routes: RouteRegistry) -> None:
        self._path = path
        self._routes = routes
        self._saved = b""
        try:
            if path.stat().st_size > FILE_SIZE_MAX:
                raise OSError(f"larger than {FILE_SIZE_MAX} bytes")
            data = path.read_bytes()
            routes.restore(_read(data))
        except FileNotFoundError:
            return
        except (OSError, *UNREADABLE) as error:
            _log.error("%s: %s; routes come when the groups register", path, error)
        else:
            self._saved = data

    def save(self) -> None:
        """Write the file if something else is to be kept than it holds."""
        if not self._routes.is_changed:
            return
        self._routes.is_changed = False
        data = _written(self._routes.ordered())
        if data == self._saved:
            return
        try:
            replace_file(self._path, data)
        except OSError as error:
            self._routes.is_changed = True  # it is tried again
            reason = error.strerror or error
            _log.error(
                "%s: %s; free its disk: a restart would begin with former routes",
                self._path,
                reason,
            )
        else:
            self._saved = data


def _written(brokers: dict[str, Broker]) -> bytes:
    groups = {
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
        )
        for name, broker in brokers.items()
    }
    return msgspec.json.encode(groups)


def _read(data: bytes) -> dict[str, Broker]:
    return {
        name: Broker(
            group.cluster,
            last_addresses=group.addresses,
            topics={
                topic: RoutedTopic(
                    QueueData(name, found.read, found.write, found.perm, found.flags),
                    found.is_ordered,
                    counter=0,
                )
                for topic, found in group.topics.items()
            },
            awaited=frozenset(group.awaited),
            heard=frozenset(group.heard),
            is_trusted=True,
        )
        for name, group in msgspec.json.decode(data, type=dict[str, _Group]).items()
    }
