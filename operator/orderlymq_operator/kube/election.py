"""
Leader election: the holder of the Lease `orderlymq-operator` acts.

Rules: a process compares times by its own clock, from when it saw a renewal, never with a clock of another machine. A
holder that could not renew for RENEW_LIMIT_S stops before another one may begin. The token counts the holders and is
never below the time: brokers refuse requests with a smaller token. A holder still stands by for a competing operator that
serves the same namespaces, see `competitors`.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from orderlymq_operator.kube.api import Api, ApiError, ForbiddenError
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
from orderlymq_operator.kube.resources import LEASES, Json
from orderlymq_protocol.operatortoken import token_after, token_max_at
from orderlymq_runtime.wallclock import machine_ms

_log = logging.getLogger(__name__)

NAME: Final = "orderlymq-operator"
# Long enough for an API server that is busy for some seconds; a process that ends gives the lease back, and
# one that crashed takes it again under its own name immediately.
LEASE_S: Final = 30
RENEW_S: Final = 5.0
# A third of the lease remains: nobody else acts before this one has stopped.
RENEW_LIMIT_S: Final = 20.0
# A process that acts, and has seen no lease of another namespace, looks for one so often: an operator that comes later stands by without that.
COMPETITORS_POLL_S: Final = 60.0
_ATTEMPT_S: Final = 5.0
_WAIT_S: Final = 2.0


class Election:
    """Takes and keeps the lease; `run` until cancelled.

    Attributes:
        token: transitions of the lease when it was taken; rises with every holder.
        competitor: why this process does not act although it holds the lease; empty when nothing of the kind is known.
        left: namespaces that former holders served and this one does not, * for all, until their finalizers are released.

    Args:
        serves: the namespaces whose objects are this operator's; empty for all.
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
        self._written: Json | None = None  # the lease as it is, unless somebody else has written it
        self._competitors: list[Competitor] = []
        self._alone_since: float | None = None
        self._seen: dict[str, tuple[tuple[Any, ...], float]] = {}  # by namespace
        self._cannot_list = False
        self._overtaken_by = 0
        self._given_up = 0  # the greatest token of this lease that could not be, by this clock

    def overtaken(self, token: int) -> None:
        """Note a token that a broker has seen.

        If it is greater, and no other operator lives or a former holder of this lease had it, this process takes a greater
        one with the next renewal of the lease, which proves that it is still held.
        """
        self._overtaken_by = max(self._overtaken_by, token)

    @property
    def _is_overtaken(self) -> bool:
        is_own = self._overtaken_by <= self._given_up
        return self._overtaken_by > self.token and (is_own or not self._cannot_list)

    def is_looked_after(self, namespace: str) -> bool:
        """Return whether this or another operator that lives may serve a namespace."""
        others = (each.serves for each in self._competitors)
        return (
            self._cannot_list
            or namespace in self._serves
            or any(not serves or namespace in serves for serves in others)
        )

    async def sees_others(self) -> bool:
        """Look which other operators live, for `is_looked_after` of a process that takes no lease; return whether they can be seen.

        One that was uninstalled a moment ago may have left its lease: it lives if it renews it.
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
        """Take the lease when it is free, keep it, give it back at the end."""
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
            _log.info("no other operator serves the same any more")
        self.competitor = text

    async def _try(self) -> bool:
        """Take or keep the lease, if it is not another process's; return whether this one may act."""
        begun = time.monotonic()
        found = self._written or await self._api.get(LEASES, self._namespace, NAME)
        self._written = None  # until the next write has succeeded
        holder = ((found or {}).get("spec") or {}).get("holderIdentity") or ""
        # Also after a restart under the same name, which stands for one process at a time: the lease is taken again.
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
            claims = not before  # whatever is there is older
        else:
            claims = not any(other.since < age_of(found) for other in before)
        transitions = int(((found or {}).get("spec") or {}).get("leaseTransitions") or 0)
        # A clock that was wrong gave a token that no broker believes, unless one has shown that it does.
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
            # Of two that claim at the same moment, one at least sees the other, and then both do.
            before = claiming(self._serves, await self._others())
        if claims and (acted or not before):
            self._note_competitor("")
            return True
        self._note_competitor(sentence(self._serves, before[0]))
        return False

    async def _others(self) -> list[Competitor]:
        """Return the operators of other namespaces that live."""
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
        """Let a successor begin immediately."""
        try:
            async with asyncio.timeout(_WAIT_S):
                found = await self._api.get(LEASES, self._namespace, NAME)
                if found and found["spec"].get("holderIdentity") == self._identity:
                    transitions = int(found["spec"].get("leaseTransitions") or 0)
                    free = self._lease(found, transitions, claims=False, holder="")
                    await self._api.replace(LEASES, self._namespace, free)
        except (ApiError, TimeoutError) as error:
            _log.info("the lease was not given back, it runs out by itself: %s", error)
