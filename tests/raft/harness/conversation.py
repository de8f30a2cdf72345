"""
Replicas that talk step by step, and print each action in one line.

Commands, one per line; N is a node, M a message as printed. Time-outs are fixed: node N waits
election_ticks + N - 1 ticks.

    group VOTERS [learners=IDS] [new=IDS] [log=N:terms;N:terms] [setting=value ...]
    tick N [times]       campaign N        propose N text...    read N context
    change N add-voter|add-learner|promote|remove M             transfer N M
    ready N              hand out one Ready, do not persist it yet
    persist N            persist and advance the oldest Ready of N
    stabilize [silent] [N ...]    work (only at these) and deliver until nothing happens
    deliver [N]          deliver the waiting messages (for N), without processing the results
    lose [N]             lose the waiting messages (for N)
    cut N [N ...]        lose everything from and to these from now on;  heal
    crash N   wipe N (its disk is replaced)   restart N
    compact N index   status N   log N   snapshot-failed N M
"""

from collections.abc import Callable, Sequence

from orderlymq_raft import (
    AddLearner,
    AddVoter,
    Append,
    AppendResponse,
    Config,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Index,
    InstallSnapshot,
    InstallSnapshotResponse,
    Membership,
    MembershipChange,
    Message,
    NodeId,
    NotLeader,
    PreVote,
    PreVoteResponse,
    PromoteLearner,
    ProposalRefused,
    Ready,
    RemoveNode,
    Role,
    Term,
    TimeoutNow,
    Vote,
    VoteResponse,
)
from tests.raft.harness.memory import MemoryLogStorage
from tests.raft.harness.replica import Replica

_CHANGES: dict[str, Callable[[NodeId], MembershipChange]] = {
    "add-voter": AddVoter,
    "add-learner": AddLearner,
    "promote": PromoteLearner,
    "remove": RemoveNode,
}
_TALK_MAX = 200

_DEFAULTS = Config(NodeId(1))


class Conversation:
    """A raft group, its network, and the lines that it has printed since the last command."""

    def __init__(self) -> None:
        self.replicas: dict[NodeId, Replica] = {}
        self.messages: list[Message] = []
        self.cut: set[NodeId] = set()
        self.lines: list[str] = []

    def handle(self, command: str) -> str:
        """Run *command* and return what it printed."""
        name, *arguments = command.split()
        self.lines = []
        try:
            getattr(self, "do_" + name.replace("-", "_"))(*arguments)
        except NotLeader as error:
            self.lines.append(f"not leader: {error.leader}")
        except ProposalRefused as error:
            self.lines.append(f"refused: {error.reason}")
        return "\n".join(self.lines)

    def replica(self, node: str) -> Replica:
        return self.replicas[NodeId(int(node))]

    def do_group(self, voters: str, *options: str) -> None:
        settings = dict(option.split("=", 1) for option in options)
        learners = _ids(settings.pop("learners", ""))
        newcomers = _ids(settings.pop("new", ""))
        logs = settings.pop("log", "")
        membership = Membership(_ids(voters), learners)
        self.replicas.clear()
        for node in sorted(membership.members | newcomers):
            config = Config(node, **_typed(settings))  # type: ignore[arg-type]  # one name, one type
            known = Membership() if node in newcomers else membership
            self.replicas[node] = Replica(config, known, _fixed(node))
        for log in filter(None, logs.split(";")):
            node_text, terms = log.split(":")
            self._preload(self.replica(node_text), [int(term) for term in terms.split(",")])
        for replica in self.replicas.values():
            replica.start()

    def do_tick(self, node: str, times: str = "1") -> None:
        for _ in range(int(times)):
            self.replica(node).tick()

    def do_campaign(self, node: str) -> None:
        self.replica(node).node.campaign()

    def do_propose(self, node: str, *texts: str) -> None:
        for text in texts:
            term, index = self.replica(node).node.propose(text.encode())
            self.lines.append(f"{index}/{term}")

    def do_read(self, node: str, context: str) -> None:
        self.replica(node).node.read_index(int(context))

    def do_change(self, node: str, kind: str, target: str) -> None:
        change = _CHANGES[kind](NodeId(int(target)))
        term, index = self.replica(node).node.propose_membership(change)
        self.lines.append(f"{index}/{term}")

    def do_transfer(self, node: str, target: str) -> None:
        self.replica(node).node.transfer_leadership(NodeId(int(target)))

    def do_ready(self, node: str) -> None:
        self._begin(self.replica(node))

    def do_persist(self, node: str) -> None:
        self._end(self.replica(node))

    def do_stabilize(self, *options: str) -> None:
        nodes = [self.replica(option) for option in options if option != "silent"]
        for _ in range(_TALK_MAX):
            for replica in nodes or self.replicas.values():
                while replica.is_up and (replica.turns or self._begin(replica)):
                    self._end(replica)
            if not self.messages:
                if "silent" in options:
                    self.lines = []
                return
            self.do_deliver()
        raise AssertionError("replicas talk without end")

    def do_deliver(self, target: str = "") -> None:
        for message in self._take(target):
            replica = self.replicas[message.target]
            if not replica.is_up or self.cut & {message.sender, message.target}:
                self.lines.append(f"{describe(message)} (lost)")
                continue
            self.lines.append(describe(message))
            replica.step(message)

    def do_lose(self, target: str = "") -> None:
        self.lines += [f"{describe(message)} (lost)" for message in self._take(target)]

    def do_cut(self, *nodes: str) -> None:
        self.cut = {NodeId(int(node)) for node in nodes}

    def do_heal(self) -> None:
        self.cut = set()

    def do_crash(self, node: str) -> None:
        self.replica(node).crash()

    def do_wipe(self, node: str) -> None:
        replica = self.replica(node)
        replica.crash()
        replica.storage = MemoryLogStorage(replica.founding)

    def do_restart(self, node: str) -> None:
        self.replica(node).start()

    def do_compact(self, node: str, index: str) -> None:
        replica = self.replica(node)
        allowed = replica.node.compact(Index(int(index)))
        self.lines.append(f"allowed up to {allowed}")
        replica.storage.compact(Index(int(index)))

    def do_snapshot_failed(self, node: str, target: str) -> None:
        self.replica(node).node.report_snapshot(NodeId(int(target)), ok=False)

    def do_status(self, node: str) -> None:
        status = self.replica(node).node.status()
        self.lines.append(
            f"{status.role.value} term={status.term} leader={status.leader} "
            f"commit={status.commit} applied={status.applied} last={status.last_index} "
            f"{_membership(status.membership)}"
        )
        for peer, progress in status.progress.items():
            activity = "active" if progress.is_alive else "silent"
            self.lines.append(
                f"  {peer}: match={progress.match} next={progress.next} "
                f"{progress.state.value} {activity}"
            )

    def do_log(self, node: str) -> None:
        storage = self.replica(node).storage
        low, end = storage.first_index(), Index(storage.last_index() + 1)
        entries: Sequence[Entry] = storage.entries(low, end, 1 << 30) if low < end else ()
        self.lines.append(_entries(entries))

    def _take(self, target: str) -> list[Message]:
        taken = [one for one in self.messages if not target or one.target == int(target)]
        self.messages = [one for one in self.messages if one not in taken]
        return taken

    def _begin(self, replica: Replica) -> bool:
        ready = replica.begin_turn()
        if ready is None:
            return False
        self.messages += ready.messages_now
        self.lines += describe_ready(replica.id, ready)
        replica.delivered.clear()
        return True

    def _end(self, replica: Replica) -> None:
        self.messages += replica.end_turn().messages_after

    def _preload(self, replica: Replica, terms: list[int]) -> None:
        replica.storage.append(
            [
                Entry(Term(term), Index(position), b"old", EntryKind.NORMAL)
                for position, term in enumerate(terms, 1)
            ]
        )
        replica.storage.set_hard_state(HardState(Term(terms[-1])))


def describe(message: Message) -> str:
    """Return *message* as one line."""
    what = f"{message.sender}>{message.target} {type(message).__name__} t{message.term}"
    match message:
        case Append():
            prev = f"{message.prev_index}/{message.prev_term}"
            return f"{what} after={prev} commit={message.commit} {_entries(message.entries)}"
        case AppendResponse():
            if message.reject:
                hint = f"{message.hint_index}/{message.hint_term}"
                return f"{what} reject={message.index} hint={hint}"
            return f"{what} index={message.index}"
        case Heartbeat():
            return f"{what} commit={message.commit} round={message.context}"
        case HeartbeatResponse():
            return f"{what} round={message.context}"
        case PreVote() | Vote():
            transfer = " transfer" if isinstance(message, Vote) and message.transfer else ""
            return f"{what} last={message.last_index}/{message.last_term}{transfer}"
        case PreVoteResponse() | VoteResponse():
            return f"{what} {'granted' if message.granted else 'refused'}"
        case InstallSnapshot():
            meta = message.meta
            return f"{what} at={meta.index}/{meta.term} {_membership(meta.membership)}"
        case InstallSnapshotResponse():
            return f"{what} index={message.index}"
        case TimeoutNow():
            return what


def describe_ready(node: NodeId, ready: Ready) -> list[str]:
    """Return the new items in *ready*, one line for each kind."""
    lines = []
    if ready.role_change is not None:
        change = ready.role_change
        follows = "" if change.role is Role.LEADER else f", follows {change.leader}"
        lines.append(f"{node} is {change.role.value} of term {change.term}{follows}")
    if ready.snapshot is not None:
        lines.append(f"{node} installs snapshot at {ready.snapshot.index}/{ready.snapshot.term}")
    if ready.entries:
        lines.append(f"{node} stores {_entries(ready.entries)}")
    if ready.committed:
        lines.append(f"{node} applies {_entries(ready.committed)}")
    lines += [f"{node} may read {read.context} at {read.index}" for read in ready.read_states]
    return lines


def _entries(entries: Sequence[Entry]) -> str:
    return "[" + " ".join(_entry(entry) for entry in entries) + "]"


def _entry(entry: Entry) -> str:
    match entry.kind:
        case EntryKind.NORMAL:
            text = entry.data.decode() if len(entry.data) < 10 else f"{len(entry.data)}B"
        case EntryKind.NOOP:
            text = "noop"
        case EntryKind.CONFIG:
            text = _membership(Membership.decode(entry.data))
    return f"{entry.index}/{entry.term}:{text}"


def _membership(membership: Membership) -> str:
    voters = ",".join(str(node) for node in sorted(membership.voters)) or "none"
    learners = ",".join(str(node) for node in sorted(membership.learners))
    return f"voters={voters}" + (f"+learners={learners}" if learners else "")


def _typed(settings: dict[str, str]) -> dict[str, int | bool]:
    """Return the settings with the types that `Config` declares; a script writes 0 for False and 1 for True."""
    return {
        key: bool(int(value)) if isinstance(getattr(_DEFAULTS, key), bool) else int(value)
        for key, value in settings.items()
    }


def _ids(text: str) -> frozenset[NodeId]:
    return frozenset(NodeId(int(part)) for part in text.split(",") if part)


def _fixed(node: NodeId) -> Callable[[int], int]:
    return lambda below: (node - 1) % below
