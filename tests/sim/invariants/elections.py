"""
The laws of elections: a term has one leader, and no replica leads while an earlier leader has a lease.

Rule: a leader answers without asking while a majority has promised to elect no other. The promises are measured here
by the true time of the run, whatever clocks and settings the replicas have.
"""

from typing import TYPE_CHECKING

from orderlymq_raft import Role, RoleChange

if TYPE_CHECKING:
    from tests.sim.broker.replica import Replica
    from tests.sim.invariants.safety import Laws


class Elections:
    """All elections of one run."""

    def __init__(self, laws: "Laws") -> None:
        self._laws = laws
        self._terms: dict[str, int] = {}
        self._leaders: dict[int, str] = {}

    def opened(self, replica: "Replica") -> None:
        """Note the term in which a replica begins."""
        self._terms[replica.name] = replica.node.term

    def role_changed(self, replica: "Replica", change: RoleChange) -> None:
        """Check that each term has at most one leader, and that no replica's term falls."""
        before = self._terms.get(replica.name, 0)
        if not replica.wiped:
            self._laws.ensure(
                change.term >= before,
                "terms",
                f"{replica.name} went from term {before} to {change.term}",
            )
        self._terms[replica.name] = change.term
        if change.role is Role.LEADER:
            other = self._leaders.setdefault(change.term, replica.name)
            self._laws.ensure(
                other == replica.name,
                "one leader",
                f"{other} and {replica.name} both lead term {change.term}",
            )
            # No client may have asked the former leader yet, so ask it here.
            for each in self._laws.world.replicas.values():
                if each is not replica and each.alive and not each.paused:
                    each.may_answer()

    def answered_by_lease(self, replica: "Replica") -> None:
        """Check that no later term has a leader when a leader answers without asking."""
        newest = max(self._leaders)
        self._laws.ensure(
            newest <= replica.node.term,
            "leader lease",
            f"{replica.name} may answer in term {replica.node.term}, {self._leaders[newest]} leads term {newest}",
        )
