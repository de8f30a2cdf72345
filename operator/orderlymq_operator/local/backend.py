"""
The local backend: it observes the processes of one machine and performs the planner's actions with them.

Rule: everything that must survive a crash is on disk before the action begins, so that any action may be repeated. A
replica is recorded before its process starts. Before its data is set aside it is recorded as one that joins, because
without its data it must never begin the raft group again. Its record is removed after its data was set aside.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import aiohttp

from orderlymq_operator.brokers.admin import Admin
from orderlymq_operator.brokers.requests import perform_remote
from orderlymq_operator.brokers.status import ReplicaStatus, observe_replicas, read_status
from orderlymq_operator.brokers.tables import Tables, read_name_server, read_tables
from orderlymq_operator.local.directory import DataDirectory, State
from orderlymq_operator.local.keeper import Keeper, Report, end_in_waves
from orderlymq_operator.local.processes import (
    Program,
    group_address,
    group_index,
    name_server_address,
    name_server_name,
    name_server_program,
    replica_name,
    replica_program,
)
from orderlymq_operator.local.secrets import look_at_secrets, read_secret
from orderlymq_operator.plan.actions import (
    Action,
    ConditionReport,
    Observed,
    ObservedGroup,
    ObservedNameServer,
    ObservedReplica,
    Refuse,
    ReportCondition,
    RestartNameServer,
    RestartReplica,
    StartNameServer,
    StartReplica,
    StopReplica,
    Subject,
)
from orderlymq_operator.plan.expansion import topics_under_way
from orderlymq_operator.plan.liveness import FailureDetector, ProcessState
from orderlymq_operator.plan.settings import name_server_revision, revision
from orderlymq_operator.resources.kinds import Cluster, User
from orderlymq_runtime.sockets.addresses import join_address
from orderlymq_runtime.wallclock import monotonic_ms

_log = logging.getLogger(__name__)


class LocalBackend:
    """The processes of one cluster.

    Args:
        state: shared with the supervisor, which changes `state.desired`; saved here when replicas change.
        report: called with the name of a process and what happened to it.
    """

    def __init__(
        self,
        directory: DataDirectory,
        state: State,
        session: aiohttp.ClientSession,
        admin: Admin,
        report: Report,
    ) -> None:
        self.conditions: dict[Subject, ConditionReport] = {}
        self.statuses: dict[str, ReplicaStatus] = {}
        self._directory = directory
        self._state = state
        self._session = session
        self._admin = admin
        self._report = report
        self._keepers: dict[str, Keeper] = {}
        self._name_servers: dict[int, Keeper] = {}
        self._made_of: dict[str, Cluster] = {}  # the Cluster whose settings each process has
        self._expanding: frozenset[str] = frozenset()
        self._detector = FailureDetector()

    @property
    def is_tls_enforced(self) -> bool:
        """Whether some process refuses plain connections; then all processes accept TLS."""
        return "Enforcing" in self._tls_modes

    @property
    def _tls_modes(self) -> frozenset[str]:
        return frozenset(made.spec.tls.mode for made in self._made_of.values())

    @property
    def _cluster(self) -> Cluster:
        return self._state.desired.cluster

    # -- carrying out --------------------------------------------------------------------------

    async def perform(self, action: Action) -> None:
        """Carry out one action.

        Raises:
            AdminError: a broker or name server refused or did not answer; try again later.
        """
        match action:
            case StartNameServer(index):
                self._start_name_server(index)
            case RestartNameServer(index):
                await self._name_servers[index].stop()
                # If it cannot be started now, as on a full disk, it is missing, and the next plan starts it.
                del self._name_servers[index]
                self._start_name_server(index)
            case StartReplica(group, node, join):
                await self._start_replica(group, node, join=join)
            case RestartReplica(group, node):
                name = replica_name(group, node)
                await self._keepers[name].stop()
                del self._keepers[name]  # missing until it is started, as above
                await self._start_replica(group, node, join=self._state.replicas[group][node])
            case StopReplica(group, node):
                await self._stop_replica(group, node)
            case ReportCondition(subject, condition):
                self.conditions[subject] = condition
            case Refuse():
                raise AssertionError("a refused plan is not carried out")
            case _:
                await perform_remote(action, self._admin, self)

    # The addresses and secrets that `requests` asks for.

    def group_address(self, group: str) -> str:
        """Return the stable address of a raft group."""
        return group_address(self._cluster, group)

    def replica_address(self, group: str, node: int) -> str:
        """Return the address at which the other replicas reach a replica."""
        local = self._cluster.spec.local
        return join_address(local.host, local.raft(group_index(group), node))

    def name_server_addresses(self) -> list[str]:
        """Return the addresses of all name servers."""
        return [name_server_address(self._cluster, index) for index in self._name_servers]

    def secret_of(self, user: str) -> str | None:
        """Return the current secret of a User; it is never kept and never shown."""
        for known in self._users:
            if known.metadata.name == user:
                return read_secret(known)
        return None

    def _start_name_server(self, index: int) -> None:
        program = name_server_program(self._cluster, index, self._directory)
        self._name_servers[index] = self._keep(program)
        self._made_of[program.name] = self._cluster

    def _keep(self, program: Program) -> Keeper:
        keeper = Keeper(program, self._directory, self._session, self._report)
        keeper.start()
        return keeper

    async def _start_replica(self, group: str, node: int, *, join: bool) -> None:
        nodes = self._state.replicas.get(group)
        if nodes is None:
            # Record all first members before the first of them starts: each begins with the same list of voters, even
            # if a crash comes in between.
            first = range(1, self._cluster.spec.replicas_per_group + 1)
            nodes = await self._record(group, dict.fromkeys(first, False))
        elif node not in nodes:
            nodes = await self._record(group, {**nodes, node: join})
            for other in nodes:
                name = replica_name(group, other)
                if (keeper := self._keepers.get(name)) is not None:
                    # Its process runs with the settings it was started with, not with the desired ones.
                    keeper.renew(self._replica_program(self._made_of[name], group, other))
        name = replica_name(group, node)
        self._keepers[name] = self._keep(self._replica_program(self._cluster, group, node))
        self._made_of[name] = self._cluster

    async def _record(self, group: str, nodes: dict[int, bool]) -> dict[int, bool]:
        """Record the replicas of a raft group; if that fails, the state in memory does not change either."""
        replicas = {**self._state.replicas, group: nodes}
        await self._directory.save_beside(replace(self._state, replicas=replicas))
        self._state.replicas[group] = nodes
        return nodes

    def _replica_program(self, cluster: Cluster, group: str, node: int) -> Program:
        """Return the program of a replica; once its raft group has grown, none begins the raft group.

        A replica that lost its data would begin the raft group alone.
        """
        nodes = self._state.replicas[group]
        return replica_program(
            cluster, group, node, self._directory, nodes=nodes, join=any(nodes.values())
        )

    def renew_live(self) -> None:
        """Write changed live settings into the settings files of the replicas that need no restart."""
        current = revision(self._cluster)
        for group, nodes in self._state.replicas.items():
            for name, node in ((replica_name(group, node), node) for node in nodes):
                keeper = self._keepers.get(name)
                made = self._made_of.get(name)
                if keeper is None or made is None or revision(made) != current:
                    continue
                program = self._replica_program(self._cluster, group, node)
                if program.settings != keeper.program.settings:
                    keeper.renew(program)
                    self._made_of[name] = self._cluster
                    self._report(name, "reloads its live settings")

    async def _stop_replica(self, group: str, node: int) -> None:
        name = replica_name(group, node)
        nodes = await self._record(group, {**self._state.replicas[group], node: True})
        if (keeper := self._keepers.get(name)) is not None:
            await keeper.stop()
        place = self._directory.set_aside(name)
        await self._record(group, {other: join for other, join in nodes.items() if other != node})
        # Remove the keeper only now: if the cluster is ended meanwhile, this process must be ended too.
        self._keepers.pop(name, None)
        self._made_of.pop(name, None)
        self._report(name, f"was removed; its data is kept in {place}" if place else "was removed")

    # -- observing -------------------------------------------------------------------------------

    async def observe(self) -> Observed:
        """Observe everything at the same time; a process that does not answer within a second is reported as silent."""
        programs = {name: keeper.program for name, keeper in self._keepers.items()}
        groups = [group for group in self._cluster.group_names if group in self._state.replicas]
        async with asyncio.TaskGroup() as tasks:
            statuses = {
                name: tasks.create_task(read_status(self._session, program.url))
                for name, program in programs.items()
            }
            tables = {
                group: tasks.create_task(
                    read_tables(
                        self._admin,
                        self.group_address(group),
                        self._state.desired,
                        self._expanding,
                    )
                )
                for group in groups
            }
            servers = {
                index: tasks.create_task(
                    read_name_server(
                        self._admin,
                        name_server_address(self._cluster, index),
                        self._expanding,
                        registered=False,
                    )
                )
                for index in self._name_servers
            }
        self.statuses = {
            name: status for name, task in statuses.items() if (status := task.result()) is not None
        }
        observed = {group: self._observed(group, task.result()) for group, task in tables.items()}
        self._expanding = topics_under_way(observed)
        secrets = look_at_secrets(self._users)
        return Observed(
            accepted=self._state.desired,
            name_servers=self._observed_name_servers(
                {index: task.result() for index, task in servers.items()}
            ),
            groups=observed,
            conditions=dict(self.conditions),
            tls_modes=self._tls_modes,
            secrets=secrets.fingerprints,
            secret_troubles=secrets.troubles,
        )

    def _observed_name_servers(
        self, answers: Mapping[int, ObservedNameServer]
    ) -> dict[int, ObservedNameServer]:
        found = {}
        for index, answer in answers.items():
            made = self._made_of[name_server_name(index)]
            found[index] = replace(
                answer,
                revision=name_server_revision(made),
                serves_plain=made.spec.tls.mode != "Enforcing",
            )
        states = {index: ProcessState(name_server_name(index)) for index in found}
        return self._detector.name_servers(found, states, monotonic_ms())

    def _observed(self, group: str, tables: Tables) -> ObservedGroup:
        nodes = self._state.replicas[group]
        names = {node: replica_name(group, node) for node in nodes}
        running = {
            node: ObservedReplica(
                running=names[node] in self._keepers,
                join=join,
                revision=revision(made) if (made := self._made_of.get(names[node])) else None,
            )
            for node, join in nodes.items()
        }
        statuses = {
            node: self.statuses[name] for node, name in names.items() if name in self.statuses
        }
        leader, replicas = observe_replicas(running, statuses)
        found = ObservedGroup(leader, replicas, *tables)
        # Whether a process serves is known only from its answers; whether it runs is known here.
        process_states = {
            node: ProcessState(
                name, runs=name in self._keepers and self._keepers[name].pid is not None
            )
            for node, name in names.items()
        }
        return self._detector.group(group, found, process_states, monotonic_ms())

    @property
    def _users(self) -> tuple[User, ...]:
        return self._state.desired.users

    # -- ending --------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End every process: followers, then leaders, then name servers.

        A process that hangs does not delay the others.
        """
        leaders = {name for name, status in self.statuses.items() if status.leads}
        waves = [
            [keeper for name, keeper in self._keepers.items() if name not in leaders],
            [keeper for name, keeper in self._keepers.items() if name in leaders],
            list(self._name_servers.values()),
        ]
        for failure in await end_in_waves(waves):
            _log.error("a process did not end in order", exc_info=failure)

    def facts(self) -> dict[str, Any]:
        """Return the facts about the processes that commands show."""
        return {
            "nameServers": [
                {
                    "index": index,
                    "address": name_server_address(self._cluster, index),
                    "pid": keeper.pid,
                    "restarts": keeper.restarts,
                }
                for index, keeper in sorted(self._name_servers.items())
            ],
            "groups": [
                {
                    "name": group,
                    "address": self.group_address(group),
                    "replicas": [self._replica_facts(group, node) for node in sorted(nodes)],
                }
                for group, nodes in sorted(self._state.replicas.items())
            ],
        }

    def _replica_facts(self, group: str, node: int) -> dict[str, Any]:
        name = replica_name(group, node)
        keeper = self._keepers.get(name)
        status = self.statuses.get(name)
        return {
            "node": node,
            "pid": keeper.pid if keeper else None,
            "restarts": keeper.restarts if keeper else 0,
            "http": keeper.program.url if keeper else None,
            "role": status.role if status else None,
            "term": status.term if status else None,
        }
