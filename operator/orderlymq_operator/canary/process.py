"""
A canary as a process: probes, judge and pages, from start to end.

`/status` is its verdict as JSON, `/metrics` serves Prometheus, `/readyz` says whether the order is verified. Rule:
`/healthz` says only whether the process runs, because a restart does not repair a broken order.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orderlymq_operator.canary.metrics import CanaryMetrics
from orderlymq_operator.canary.probes import Filter, Plan, Probes, now_s
from orderlymq_operator.canary.verdict import Canary, Limits, Verdict
from orderlymq_runtime.pages.server import HealthServer

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.25
# Maximum number of troubles on the page; the counts include all of them.
_SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Address:
    """The address of the pages."""

    host: str
    port: int


class CanaryProcess:
    """One canary; `run` until cancelled.

    Args:
        changed: called with each verdict whose status or reason differs from the previous one.
        filters: as for `Probes`.
    """

    def __init__(
        self,
        plan: Plan,
        limits: Limits,
        address: Address,
        changed: Callable[[Verdict], None] = lambda verdict: None,
        filters: Sequence[Filter] = (),
    ) -> None:
        self._metrics = CanaryMetrics()
        self.canary = Canary(plan.lanes(), secrets.token_hex(8), limits, self._metrics.probe)
        self.probes = Probes(plan, self.canary, filters)
        self._address = address
        self._changed = changed
        self._reported: tuple[str, str] | None = None

    async def run(self) -> None:
        """Probe and judge until cancelled.

        Raises:
            OSError: the pages cannot be served at the address.
        """
        http = HealthServer(
            self._address.host,
            self._address.port,
            ready=self._ready,
            status=self.status,
            registry=self._metrics.registry,
        )
        await http.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.probes.run(), name="probes")
                tasks.create_task(self._show(), name="verdict")
        finally:
            await http.close()

    def verdict(self) -> Verdict:
        """Return the present verdict."""
        return self.canary.verdict(now_s())

    def status(self) -> Mapping[str, object]:
        """Return the verdict and the facts behind it, as JSON types."""
        verdict, now = self.verdict(), now_s()
        budget = self.canary.budget
        return {
            "status": verdict.status,
            "reason": verdict.reason,
            "message": verdict.message,
            "run": self.canary.run,
            "takeovers": self.canary.takeovers,
            "troubles": {kind.value: count for kind, count in self.canary.counts.items()},
            "recent": [
                {"kind": each.kind.value, "queue": str(each.lane), "text": each.text}
                for each in list(self.canary.recent())[-_SHOWN_MAX:]
            ],
            "budget": {
                "objective": budget.objective,
                "good": budget.good,
                "bad": budget.bad,
                "left": round(budget.left, 4),
                "burn5m": round(budget.burn(now, 5), 2),
                "burn1h": round(budget.burn(now, 60), 2),
            },
            "queues": {
                str(lane): {
                    "sent": ledger.sent,
                    "delivered": ledger.highest,
                    "repeats": ledger.repeats,
                    "copies": ledger.copies,
                }
                for lane, ledger in self.canary.ledgers.items()
            },
        }

    def _ready(self) -> tuple[bool, str]:
        verdict = self.verdict()
        return verdict.status == "True", f"{verdict.reason}: {verdict.message}"

    async def _show(self) -> None:
        while True:
            verdict = self.verdict()
            self._metrics.show(self.canary, verdict)
            if (verdict.status, verdict.reason) != self._reported:
                self._reported = (verdict.status, verdict.reason)
                _log.info("order %s: %s: %s", verdict.status, verdict.reason, verdict.message)
                self._changed(verdict)
            await asyncio.sleep(_POLL_S)
