"""
Stores for the offsets of a consumer group: at the broker for clustering, in a local file for broadcasting.

Rules: `update` only remembers an offset; `persist` makes it durable. A persisted offset is not sent again. A lower
offset replaces a higher one only if the caller says so (an ordered queue after a reset). A user's own store follows the
same protocol.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from orderlymq.connection.instance import ClientInstance, unless_refused
from orderlymq.consumer.group.requests import commit_request, fence, read_offset
from orderlymq.errors import SettingError
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.header.catalogue import QueryConsumerOffsetHeader
from orderlymq_protocol.names import is_retry_topic
from orderlymq_runtime.durablefiles import sync_path

_log = logging.getLogger(__name__)

NOT_FOUND = -1


class OffsetStore(Protocol):
    """The offsets of one consumer group."""

    async def load(self) -> None:
        """Read the stored offsets; called once, before all other methods."""

    def update(
        self, queue: MessageQueue, offset: int, *, epoch: int | None, increase_only: bool
    ) -> None:
        """Remember an offset; *epoch* is that of the queue's lock."""

    async def fetch(self, queue: MessageQueue) -> int:
        """Return the stored offset, NOT_FOUND if the consumer group has none.

        Raises:
            OrderlyMQError: The offset cannot be known now; the queue must not be started.
        """

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Make the remembered offsets durable; failures are logged, and the next call tries again."""

    def remove(self, queue: MessageQueue) -> None:
        """Forget the remembered offset of a queue without persisting it."""

    def read(self, queue: MessageQueue) -> int:
        """Return the remembered offset, NOT_FOUND if there is none."""


class BrokerOffsets:
    """Offsets that the brokers keep, in their replicated log."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._offsets: dict[MessageQueue, tuple[int, int | None]] = {}
        self._persisted: dict[MessageQueue, tuple[int, int | None]] = {}

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that have a remembered offset."""
        return tuple(self._offsets)

    async def load(self) -> None:
        """Do nothing: the brokers are asked queue by queue."""

    def update(
        self, queue: MessageQueue, offset: int, *, epoch: int | None, increase_only: bool
    ) -> None:
        """Remember an offset."""
        if not increase_only or offset >= self.read(queue):
            self._offsets[queue] = offset, epoch

    def read(self, queue: MessageQueue) -> int:
        """Return the remembered offset."""
        found = self._offsets.get(queue)
        return NOT_FOUND if found is None else found[0]

    def remove(self, queue: MessageQueue) -> None:
        """Forget the queue's offset."""
        self._offsets.pop(queue, None)
        self._persisted.pop(queue, None)

    async def fetch(self, queue: MessageQueue) -> int:
        """Ask the queue's broker; only its answer "not found" counts as NOT_FOUND.

        Raises:
            BrokerUnreachable: The broker group has no leader now, or it did not answer.
            BrokerError: The broker refused to answer.
        """
        address = await self._instance.leader(queue.broker_name, queue.topic)
        # `consume_from` says where a group without an offset begins; the broker does not decide that.
        header = QueryConsumerOffsetHeader(
            self._group, queue.topic, queue.queue_id, set_zero_if_not_found=False
        )
        ext = {**header.to_ext(), **fence(self._instance.client_id)}
        asked = self._instance.call(address, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        # Any other code must not start the queue at a guessed place: clients that did so lost messages.
        answer = await unless_refused(asked, None, ResponseCode.QUERY_NOT_FOUND)
        return NOT_FOUND if answer is None else read_offset(answer)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Commit all changed offsets to the brokers in parallel, so that a broker that hangs does not delay the others."""
        changed = self.changed(queues)
        await asyncio.gather(*(self._persist(each, self._offsets[each]) for each in changed))

    def changed(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return those of *queues* whose remembered offset is not known to be at the broker."""
        found = ((each, self._offsets.get(each)) for each in queues)
        return [each for each, entry in found if entry not in (None, self._persisted.get(each))]

    def commit(self, queue: MessageQueue) -> Coroutine[Any, Any, None]:
        """Commit the remembered offset of a queue now, even if it is forgotten before the request is sent.

        Raises:
            BrokerUnreachable: The broker did not answer; the offset may be committed.
            BrokerError: The broker refused it.
        """
        return self._commit(queue, self._offsets[queue])

    async def _commit(self, queue: MessageQueue, entry: tuple[int, int | None]) -> None:
        offset, epoch = entry
        address = await self._instance.leader(queue.broker_name, queue.topic)
        command = commit_request(self._group, queue, offset, fence(self._instance.client_id, epoch))
        await self._instance.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, command.ext)
        if queue in self._offsets:
            self._persisted[queue] = entry

    async def _persist(self, queue: MessageQueue, entry: tuple[int, int | None]) -> None:
        try:
            await self._commit(queue, entry)
            self._instance.troubles.answered(queue.broker_name, "offset commits")
        except Exception as error:
            if not is_retry_topic(queue.topic):  # it may not exist yet
                self._instance.troubles.failed(queue.broker_name, "offset commits", error)
            _log.debug(
                "updateConsumeOffsetToBroker exception, group=%s %s offset=%d: %s",
                *(self._group, queue, entry[0], error),
            )


class LocalOffsets:
    """Offsets of a broadcasting member, in a file with RocketMQ's format and path.

    Args:
        path: `<home>/.rocketmq_offsets/<client id>/<group>/offsets.json`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets: dict[MessageQueue, int] = {}
        self._written: dict[MessageQueue, int] = {}
        self._writing = threading.Lock()

    async def load(self) -> None:
        """Read the file, or the older copy if the file is damaged or missing; load no offsets if neither exists.

        Raises:
            SettingError: A file is damaged and no other can be read: to begin elsewhere might skip messages.
        """
        damaged: list[str] = []
        for path in (self._path, self._path.with_suffix(".json.bak")):
            try:
                content = path.read_bytes()
                self._offsets = dict(_read_table(fastjson.loads(content)["offsetTable"]))
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                damaged.append(f"{path} ({error})")
                _log.error("the offsets in %s cannot be read: %s", path, error)
                continue
            self._written = dict(self._offsets)
            return
        if damaged:
            raise SettingError(
                f"the offsets cannot be read: {', '.join(damaged)}; restore the file, or delete it "
                "to begin at the position that consume_from sets"
            )

    def update(
        self, queue: MessageQueue, offset: int, *, epoch: int | None, increase_only: bool
    ) -> None:
        """Remember an offset."""
        if not increase_only or offset >= self.read(queue):
            self._offsets[queue] = offset

    def read(self, queue: MessageQueue) -> int:
        """Return the remembered offset."""
        return self._offsets.get(queue, NOT_FOUND)

    def remove(self, queue: MessageQueue) -> None:
        """Keep the offset: a broadcasting member never gives a queue to another member."""

    async def fetch(self, queue: MessageQueue) -> int:
        """Return the remembered offset, which `load` read from the file and `update` may have changed."""
        return self.read(queue)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Write the whole table atomically and keep one older copy; a failure is logged."""
        if self._offsets == self._written:
            return
        try:
            await asyncio.to_thread(self._write)
        except OSError as error:
            _log.error(
                "the offsets were not written to %s; the next commit tries again. Until then, "
                "a restart repeats messages: %s",
                *(self._path, error),
            )

    def _write(self) -> None:
        """Write the current table, in a thread, because a disk may be slow; the call may be cancelled before the write ends."""
        with self._writing:
            offsets = dict(self._offsets)  # the event loop may change the original during the write
            fresh = self._path.with_suffix(".json.tmp")
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with fresh.open("wb") as file:
                file.write(fastjson.dumps({"offsetTable": offsets}))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):
                self._path.replace(self._path.with_suffix(".json.bak"))
            fresh.replace(self._path)
            sync_path(self._path.parent)
            self._written = offsets


def local_offsets_path(client_id: str, group: str, home: Path | None = None) -> Path:
    """Return the path at which RocketMQ's clients keep the offsets of a broadcasting member."""
    root = (Path.home() if home is None else home) / ".rocketmq_offsets"
    return root / client_id / group / "offsets.json"


def _read_table(table: Mapping[object, object]) -> Iterable[tuple[MessageQueue, int]]:
    for key, offset in table.items():
        # Newer Java clients write the key as the JSON text of its object.
        value = fastjson.loads(key.encode()) if isinstance(key, str) else key
        if type(offset) is not int or not 0 <= offset < 2**63:
            raise ValueError(f"{offset!r} is not a valid offset")
        yield MessageQueue.from_json_value(value), offset
