"""
Balance of leaders: zones and nodes lead equally many raft groups, as far as the placement of replicas allows.

Pure. A leader does most of the work of its raft group, and after a rolling restart or an outage few nodes lead all of
them. Rules: one leader moves at a time, and only while no process or member changes and no topic expands. Every
replica of every raft group must be healthy, caught up, up to date and ready for a while. A topic or an account that
brokers refuse does not stop the balancing. Each move makes the balance strictly better, so the moves come to an end.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from orderlymq_operator.plan.actions import ObservedGroup, TransferLeadership
from orderlymq_operator.plan.expansion import topics_under_way
from orderlymq_operator.plan.replicas import group_problem
from orderlymq_operator.resources.cluster.cluster import Cluster

Domains = tuple[str, ...]


def leader_move(
    cluster: Cluster, groups: Mapping[str, ObservedGroup]
) -> Iterator[TransferLeadership]:
    """Yield the move that helps most; nothing while a raft group changes, or if no move helps."""
    if cluster.spec.update.leaders != "Balanced" or not _is_calm(cluster, groups):
        return
    leading = {
        name: groups[name].replicas[leader].domains
        for name in cluster.group_names
        if (leader := groups[name].leader) is not None
    }
    best, move = _imbalance(list(leading.values())), None
    for name in cluster.group_names:
        for node, replica in sorted(groups[name].replicas.items()):
            moved = {**leading, name: replica.domains}
            found = _imbalance(list(moved.values()))
            if found < best:
                best, move = found, TransferLeadership(name, node, balances=True)
    if move is not None:
        yield move


def _imbalance(leading: Sequence[Domains]) -> tuple[int, ...]:
    """Return how unequally domains lead, the largest kind of domain first; less is better.

    The sum of squares falls exactly if a leader moves to a domain that has at least two leaders fewer.
    """
    return tuple(
        sum(count**2 for count in Counter(kind).values()) for kind in zip(*leading, strict=True)
    )


def _is_calm(cluster: Cluster, groups: Mapping[str, ObservedGroup]) -> bool:
    """Return whether every replica could lead and its failure domains are known."""
    if any(group_problem(cluster, groups.get(name)) for name in cluster.group_names):
        return False
    if topics_under_way(groups):
        return False
    return all(
        replica.domains and replica.caught_up and not (replica.failing or replica.leaving)
        for name in cluster.group_names
        for replica in groups[name].replicas.values()
    )
