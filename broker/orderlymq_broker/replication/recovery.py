"""
Recovery mode: a replica whose disk was wiped must not vote as if it had its log, not even for itself.

A voter that comes back with an empty directory may have acknowledged entries that it no longer has. Its vote
could then elect a leader without them. It cannot tell that from the beginning of a new raft group. The rule:
it is recovering until a leader names a commit index and the replica has everything up to it. The first leader
of a group is recovering itself and names none until the group is bootstrapped. For the effect in the core see
`Node.set_recovering`.

A recovering replica says so on every new connection, because the leader still counts what it had
acknowledged. That leader may be one that this replica has helped to depose. So the leader counts nothing new
from it either, and names no commit index, until the others have confirmed that leader
(`reads.proves_leadership_since_loss`).

The mark is kept in the store, so that a restart during recovery does not end it. Its removal is synced even
if nothing else is written: the group counts on this replica from then on, and a restart must not begin
recovery again.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from orderlymq_broker.store.kv import Batch, Family, Reader
from orderlymq_broker.store.layout import META_RECOVERY
from orderlymq_raft import Append, Heartbeat, Message
from orderlymq_raft.types import Index

# How many entries a replica may lack of those that a leader names: what a raft group writes within a moment.
LACKED_MAX: Final = 1_000


class Recovery:
    """Whether this replica may vote; *active* from an empty start until the replica has caught up."""

    def __init__(self, reader: Reader) -> None:
        self.active = reader.get(Family.META, META_RECOVERY) is not None
        # The highest commit index that a leader has named.
        self._named = Index(0)
        # Set once the replica has everything that a leader names: the index up to which its log must become
        # durable.
        self._owed: Index | None = None
        self._is_ending = False

    @staticmethod
    def begin(batch: Batch) -> None:
        """Mark a replica that starts without data as recovering."""
        batch.put(Family.META, META_RECOVERY, b"\x01")

    def heard(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages in the form that the core may see."""
        if not self.active:
            return messages
        return [_without_memory(each) for each in messages]

    def note_commit(self, messages: Sequence[Message], commit: Index) -> None:
        """Note the leader's commit index in *messages*, and whether a replica that recovers has all of it.

        *commit* is the index up to which its own log is committed.
        """
        commits = [message.commit for message in messages if isinstance(message, Append)]
        if not commits:
            return
        named = max(commits)
        self._named = max(self._named, named)
        if self.active and self._owed is None and 0 < named <= commit:
            self._owed = named

    def lacks(self, stable: Index, offered: Index) -> bool:
        """Return whether a follower whose log is durable up to *stable* cannot replace another replica yet.

        That holds while it recovers, or lacks much of what its group has committed. A state that a leader has
        *offered* ends at a committed entry that the log can no longer provide.
        """
        return self.active or offered > stable or self._named - stable > LACKED_MAX

    def has_caught_up(self, stable: Index) -> bool:
        """Return whether a recovering replica, whose log is durable up to *stable*, has caught up on its disk.

        Entries only in memory are not enough to vote: a crash after the mark was removed would lose them.
        """
        is_whole = self._owed is not None and stable >= self._owed
        return self.active and is_whole and not self._is_ending

    def begin_end(self, batch: Batch) -> None:
        """Remove the mark in *batch*; the recovery goes on until that is durable."""
        self._is_ending = True
        batch.delete(Family.META, META_RECOVERY)

    def end(self, batch: Batch) -> None:
        """Vote from now on: the log is complete, for instance because this replica was elected."""
        self.active = False
        batch.delete(Family.META, META_RECOVERY)


def _without_memory(message: Message) -> Message:
    # A leader that does not know of the loss yet names a commit index that this replica had reached before.
    return replace(message, commit=Index(0)) if isinstance(message, Heartbeat) else message
