"""
The promises between replicas that only their disks can keep: terms, votes, and the content of a log.

Rules (raft, sections 5.1 to 5.4): a vote and its term are durable before they are sent. A log is truncated only where
a leader of a newer term has another entry. They are checked from outside, message by message.
"""

from collections import Counter
from typing import TYPE_CHECKING

from orderlymq_raft import AppendResponse, Message, Vote, VoteResponse

if TYPE_CHECKING:
    from tests.sim.broker.replica import Replica
    from tests.sim.invariants.safety import Laws


class Promises:
    """All promises of one run."""

    def __init__(self, laws: "Laws") -> None:
        self._laws = laws
        self._terms: Counter[str] = Counter()
        self._votes: dict[tuple[str, int], int] = {}

    def opened(self, replica: "Replica") -> None:
        """Check that a replica does not restart in a term before one in which it has sent messages."""
        promised = self._terms[replica.name]
        self._laws.ensure(
            replica.node.term >= promised,
            "terms",
            f"{replica.name} begins in term {replica.node.term}, it has spoken in {promised}",
        )

    def said(self, replica: "Replica", message: Message) -> None:
        """Note a replica's promises: its term, and its vote there."""
        name = replica.name
        if isinstance(message, Vote | VoteResponse | AppendResponse):
            self._terms[name] = max(self._terms[name], message.term)
        if isinstance(message, VoteResponse) and message.granted:
            other = self._votes.setdefault((name, message.term), message.target)
            self._laws.ensure(
                other == message.target,
                "one vote",
                f"{name} votes for {other} and {message.target} in term {message.term}",
            )

    def forgotten(self, replica: "Replica") -> None:
        """Note that a replica has lost its disk, so that its earlier messages do not bind it."""
        self._terms.pop(replica.name, None)
        for key in [key for key in self._votes if key[0] == replica.name]:
            del self._votes[key]

    def tail_cut(self, replica: "Replica", index: int, old: int, new: int) -> None:
        """Check that a log is truncated only where a leader of a newer term has another entry.

        That leader's entry may be older than the truncated one: its own leader lost that entry in a crash, together
        with the entry of its next term at the same index, which no other replica had seen.
        """
        self._laws.ensure(
            old != new and old < replica.node.term,
            "log cut",
            f"{replica.name} in term {replica.node.term} writes entry {index} of term {new} again "
            f"over term {old}",
        )
