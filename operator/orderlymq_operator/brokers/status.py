"""
Reports of replicas on /status, and the state of their raft group.

Rules: a replica is believed about itself. About the others only the leader of the highest term is believed: a leader that
was cut off still takes itself for the leader for a moment. Each member that it names is a replica of the group, whether
anybody keeps it running or not.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import aiohttp
import orjson

from orderlymq_operator.brokers.answers import MISSHAPEN
from orderlymq_operator.brokers.pages import read_page
from orderlymq_operator.plan.actions import Member, ObservedReplica

_TIMEOUT_S: Final = 1.0
# Entries that a learner may lack when it gets its vote: what a group writes in a moment.
CAUGHT_UP_LAG_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Peer:
    """Knowledge of the leader about a replica: how many entries it lacks, and whether it answers."""

    lag: int
    active: bool

    @property
    def is_near(self) -> bool:
        """Whether it has nearly the whole log."""
        return self.lag <= CAUGHT_UP_LAG_MAX


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Report of one replica.

    Attributes:
        role: leader, follower, learner, candidate or the like, as it says.
        peers: replicas by node id, as the leader sees them; of others it is worth nothing.
        voters: members with a vote; None when the replica does not report them.
        learners: likewise without a vote.
        disk_used: used share of its disk; None when it does not report it.
        cpu: share of a CPU that it used in the last minute; likewise.
    """

    role: str
    term: int
    leader: int | None
    peers: Mapping[int, Peer]
    voters: frozenset[int] | None = None
    learners: frozenset[int] | None = None
    disk_used: float | None = None
    cpu: float | None = None

    @property
    def members(self) -> frozenset[int] | None:
        """The voters and learners; None when the replica does not report them."""
        return None if self.voters is None else self.voters | (self.learners or frozenset())

    @property
    def leads(self) -> bool:
        """Whether it believes that it leads."""
        return self.role == "leader"

    def spares(self, node: int) -> bool:
        """Return whether this leader has a majority of the voters beside *node*, with nearly the whole log and heard of just now."""
        voters = self.voters or frozenset()
        near = {each for each, peer in self.peers.items() if peer.active and peer.is_near}
        return 2 * len((near | {self.leader}) & voters - {node}) > len(voters)


@dataclass(frozen=True, slots=True)
class PageAccess:
    """How the HTTP pages of a cluster are asked for.

    Attributes:
        token: what they ask for, empty for none; sent only where *tls* says whom to trust.
        tls: without it no certificate is looked at, as probes of Kubernetes do it: pages report facts, and
            the code that acts on them asks the process itself before.
    """

    scheme: str = "http"
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None


async def read_status(
    session: aiohttp.ClientSession,
    url: str,
    access: PageAccess | None = None,
    who: Mapping[str, object] | None = None,
) -> ReplicaStatus | None:
    """Ask the replica whose HTTP pages are under *url* how it is; None without a sensible answer.

    It is *who* says so by cluster, group and node: another process may have its address by now. The page is the brief one: the
    findings about messages are as long as clients make them.
    """
    access = access or PageAccess()
    headers, context = {}, access.tls or False
    if access.token and access.tls is not None:
        headers["Authorization"] = f"Bearer {access.token}"
    try:
        page = await read_page(
            session, f"{url}/status?brief", _TIMEOUT_S, tls=context, headers=headers
        )
        found = orjson.loads(page)
        if any(found.get(fact, value) != value for fact, value in (who or {}).items()):
            return None
        return parse_status(found)
    except (aiohttp.ClientError, TimeoutError, OSError, *MISSHAPEN):
        return None


def parse_status(data: Mapping[str, Any]) -> ReplicaStatus:
    """Return what the JSON of /status says.

    Raises:
        MISSHAPEN: it lacks something or has another form.
    """
    leader = data["leader"]
    return ReplicaStatus(
        role=str(data["role"]).lower(),
        term=int(data["term"]),
        leader=None if leader in (None, 0) else int(leader),
        peers={
            int(node): Peer(int(facts.get("lag", 0)), bool(facts.get("active", False)))
            for node, facts in (data.get("replicas") or {}).items()
        },
        voters=_nodes(data.get("voters")),
        learners=_nodes(data.get("learners")),
        disk_used=_share((data.get("disk") or {}).get("ratio")),
        cpu=_share(data.get("cpu")),
    )


def observe_replicas(
    known: Mapping[int, ObservedReplica], statuses: Mapping[int, ReplicaStatus]
) -> tuple[int | None, dict[int, ObservedReplica]]:
    """Return the leader of a group, if there is one, and its replicas: the *known* ones and all members.

    Args:
        known: what is known without asking: whether each replica runs, and since when.
        statuses: the answers, by node id; who is silent is missing.
    """
    leading = {node: status for node, status in statuses.items() if status.leads}
    leader = max(leading, key=lambda node: leading[node].term, default=None)
    found = {}
    for node, replica in known.items():
        status = statuses.get(node)
        member = _member(node, replica, leading[leader]) if leader is not None else replica.member
        # Without a leader a replica is alive but of no use; that counts only once there is one.
        follows = status is not None and leader in (node, status.leader)
        near, heard = _caught_up(node, leader, leading) if leader is not None else (False, False)
        found[node] = replace(
            replica,
            member=member,
            answers=status is not None,
            healthy=status is not None and (follows or member == "outside"),
            caught_up=near and heard,
            keeps_up=near and follows,
        )
    if leader is not None:
        for node in (leading[leader].members or frozenset()) - known.keys():
            lost = ObservedReplica(join=True)
            found[node] = replace(lost, member=_member(node, lost, leading[leader]))
    return leader, found


def _member(node: int, replica: ObservedReplica, leader: ReplicaStatus) -> Member:
    if leader.voters is None:
        return "learner" if replica.join else "voter"
    if node in leader.voters:
        return "voter"
    return "learner" if node in (leader.learners or ()) else "outside"


def _caught_up(node: int, leader: int, leading: Mapping[int, ReplicaStatus]) -> tuple[bool, bool]:
    """Return whether a replica has nearly the leader's whole log, and whether the leader hears of it."""
    if node == leader:
        return True, True
    peer = leading[leader].peers.get(node)
    if peer is None:
        return False, False

    return peer.is_near, peer.active


def _share(value: Any) -> float | None:
    return None if value is None else float(value)


def _nodes(value: Any) -> frozenset[int] | None:
    return None if value is None else frozenset(int(node) for node in value)
