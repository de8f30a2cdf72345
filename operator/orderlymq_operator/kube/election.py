"""
Leader election: the holder of the Lease `orderlymq-operator` acts.

Rules: a process measures the age of a renewal by its own clock, from when it saw the renewal, never by another
machine's clock. A holder that could not renew for RENEW_LIMIT_S stops before another one may begin. The token grows
with each holder and is never below the current time; brokers refuse requests with a smaller token. A holder does not
act while a competing operator claims the same namespaces, see `competitors`.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.competitors import (
    Competitor,
    age_of,
    claiming,
    competitor_of,
    is_forgotten,
    left_by,
    notes,
    sentence,
)
from orderlymq_operator.kube.errors import ApiError, ForbiddenError
from orderlymq_operator.kube.resources import LEASES, Json
from orderlymq_protocol.operatortoken import token_after, token_max_at
from orderlymq_runtime.wallclock import machine_ms

_log = logging.getLogger(__name__)

NAME: Final = "orderlymq-operator"
# Long enough for an API server that is busy for some seconds. A process that ends gives the lease back, and a process
# that crashed takes it again immediately under its own name.
LEASE_S: Final = 30
RENEW_S: Final = 5.0
# A third of the lease remains, so that this process stops before another one acts.
RENEW_LIMIT_S: Final = 20.0
# How often a process that acts, and has seen no Lease of another namespace, looks for one. That may be rare, because an
# operator that is installed later does not act anyway.
COMPETITORS_POLL_S: Final = 60.0
_ATTEMPT_S: Final = 5.0
_WAIT_S: Final = 2.0


class Election:
    """Takes and keeps the lease; `run` until cancelled.

    Attributes:
        token: transitions of the lease when it was taken; grows with every holder.
        competitor: why this process does not act although it holds the lease; empty if no competitor is known.
        left: namespaces that former holders served and this one does not, * for all, until their finalizers are
            removed.

    Args:
        serves: the namespaces that this operator serves; empty for all.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        identity: str,
        changed: Callable[[bool], None],
        serves: tuple[str, ...] = (),
    ) -> None:
        self.token = 0
        self.competitor = ""
        self.left: frozenset[str] = frozenset()
        self._api = api
        self._namespace = namespace
        self._identity = identity
        self._changed = changed
        self._serves = serves
        self._holds = False
        self._claims = False
        self._leads = False
        self._renewed = 0.0
        self._written: Json | None = None  # the lease as this process last wrote it
        self._competitors: list[Competitor] = []
        self._alone_since: float | None = None
        self._seen: dict[str, tuple[tuple[Any, ...], float]] = {}  # by namespace
        self._cannot_list = False
        self._overtaken_by = 0
        # The greatest token of this lease that was impossible by this machine's clock.
        self._given_up = 0

    def overtaken(self, token: int) -> None:
        """Note a token that a broker has seen.

        If that token is greater than this process's own, the next renewal of the lease takes a greater one; the renewal
        proves that this process still holds the lease. That requires that other operators can be listed, or that a
        former holder of this lease had the token.
        """
        self._overtaken_by = max(self._overtaken_by, token)

    @property
    def _is_overtaken(self) -> bool:
        is_own = self._overtaken_by <= self._given_up
        return self._overtaken_by > self.token and (is_own or not self._cannot_list)

    def is_looked_after(self, namespace: str) -> bool:
        """Return whether this or another living operator may serve a namespace."""
        others = (each.serves for each in self._competitors)
        return (
            self._cannot_list
            or namespace in self._serves
            or any(not serves or namespace in serves for serves in others)
        )

    async def sees_others(self) -> bool:
        """Find other living operators for `is_looked_after`, without the lease; return whether they can be listed.

        An operator that was just uninstalled may have left its Lease behind; it lives only if it renews the Lease.
        """
        self._competitors = await self._others()
        begun = dict(self._seen)
        while any(
            self._seen[each.namespace] == begun.get(each.namespace) for each in self._competitors
        ):
            await asyncio.sleep(_WAIT_S)
            self._competitors = await self._others()

        return not self._cannot_list

    @property
    def leads(self) -> bool:
        """Whether this process may act now."""
        return self._leads and self._is_fresh()

    def _is_fresh(self) -> bool:
        return time.monotonic() - self._renewed < RENEW_LIMIT_S

    async def run(self) -> None:
        """Take the lease when it is free, renew it, and give it back at the end."""
        try:
            while True:
                pause_s = RENEW_S
                try:
                    async with asyncio.timeout(_ATTEMPT_S):
                        acts = await self._try()
                except (ApiError, TimeoutError) as error:
                    _log.warning("cannot renew the lease: %s", str(error) or "no answer in time")
                    acts, pause_s = self.leads, _WAIT_S
                self._note(acts)
                await asyncio.sleep(pause_s if self._leads else _WAIT_S)
        finally:
            if self._holds:
                await asyncio.shield(self._give_back())

    def _note(self, acts: bool) -> None:
        if acts != self._leads:
            self._leads = acts
            _log.info("this process %s", f"leads, token {self.token}" if acts else "stands by")
            self._changed(acts)

    def _note_competitor(self, text: str) -> None:
        if text and text != self.competitor:
            _log.error("%s", text)
        elif self.competitor and not text:
            _log.info("no other operator serves the same namespaces any more")
        self.competitor = text

    async def _try(self) -> bool:
        """Take or renew the lease, unless another process holds it; return whether this process may act."""
        begun = time.monotonic()
        found = self._written or await self._api.get(LEASES, self._namespace, NAME)
        self._written = None  # until the next write has succeeded
        holder = ((found or {}).get("spec") or {}).get("holderIdentity") or ""
        # A process that restarts under the same name takes the lease again; only one process has that name at a time.
        if found is not None and holder not in {"", self._identity} and not self._lapsed(found):
            self._holds = self._claims = False
            self._note_competitor("")
            return False
        keeps = found is not None and holder == self._identity and self._holds and self._is_fresh()
        acted = keeps and self._leads
        claimed = keeps and self._claims

        alone = self._alone_since is not None and begun - self._alone_since < COMPETITORS_POLL_S
        if not (acted and alone) or self._is_overtaken:
            self._competitors = await self._others()
        others = self._competitors
        before = claiming(self._serves, others)
        if found is None:
            claims = not before  # every existing Lease is older
        else:
            claims = not any(other.since < age_of(found) for other in before)
        transitions = int(((found or {}).get("spec") or {}).get("leaseTransitions") or 0)
        # A wrong clock may have set a token that brokers refuse as too great, unless a broker has reported it.
        believed = max(token_max_at(machine_ms()), self._overtaken_by + 1)
        is_possible = transitions <= believed
        if not is_possible:
            self._given_up = max(self._given_up, transitions)
        if not keeps or (claims and not claimed) or self._is_overtaken or not is_possible:
            former = [transitions, *(each.transitions for each in others)]
            transitions = max(token_after(former, time.time()), self._overtaken_by + 1)
        if not keeps:
            self.left = left_by(found, self._serves)
        made = self._lease(found, transitions, claims=claims)
        if found is None:
            made = await self._api.create(LEASES, self._namespace, made)
        else:
            made = await self._api.replace(LEASES, self._namespace, made)
        self._written = made
        self._holds, self._claims, self._renewed = True, claims, begun
        self.token = int(made["spec"].get("leaseTransitions") or 0)
        if claims and not acted:
            # If two operators claim at the same moment, at least one sees the other here, and later both do.
            before = claiming(self._serves, await self._others())
        if claims and (acted or not before):
            self._note_competitor("")
            return True
        self._note_competitor(sentence(self._serves, before[0]))
        return False

    async def _others(self) -> list[Competitor]:
        """Return the living operators of other namespaces."""
        try:
            found = await self._api.list(LEASES, fields=f"metadata.name={NAME}")
        except ForbiddenError as error:
            if not self._cannot_list:
                _log.warning("operators of other namespaces cannot be seen: %s", error)
            self._cannot_list = True
            return []
        self._cannot_list = False
        is_alone = all(lease["metadata"]["namespace"] == self._namespace for lease in found)
        self._alone_since = time.monotonic() if is_alone else None
        return [
            competitor_of(lease)
            for lease in found
            if lease["metadata"]["namespace"] != self._namespace
            and (lease.get("spec") or {}).get("holderIdentity")
            and not is_forgotten(lease, datetime.now(UTC))
            and not self._lapsed(lease)
        ]

    def _lapsed(self, found: Json) -> bool:
        namespace, spec, now = found["metadata"]["namespace"], found["spec"], time.monotonic()
        seen = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        previous, since = self._seen.get(namespace, (None, now))
        if seen != previous:
            self._seen[namespace] = seen, now
            return False
        return now - since > float(spec.get("leaseDurationSeconds") or LEASE_S)

    def _lease(
        self, found: Json | None, transitions: int, *, claims: bool, holder: str | None = None
    ) -> Json:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        meta: Json = {
            "name": NAME,
            "namespace": self._namespace,
            "annotations": notes(self._serves, self.left, claims=claims),
        }
        previous: Json = {}
        if found is not None:
            meta["resourceVersion"] = found["metadata"]["resourceVersion"]
            previous = found.get("spec") or {}
        taken = (
            previous.get("acquireTime") if previous.get("leaseTransitions") == transitions else now
        )
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
        """Give the lease back, so that a successor can begin immediately."""
        try:
            async with asyncio.timeout(_WAIT_S):
                found = await self._api.get(LEASES, self._namespace, NAME)
                if found and found["spec"].get("holderIdentity") == self._identity:
                    transitions = int(found["spec"].get("leaseTransitions") or 0)
                    free = self._lease(found, transitions, claims=False, holder="")
                    await self._api.replace(LEASES, self._namespace, free)
        except (ApiError, TimeoutError) as error:
            _log.info("the lease was not released, it expires by itself: %s", error)
