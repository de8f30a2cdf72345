"""
The supervisor: it observes, plans and acts in a loop until it is stopped.

Rules: one reconcile at a time; a change of the manifests waits only for the action that runs. Consumer groups have
their own loop. An action that fails holds back only the later ones of its chain, and the next reconcile decides again.
A change is judged as a whole before anything is written or touched. Work that takes long for thousands of topics runs
in threads, so that brokers are watched meanwhile. `control` makes the supervisor reachable for commands; `session`
prepares what it needs.
"""

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import aiohttp

from orderlymq_operator.brokers.admin import Admin, AdminError
from orderlymq_operator.brokers.consumergroups import GroupReconciler
from orderlymq_operator.local.backend import LocalBackend
from orderlymq_operator.local.directory import DataDirectory, State
from orderlymq_operator.local.errors import FailedError, in_words
from orderlymq_operator.local.keeper import STOP_TIMEOUT_S
from orderlymq_operator.local.processes import tls_contexts, unusable_ports
from orderlymq_operator.local.secrets import look_at_secrets, unusable_sources
from orderlymq_operator.plan.actions import (
    Action,
    ActionChain,
    ConditionReport,
    Observed,
    Refuse,
    ReportCondition,
    Subject,
    chain_of,
)
from orderlymq_operator.plan.descriptions import describe
from orderlymq_operator.plan.forecast.effects import Forecast, ResourceForecast
from orderlymq_operator.plan.forecast.forecast import forecast
from orderlymq_operator.plan.planner import plan_accepted, without_gone
from orderlymq_operator.plan.refusals import of_change
from orderlymq_operator.plan.settings import live_changes
from orderlymq_operator.resources.cluster.cluster import Tls
from orderlymq_operator.resources.kinds import Desired, Pipeline, declared_name
from orderlymq_operator.resources.manifests.combination import combine
from orderlymq_operator.resources.manifests.reader import Manifest
from orderlymq_protocol.names import OPERATOR_ACCOUNT
from orderlymq_runtime.process.waits import wait_for
from orderlymq_runtime.remoting.client import RemotingClient
from orderlymq_runtime.security.clustersecret import read_cluster_secret
from orderlymq_runtime.security.tls import ContextSource
from orderlymq_runtime.wallclock import monotonic_ms

_log = logging.getLogger(__name__)

_BUSY_S: Final = 0.1  # between reconciles while there is work or something to wait for
_IDLE_S: Final = (
    2.0  # between reconciles of a cluster in the desired state: drift is repaired this fast
)
_GROUPS_S: Final = 1.0  # between two reconciles of the consumer groups
# A pass of many actions, such as a thousand topics, holds the turn this long, and at most one action longer.
_PASS_S: Final = 1.0
# A demo and a console get this long to end before the cluster ends.
BESIDE_S: Final = 0.2
# SIGTERM ends the whole command within 15 s, as it ends each process.
CLOSE_MAX_S: Final = BESIDE_S + STOP_TIMEOUT_S + 0.05
_EVENTS_MAX: Final = 200
_UNDER_WAY: Final = "make the accepted manifests effective"  # the next passes plan how
_DOUBLINGS_MAX: Final = 6  # the pause does not grow any more after this


@dataclass(frozen=True, slots=True)
class Event:
    """An event to show to people."""

    number: int
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed action, and the text that people see."""

    action: Action
    text: str


class RefusedChange(Exception):  # noqa: N818 - named by what happened
    """The manifests are not allowed; nothing was changed."""

    def __init__(self, refusals: Sequence[Refuse]) -> None:
        super().__init__("\n".join(str(refusal) for refusal in refusals))
        self.refusals = tuple(refusals)


class Supervisor:
    """Keeps one cluster in the state that its manifests describe; use `run`."""

    def __init__(self, directory: DataDirectory, state: State) -> None:
        self.stop_requested = asyncio.Event()
        self._directory = directory
        self._state = state
        self._backend: LocalBackend | None = None
        self._consumer_groups: GroupReconciler | None = None
        self._contexts: tuple[Tls, ContextSource] | None = None
        self._observed = Observed()
        self._turn = asyncio.Lock()
        self._changes_waiting = 0
        self._wake = asyncio.Event()
        self._generation = 1
        self._settled_generation = 0
        self._problem: str | None = None
        self._secret_troubles: dict[str, str] = {}
        self._failed: dict[ActionChain, Failure] = {}
        self._failures = 0
        self._events: deque[Event] = deque(maxlen=_EVENTS_MAX)
        self._event_count = 0

    @property
    def desired(self) -> Desired:
        """The current desired state."""
        return self._state.desired

    @property
    def settled(self) -> bool:
        """Whether the newest change is effective everywhere."""
        return self._settled_generation == self._generation

    async def run(self) -> None:
        """Reconcile until `stop_requested` is set or the task is cancelled; then end the cluster in order.

        Raises:
            FailedError: the data directory was deleted or moved; the cluster has ended.
        """
        client = RemotingClient(tls=self._tls_context)
        async with aiohttp.ClientSession() as session:
            admin = self._admin(client)
            self._consumer_groups = GroupReconciler(admin)
            self._backend = LocalBackend(
                self._directory, self._state, session, admin, self._report_process
            )
            groups = asyncio.create_task(self._keep_consumer_groups(), name="consumer groups")
            try:
                await self._reconcile_until_stopped()
            finally:
                self.event("stopping")
                # Shielded: a second cancellation must not leave children behind.
                await asyncio.shield(self._end(client, groups))

    def _tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for calls to processes now, whichever mode is desired; None for plain calls.

        Raises:
            TlsError: a file of spec.tls cannot be used.
        """
        tls = self.desired.cluster.spec.tls
        if not self._running_backend().is_tls_enforced:
            return None
        if self._contexts is None or self._contexts[0] != tls:
            self._contexts = tls, tls_contexts(tls)
        return self._contexts[1]()

    def _admin(self, client: RemotingClient) -> Admin:
        def follow(token: int) -> None:
            """Take a greater token.

            The holder of the directory is its only operator, so the greater token was given when the clock was ahead.
            """
            admin.operator_token = self._directory.count_start(token)

        admin = Admin(
            client,
            OPERATOR_ACCOUNT,
            self._directory.read_operator_secret(),
            self._directory.count_start(),
            follow,
            cluster_secret=read_cluster_secret(self._directory.cluster_secret),
        )
        return admin

    async def _end(self, client: RemotingClient, groups: asyncio.Task[None]) -> None:
        groups.cancel()
        await asyncio.gather(groups, return_exceptions=True)
        if self._backend is not None:
            await self._backend.stop()
        await client.close()

    async def _reconcile_until_stopped(self) -> None:
        while not self.stop_requested.is_set():
            if self._directory.is_gone():
                # A process that dies could not be restarted, and the next supervisor would find its ports taken.
                raise FailedError(
                    f"{self._directory} was deleted or moved, so its cluster was stopped; move it back and run `orderlymq up`, "
                    "or start a new cluster with `orderlymq up -f FILE`"
                )
            async with self._turn:
                calm = await self._pass_or_problem()
            # An action that fails repeatedly is tried at growing intervals.
            busy_s = min(_IDLE_S, _BUSY_S * 2 ** min(self._failures, _DOUBLINGS_MAX))
            await self._rest(_IDLE_S if calm else busy_s)

    async def _keep_consumer_groups(self) -> None:
        """Reconcile the consumer groups about once a second, outside the turn: slow brokers then delay no command."""
        while True:
            try:
                await self._reconcile_consumer_groups()
            except Exception:
                _log.exception("the reconcile of the consumer groups failed")
            await asyncio.sleep(_GROUPS_S)

    async def _reconcile_consumer_groups(self) -> None:
        """Reconcile the consumer groups if every raft group reports its topics."""
        backend, groups = self._running_backend(), self._observed.groups
        whole = all(found.topics is not None for found in groups.values())
        if self._consumer_groups is None or not groups or not whole:
            return
        await self._consumer_groups.reconcile(
            self.desired,
            {name: backend.group_address(name) for name in groups},
            {name: found.topics or {} for name, found in groups.items()},
            monotonic_ms(),
        )

    async def _rest(self, duration_s: float) -> None:
        """Wait until there is a reason to reconcile again."""
        await wait_for(self._wake, duration_s)
        self._wake.clear()

    async def _pass_or_problem(self) -> bool:
        """Make a pass; an error in it, such as a full disk or a thread that cannot start, must not end the processes."""
        try:
            return await self._pass()
        except OSError as error:
            problem = f"cannot store the wanted state: {in_words(error)}"
        except Exception as error:
            _log.exception("a reconcile failed")
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            problem = f"the last reconcile failed: {error}"
        self._failures += 1
        self._say_problem(problem)
        return False

    async def _pass(self) -> bool:
        """Observe, plan and act; return whether the cluster is in the desired state."""
        backend = self._running_backend()
        self._observed = await backend.observe()
        backend.renew_live()
        self._warn_of_secrets()
        await self._forget_deleted()
        actions, refused = await asyncio.to_thread(plan_accepted, self.desired, self._observed)
        self._report_refused(refused)
        work = [action for action in actions if not isinstance(action, ReportCondition)]
        if not await self._carry_out(actions):
            if self._failed and not refused:
                self._problem = next(iter(self._failed.values())).text
            return False
        self._failures = 0
        if work:
            return False
        left = {Subject(refusal.kind, refusal.name) for refusal in refused}
        wanted = [Subject(it.kind, it.metadata.name) for it in self.desired.resources()]
        if Subject("Cluster", self.desired.cluster.metadata.name) in left:
            return True  # nothing is planned if the Cluster is refused
        if not refused:
            self._say_problem(None)
        ready = all(backend.conditions[it].status == "True" for it in wanted if it not in left)
        if ready and not self.settled:
            self._settle(refused)
        return ready

    def _warn_of_secrets(self) -> None:
        """Say once of each User whose secret cannot be used; a rotation to such a secret does not happen."""
        troubles = dict(self._observed.secret_troubles)
        for name, text in troubles.items():
            if self._secret_troubles.get(name) != text:
                self.event(
                    f"User {name!r}: {text}; brokers do not change the account until then",
                    logging.WARNING,
                )
        self._secret_troubles = troubles

    async def _forget_deleted(self) -> None:
        """Remove deleted objects from the desired state once they are gone."""
        desired = self.desired
        if not (desired.deleted_topics or desired.deleted_consumer_groups or desired.deleted_users):
            return
        kept = without_gone(desired, self._observed)
        if kept != desired:
            await self._directory.save_beside(replace(self._state, desired=kept))
            self._state.desired = kept

    async def _carry_out(self, actions: Sequence[Action]) -> bool:
        """Perform actions until the turn is over; return whether all are done."""
        planned = {chain_of(action) for action in actions}
        self._failed = {chain: it for chain, it in self._failed.items() if chain in planned}
        # Put what failed last: it may take the rest of the turn again.
        order = sorted(actions, key=lambda action: chain_of(action) in self._failed)
        held: set[ActionChain] = set()
        begun = time.monotonic()
        whole, progressed = True, False
        for action in order:
            chain = chain_of(action)
            if chain in held:
                continue
            if await self._perform(action):
                progressed = progressed or not isinstance(action, ReportCondition)
            else:
                held.add(chain)
            if self._is_waited_for() or time.monotonic() - begun > _PASS_S:
                whole = False  # the next pass plans the rest
                break
        if held:
            self._failures = 0 if progressed else self._failures + 1
        self._report_failed()
        return whole and not held

    def _report_failed(self) -> None:
        """Set a condition on each resource whose action failed: why it is not effective."""
        if not self._failed:
            return
        conditions = self._running_backend().conditions
        for item in self.desired.resources():
            if (failure := self._failed.get((item.kind, declared_name(item)))) is not None:
                report = ConditionReport("False", "Progressing", failure.text)
                conditions[Subject(item.kind, item.metadata.name)] = report

    def _is_waited_for(self) -> bool:
        """Return whether a change waits for the turn, or the end is requested."""
        return self._changes_waiting > 0 or self.stop_requested.is_set()

    @asynccontextmanager
    async def _turn_for_change(self) -> AsyncIterator[None]:
        """Hold the turn, which is free as soon as the running action is done."""
        self._changes_waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._changes_waiting -= 1
        try:
            yield
        finally:
            self._turn.release()

    def _report_refused(self, refused: Sequence[Refuse]) -> None:
        if refused:
            self._say_problem(str(refused[0]))
        for refusal in refused:
            report = ConditionReport("False", "ResourceConflict", str(refusal))
            subject = Subject(refusal.kind, refusal.name)
            self._running_backend().conditions[subject] = report

    async def _perform(self, action: Action) -> bool:
        chain = chain_of(action)
        known = self._failed.get(chain)
        # Do not report again a failed action that is retried.
        if not isinstance(action, ReportCondition) and (known is None or known.action != action):
            self.event(describe(action))
        try:
            await self._running_backend().perform(action)
        except (AdminError, OSError) as error:
            why = in_words(error) if isinstance(error, OSError) else str(error)
            failure = Failure(action, f"cannot {describe(action)}: {why}")
            if known is None or known.text != failure.text:
                self.event(failure.text)
            self._failed[chain] = failure
            return False
        self._failed.pop(chain, None)
        return True

    def _settle(self, refused: Sequence[Refuse]) -> None:
        """Mark the newest change as effective; *refused* objects were accepted once and are left alone."""
        self._settled_generation = self._generation
        names = ", ".join(sorted({f"{refusal.kind} {refusal.name}" for refusal in refused}))
        left = f", except for what was refused: {names}" if names else ""
        self.event(f"everything matches the manifests{left}")

    # -- changes -------------------------------------------------------------------------------

    async def apply(self, manifests: Sequence[Manifest], *, prune: bool) -> list[str]:
        """Change the desired state; return the first steps, and the settings that change while brokers run.

        The steps are empty only if nothing changed and nothing is under way: an observation may not yet show what the
        first step is.

        Raises:
            ManifestError: the manifests do not fit together.
            RefusedChange: something is not allowed; nothing was changed.
        """
        async with self._turn_for_change():
            desired = await asyncio.to_thread(combine, manifests, self.desired, prune=prune)
            observed = await self._running_backend().observe()
            secrets = await asyncio.to_thread(look_at_secrets, desired.users)
            observed = replace(observed, secrets=secrets.fingerprints)
            actions, refused = await asyncio.to_thread(plan_accepted, desired, observed)
            refusals = await asyncio.to_thread(self._unusable, desired, manifests)
            refusals += of_change(refused, desired, self.desired)
            if refusals:
                raise RefusedChange(refusals)
            lives = [text for _, text in live_changes(self.desired.cluster, desired.cluster)]
            await self._accept(desired)
            for text in lives:
                self.event(text)
            steps = [describe(step) for step in actions if not isinstance(step, ReportCondition)]
            if not steps and not lives and not self.settled:
                return [_UNDER_WAY]
        return steps + lives

    async def forecast(self, manifests: Sequence[Manifest], *, prune: bool) -> Forecast:
        """Return what `apply` would do, without doing it.

        Raises:
            ManifestError: the manifests do not fit together.
        """
        async with self._turn_for_change():
            desired = await asyncio.to_thread(combine, manifests, self.desired, prune=prune)
            unusable = await asyncio.to_thread(self._unusable, desired, manifests)
            if unusable:
                return Forecast(refusals=tuple(unusable))
            observed = await self._running_backend().observe()
            observed = replace(observed, secrets=look_at_secrets(desired.users).fingerprints)
            said = await asyncio.to_thread(forecast, desired, observed)
            return replace(said, resources=(*said.resources, *_not_run_here(manifests)))

    def _unusable(self, desired: Desired, manifests: Sequence[Manifest]) -> list[Refuse]:
        """Return refusals for what *desired* needs and this machine lacks: files, secrets, and ports of added processes."""
        return [
            *unusable_sources(desired.cluster, manifests, running=True),
            *unusable_ports(self._directory, self._state, desired),
        ]

    async def _accept(self, desired: Desired) -> None:
        if desired != self.desired:
            # On disk first: a state that cannot be saved is not accepted.
            await self._directory.save_beside(replace(self._state, desired=desired))
            self._state.desired = desired
            self._generation += 1
            self.event("new manifests accepted")
        kept = {Subject(item.kind, item.metadata.name) for item in desired.resources()}
        conditions = self._running_backend().conditions
        for subject in conditions.keys() - kept:
            del conditions[subject]
        self._wake.set()

    def stop(self) -> None:
        """Request the end."""
        self.stop_requested.set()
        self._wake.set()

    # -- reporting -------------------------------------------------------------------------------

    def event(self, text: str, level: int = logging.INFO) -> None:
        """Record an event for people."""
        _log.log(level, "%s", text)
        self._event_count += 1
        self._events.append(Event(self._event_count, time.time(), text))

    @property
    def events(self) -> tuple[Event, ...]:
        """The last events, the newest at the end."""
        return tuple(self._events)

    def snapshot(self) -> dict[str, Any]:
        """Return everything that commands show, as JSON types."""
        facts = self._backend.facts() if self._backend is not None else {}
        conditions = self._backend.conditions if self._backend is not None else {}
        for group in facts.get("groups", []):
            found = self._observed.groups.get(group["name"])
            group["leader"] = found.leader if found else None
        return {
            "cluster": self.desired.cluster.metadata.name,
            "dataDir": str(self._directory),
            "generation": self._generation,
            "settled": self.settled,
            "problem": self._problem,
            **facts,
            "resources": [
                {
                    "kind": subject.kind,
                    "name": subject.name,
                    "ready": report.status,
                    "reason": report.reason,
                    "message": report.message,
                }
                for subject, report in sorted(conditions.items())
            ],
            "events": [
                {"number": event.number, "at": event.at, "text": event.text}
                for event in self._events
            ],
        }

    def _say_problem(self, text: str | None) -> None:
        if text is not None and text != self._problem:
            self.event(text)
        self._problem = text

    def _report_process(self, name: str, text: str) -> None:
        self.event(f"{name} {text}")
        self._wake.set()

    def _running_backend(self) -> LocalBackend:
        if self._backend is None:
            raise AssertionError("the supervisor does not run")
        return self._backend


def _not_run_here(manifests: Sequence[Manifest]) -> Iterator[ResourceForecast]:
    """Yield the Pipelines with a note, because only Kubernetes runs them.

    `combine` refuses Backups, and leaves Pipelines out.
    """
    text = "has no effect here, because only Kubernetes runs its drivers; run `orderlymq pipeline run FILE`"
    for each in manifests:
        if isinstance(each.resource, Pipeline):
            yield ResourceForecast(Subject("Pipeline", each.resource.metadata.name), note=text)
