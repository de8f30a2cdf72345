"""
Whether the leaders name a client of a pod that may have ended: one reading of their tables for all who ask meanwhile.

Rules: most pods that end run no consumer, and none of them costs a request of its own. Who asks during a reading waits for
the next one, because a leader may have answered before that pod ended. A leader that does not answer keeps nobody waiting
who is named by another one.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from orderlymq_operator.brokers.admin import Admin, AdminError
from orderlymq_operator.kube.observe.inventory import ClusterKey
from orderlymq_operator.kube.observe.pods import PodFacts
from orderlymq_operator.kube.takeover.proof import place_of
from orderlymq_runtime.process.supervisor import end_tasks

_log = logging.getLogger(__name__)

# How long the next reading waits for leaders that have not answered this one.
_TURN_S: Final = 0.2
# From then to the next reading: as long as this one took, because tables of thousands of clients take a leader a tenth of a
# second, and no less than this.
_PAUSE_MIN_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Target:
    """A Cluster with consumers: how its leaders are called, at present.

    Attributes:
        complete: every raft group had a leader at the last reconcile; else somebody is missing in *addresses*.
    """

    key: ClusterKey
    admin: Admin
    addresses: tuple[str, ...]
    complete: bool


class NamedClients:
    """The clients that the leaders of all *targets* name: holders of locks, and members of consumer groups."""

    def __init__(self, targets: Callable[[], Iterable[Target]]) -> None:
        self._targets = targets
        self._next: _Reading | None = None  # one that has not begun
        self._turn = asyncio.Lock()
        self._not_before = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """End all readings."""
        await end_tasks(self._tasks)

    async def are_in(self, pod: PodFacts) -> bool | None:
        """Return whether a client is named that runs in *pod*, as soon as one is; None where a leader was silent."""
        if self._next is None:
            self._next = _Reading()
            task = asyncio.create_task(self._read(self._next), name="clients of pods that end")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await self._next.wait_for(pod)

    async def _read(self, reading: "_Reading") -> None:
        whole, answers = False, list[asyncio.Task[bool]]()
        try:
            async with self._turn:
                await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
                self._next, began = None, time.monotonic()
                targets = list(self._targets())
                for target in targets:
                    for address in target.addresses:
                        for read in (_holders, Admin.all_members):
                            answer = self._tell(reading, read(target.admin, address))
                            answers.append(asyncio.create_task(answer))
                if answers:
                    await asyncio.wait(answers, timeout=_TURN_S)
                ended = time.monotonic()
                self._not_before = ended + max(ended - began, _PAUSE_MIN_S)
            whole = all(await asyncio.gather(*answers)) and all(each.complete for each in targets)
        finally:
            if self._next is reading:
                self._next = None
            reading.end(whole=whole)
            await end_tasks(answers)

    async def _tell(
        self, reading: "_Reading", answer: Awaitable[Mapping[str, Collection[str]]]
    ) -> bool:
        """Tell of an answer at once; return whether it came."""
        try:
            found = await answer
        except AdminError as error:
            _log.debug("%s", error)
            return False
        except Exception:
            # What one Cluster answers must not keep the clients of others.
            _log.exception("cannot read the clients of a raft group")
            return False
        reading.tell({place_of(name, each) for name, places in found.items() for each in places})
        return True


class _Reading:
    """One reading, and who waits for what it finds."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], list[asyncio.Future[bool | None]]] = {}
        self._all: list[asyncio.Future[bool | None]] = []

    async def wait_for(self, pod: PodFacts) -> bool | None:
        """Wait until a client in *pod* is named, or the end."""
        named: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self._all.append(named)
        for place in ((one, other) for one in pod.ips for other in pod.ips):
            self._waiting.setdefault(place, []).append(named)
        return await named

    def tell(self, places: Collection[tuple[str, str]]) -> None:
        """Tell those whose pod is one of *places*."""
        for place in self._waiting.keys() & places:
            _settle(self._waiting[place], result=True)

    def end(self, *, whole: bool) -> None:
        """Tell the others."""
        _settle(self._all, result=False if whole else None)


def _settle(waiting: Iterable[asyncio.Future[bool | None]], *, result: bool | None) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(result)


async def _holders(admin: Admin, address: str) -> dict[str, frozenset[str]]:
    found = await admin.lock_holders(address)
    return {client_id: holder.addresses for client_id, holder in found.items()}
