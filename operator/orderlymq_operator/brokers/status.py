"""
Reports of replicas on /status, and the state of their raft group.

Rules: a replica is believed about itself. About other replicas, only the leader of the highest term is believed,
because a leader that was cut off still considers itself the leader for a moment. Each member that it names is a
replica of the raft group, even if no keeper keeps it running.
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
# A learner may lack this many entries when it gets its vote: a raft group writes as many in a moment.
CAUGHT_UP_LAG_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Peer:
    """What the leader knows about a replica: how many entries it lacks, and whether it answers."""

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
        role: the role that it reports: leader, follower, learner, candidate or similar.
        peers: replicas by node id, as the leader sees them; meaningless in the report of another replica.
        voters: members with a vote; None if the replica does not report them.
        learners: members without a vote; None if the replica does not report them.
        disk_used: used share of its disk; None if it does not report it.
        cpu: share of a CPU that it used in the last minute; None if it does not report it.
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
        """The voters and learners; None if the replica does not report them."""
        return None if self.voters is None else self.voters | (self.learners or frozenset())

    @property
    def leads(self) -> bool:
        """Whether the replica considers itself the leader."""
        return self.role == "leader"

    def spares(self, node: int) -> bool:
        """Return whether a majority of the voters would remain without *node*.

        In addition to this leader, only voters count that have nearly the whole log and that the leader has heard
        from very recently.
        """
        voters = self.voters or frozenset()
        near = {each for each, peer in self.peers.items() if peer.active and peer.is_near}
        return 2 * len((near | {self.leader}) & voters - {node}) > len(voters)


@dataclass(frozen=True, slots=True)
class PageAccess:
    """How to request the HTTP pages of a cluster.

    Attributes:
        token: token that the pages require, empty for none; sent only if *tls* says which certificates to trust.
        tls: if None, certificates are not verified, as in probes of Kubernetes. Pages only report facts, and the code
            that acts on them asks the process itself first.
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
    """Return the status of the replica whose HTTP pages are under *url*; None without a usable answer.

    The answer must match *who* (cluster, raft group and node), because another process may have the address by now.
    The brief page is read, because the full one lists findings about messages, whose number depends on clients.
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
    """Return the status in the JSON of /status.

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
    """Return the leader of a raft group, or None, and its replicas: the *known* ones and all members.

    Args:
        known: what is known without asking the replicas: whether each runs, and since when.
        statuses: the answers by node id; replicas that did not answer are missing.
    """
    leading = {node: status for node, status in statuses.items() if status.leads}
    leader = max(leading, key=lambda node: leading[node].term, default=None)
    found = {}
    for node, replica in known.items():
        status = statuses.get(node)
        member = _member(node, replica, leading[leader]) if leader is not None else replica.member
        # Without a leader a replica serves nothing; that counts only once there is a leader.
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
    """Return whether a replica has nearly the leader's whole log, and whether the leader hears from it."""
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
