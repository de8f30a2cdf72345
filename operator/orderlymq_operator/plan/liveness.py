"""
The failure detector: how long replicas and name servers have not answered.

Pure: the caller gives the time. Rule: a process counts as lost only after several observations in a row over some
seconds, and only if its keeper (the kubelet, the supervisor) agrees. A process on a busy machine answers late and is
not lost.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from orderlymq_operator.plan.actions import ObservedGroup, ObservedNameServer

OBSERVATIONS_MIN: Final = 3
SURE_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Report of the keeper of a process.

    Attributes:
        identity: which process it is; a new process starts without a record of silence.
        ready: it serves.
        runs: a process exists.
        leaving: it is being ended or was ended, and its successor does not exist yet.
    """

    identity: str = ""
    ready: bool = False
    runs: bool = False
    leaving: bool = False


class FailureDetector:
    """How long, and in how many observations, each process of one cluster has been unhealthy."""

    def __init__(self) -> None:
        self._since: dict[Hashable, tuple[str, int, int]] = {}

    def group(
        self,
        name: str,
        found: ObservedGroup,
        process_states: Mapping[int, ProcessState],
        now_ms: int,
    ) -> ObservedGroup:
        """Return a raft group whose replicas are marked with what several observations show."""
        replicas = {}
        for node, replica in found.replicas.items():
            witness = process_states.get(node, ProcessState())
            one = witness.identity
            unhealthy = self._lasts((name, node, "unhealthy"), one, not replica.healthy, now_ms)
            silent = self._lasts((name, node, "silent"), one, not replica.answers, now_ms)
            replicas[node] = replace(
                replica,
                failing=unhealthy and not witness.ready,
                ended=silent and not witness.runs,
                leaving=witness.leaving,
            )
        return replace(found, replicas=replicas)

    def name_servers(
        self,
        found: Mapping[int, ObservedNameServer],
        process_states: Mapping[int, ProcessState],
        now_ms: int,
    ) -> dict[int, ObservedNameServer]:
        """Return the name servers marked with what several observations show."""
        servers = {}
        for index, server in found.items():
            witness = process_states.get(index, ProcessState())
            mute = server.order_config is None
            silent = self._lasts(("name server", index), witness.identity, mute, now_ms)
            servers[index] = replace(
                server, failing=silent and not witness.ready, leaving=witness.leaving
            )
        return servers

    def _lasts(self, key: Hashable, identity: str, unhealthy: bool, now_ms: int) -> bool:
        known = self._since.pop(key, None)
        if not unhealthy:
            return False
        since, times = now_ms, 0
        if known is not None and known[0] == identity:
            _, since, times = known
        self._since[key] = identity, since, times + 1
        return times + 1 >= OBSERVATIONS_MIN and now_ms - since >= SURE_MS
