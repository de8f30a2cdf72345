"""One replica whose peers the test plays: it delivers messages and looks at those that the replica sends."""

from collections.abc import Sequence

from orderlymq_raft import (
    Append,
    AppendResponse,
    Config,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    Index,
    Membership,
    Message,
    NodeId,
    PreVoteResponse,
    Role,
    Term,
    Vote,
    VoteResponse,
)
from tests.raft.harness.replica import Replica

ME, PEER, OTHER = NodeId(1), NodeId(2), NodeId(3)
VOTERS = frozenset({ME, PEER, OTHER})


def entry(index: int, term: int, data: bytes = b"x") -> Entry:
    return Entry(Term(term), Index(index), data)


def solo(
    *terms: int,
    term: int | None = None,
    vote: NodeId | None = None,
    commit: int = 0,
    voters: frozenset[NodeId] = VOTERS,
    jitter: int = 0,
    **settings: int | bool,
) -> Replica:
    """Start node 1 with a log of entries of *terms*; *jitter* is the result of each random draw."""
    config = Config(ME, **settings)  # type: ignore[arg-type]  # one name, one type
    replica = Replica(config, Membership(voters), lambda below: jitter % below)
    replica.storage.append([entry(index, one) for index, one in enumerate(terms, 1)])
    known = term if term is not None else max(terms, default=0)
    replica.storage.set_hard_state(HardState(Term(known), vote, Index(commit)))
    replica.start()
    return replica


def work(replica: Replica) -> list[Message]:
    """Do all turns that are due; return the sent messages."""
    sent: list[Message] = []
    while replica.turns:
        # The test began this turn itself and has seen its messages_now.
        sent += replica.end_turn().messages_after
    while (ready := replica.begin_turn()) is not None:
        sent += ready.messages_now
        sent += replica.end_turn().messages_after
    return sent


def say(replica: Replica, *messages: Message) -> list[Message]:
    """Deliver *messages*; return the messages sent in response."""
    for message in messages:
        replica.step(message)
    return work(replica)


def append(
    term: int,
    prev: tuple[int, int],
    entries: Sequence[Entry] = (),
    *,
    commit: int = 0,
    sender: NodeId = PEER,
) -> Append:
    """Return an append to node 1; *prev* is the index and the term of the entry before it."""
    index, prev_term = Index(prev[0]), Term(prev[1])
    return Append(sender, ME, Term(term), index, prev_term, Index(commit), tuple(entries))


def ack(replica: Replica, index: int, sender: NodeId = PEER) -> AppendResponse:
    return AppendResponse(sender, ME, replica.node.term, Index(index))


def lead(replica: Replica, voters: Sequence[NodeId] = (PEER,)) -> list[Message]:
    """Elect node 1 with the votes of *voters*; return what it sends as the new leader."""
    replica.node.campaign()
    work(replica)
    if replica.node.role is Role.PRE_CANDIDATE:
        term = Term(replica.node.term + 1)
        say(replica, *(PreVoteResponse(node, ME, term, granted=True) for node in voters))
    term = replica.node.term
    sent = say(replica, *(VoteResponse(node, ME, term, granted=True) for node in voters))
    assert replica.node.is_leader
    return sent


def noop(index: int, term: int) -> Entry:
    return Entry(Term(term), Index(index), b"", EntryKind.NOOP)


def heartbeat(term: int, commit: int = 0, round_: int = 1) -> Heartbeat:
    return Heartbeat(PEER, ME, Term(term), Index(commit), round_)


def vote(
    term: int, last: tuple[int, int], sender: NodeId = PEER, *, transfer: bool = False
) -> Vote:
    return Vote(sender, ME, Term(term), Index(last[0]), Term(last[1]), transfer)
