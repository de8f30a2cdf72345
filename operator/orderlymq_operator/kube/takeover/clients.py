"""
Finds out whether leaders know a client of a pod that may have ended; one reading of their tables serves all such pods.

Rules: most pods that end run no consumer, so no pod causes a request of its own. A check that asks during a reading
waits for the next reading, because a leader may have answered before the pod ended. If one leader knows a client of a
pod, the check of that pod does not wait for leaders that do not answer.
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
# The minimal pause before the next reading. If this reading took longer, the pause is as long as the reading, because
# a leader needs a tenth of a second for tables of thousands of clients.
_PAUSE_MIN_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Target:
    """A Cluster with consumers, and the current addresses of its leaders.

    Attributes:
        complete: every raft group had a leader at the last reconcile; if not, a leader is missing in *addresses*.
    """

    key: ClusterKey
    admin: Admin
    addresses: tuple[str, ...]
    complete: bool


class NamedClients:
    """The clients that the leaders of all *targets* know: holders of locks, and members of consumer groups."""

    def __init__(self, targets: Callable[[], Iterable[Target]]) -> None:
        self._targets = targets
        self._next: _Reading | None = None  # a reading that has not begun
        self._turn = asyncio.Lock()
        self._not_before = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """End all readings."""
        await end_tasks(self._tasks)

    async def are_in(self, pod: PodFacts) -> bool | None:
        """Return True as soon as a leader names a client in *pod*, False if none does, None if a leader is silent."""
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
        """Pass an answer to the waiting checks as soon as it arrives; return False if the request failed."""
        try:
            found = await answer
        except AdminError as error:
            _log.debug("%s", error)
            return False
        except Exception:
            # A bad answer from one Cluster must not stop the takeover in other Clusters.
            _log.exception("cannot read the clients of a raft group")
            return False
        reading.tell({place_of(name, each) for name, places in found.items() for each in places})
        return True


class _Reading:
    """One reading of the leaders' tables, and the checks that wait for its result."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], list[asyncio.Future[bool | None]]] = {}
        self._all: list[asyncio.Future[bool | None]] = []

    async def wait_for(self, pod: PodFacts) -> bool | None:
        """Wait until a leader names a client in *pod* or the reading ends; return the result."""
        named: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self._all.append(named)
        for place in ((one, other) for one in pod.ips for other in pod.ips):
            self._waiting.setdefault(place, []).append(named)
        return await named

    def tell(self, places: Collection[tuple[str, str]]) -> None:
        """Answer True to the checks whose pod is at one of *places*."""
        for place in self._waiting.keys() & places:
            _settle(self._waiting[place], result=True)

    def end(self, *, whole: bool) -> None:
        """Answer the checks that still wait: False if every leader answered, None if not."""
        _settle(self._all, result=False if whole else None)


def _settle(waiting: Iterable[asyncio.Future[bool | None]], *, result: bool | None) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(result)


async def _holders(admin: Admin, address: str) -> dict[str, frozenset[str]]:
    found = await admin.lock_holders(address)
    return {client_id: holder.addresses for client_id, holder in found.items()}
