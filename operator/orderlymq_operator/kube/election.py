"""
Who may act: the holder of the Lease `orderlymq-operator`.

Rules: times are compared by this process's own clock from when it saw a renewal, never with a clock of another machine;
who could not renew for RENEW_LIMIT_S stops acting before anybody else may begin. The number of holders so far is
the fencing token: brokers refuse whoever comes with a smaller one, so that a new lease begins with the time.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from orderlymq_operator.kube.api import Api, ApiError
from orderlymq_operator.kube.resources import LEASES, Json

_log = logging.getLogger(__name__)

NAME: Final = "orderlymq-operator"
# Long enough for an API server that is busy for some seconds; a process that ends gives the lease back, and
# one that crashed takes it again under its own name at once.
LEASE_S: Final = 30
RENEW_S: Final = 5.0
# A third of the lease remains: nobody else acts before this one has stopped.
RENEW_LIMIT_S: Final = 20.0
_ATTEMPT_S: Final = 5.0
_WAIT_S: Final = 2.0
# 2026-01-01: the field has 31 bits, and holders change less than once a second.
_EPOCH_S: Final = 1_767_225_600


class Election:
    """Takes and keeps the lease; `run` until cancelled.

    Attributes:
        token: transitions of the lease when it was taken; rises with every holder.
    """

    def __init__(
        self, api: Api, namespace: str, identity: str, changed: Callable[[bool], None]
    ) -> None:
        self.token = 0
        self._api = api
        self._namespace = namespace
        self._identity = identity
        self._changed = changed
        self._leads = False
        self._renewed = 0.0
        self._seen: tuple[Any, ...] | None = None
        self._seen_at = 0.0

    @property
    def leads(self) -> bool:
        """Whether this process may act now."""
        return self._leads and time.monotonic() - self._renewed < RENEW_LIMIT_S

    async def run(self) -> None:
        """Take the lease when it is free, keep it, give it back at the end."""
        try:
            while True:
                pause_s = RENEW_S
                try:
                    async with asyncio.timeout(_ATTEMPT_S):
                        held = await self._try()
                except (ApiError, TimeoutError) as error:
                    _log.warning("cannot renew the lease: %s", str(error) or "no answer in time")
                    held, pause_s = self.leads, _WAIT_S
                self._note(held)
                await asyncio.sleep(pause_s if self._leads else _WAIT_S)
        finally:
            if self._leads:
                await asyncio.shield(self._give_back())

    def _note(self, held: bool) -> None:
        if held != self._leads:
            self._leads = held
            _log.info("this process %s", f"leads, token {self.token}" if held else "stands by")
            self._changed(held)

    async def _try(self) -> bool:
        begun = time.monotonic()
        found = await self._api.get(LEASES, self._namespace, NAME)
        if found is None:
            # A lease that somebody deleted must not begin with numbers that brokers have seen already.
            first = max(1, int(time.time()) - _EPOCH_S)
            made = await self._api.create(LEASES, self._namespace, self._lease(None, first))
            return self._took(made, begun)
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        transitions = int(spec.get("leaseTransitions") or 0)
        if holder == self._identity and self._leads:
            made = await self._api.replace(LEASES, self._namespace, self._lease(found, transitions))
            return self._took(made, begun)
        if holder and not self._has_lapsed(found, begun):
            return False
        # Also after a restart under the same name: the former process may still have calls under way.
        made = await self._api.replace(LEASES, self._namespace, self._lease(found, transitions + 1))
        return self._took(made, begun)

    def _has_lapsed(self, found: Json, now: float) -> bool:
        spec = found["spec"]
        seen = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        if spec.get("holderIdentity") == self._identity:
            return True  # a pod name stands for one process at a time
        return now - self._seen_at > float(spec.get("leaseDurationSeconds") or LEASE_S)

    def _took(self, made: Json, begun: float) -> bool:
        self._renewed = begun
        self.token = int(made["spec"].get("leaseTransitions") or 0)
        return True

    def _lease(self, found: Json | None, transitions: int, holder: str | None = None) -> Json:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        meta: Json = {"name": NAME, "namespace": self._namespace}
        former: Json = {}
        if found is not None:
            meta["resourceVersion"] = found["metadata"]["resourceVersion"]
            former = found.get("spec") or {}
        taken = former.get("acquireTime") if former.get("leaseTransitions") == transitions else now
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": meta,
            "spec": {
                "holderIdentity": self._identity if holder is None else holder,
                "leaseDurationSeconds": LEASE_S,
                "acquireTime": taken or now,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }

    async def _give_back(self) -> None:
        """Let a successor begin at once."""
        try:
            async with asyncio.timeout(_WAIT_S):
                found = await self._api.get(LEASES, self._namespace, NAME)
                if found and found["spec"].get("holderIdentity") == self._identity:
                    free = self._lease(found, int(found["spec"].get("leaseTransitions") or 0), "")
                    await self._api.replace(LEASES, self._namespace, free)
        except (ApiError, TimeoutError) as error:
            _log.info("the lease was not given back, it runs out by itself: %s", error)
