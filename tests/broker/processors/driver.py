"""
A shell for one replica without sockets, raft or clocks: it proposes, applies and calls back.

One turn is one entry, as in the real replication loop; time moves only when a test says so. Every
message passes through the store, so a test sees data that was encoded, written and read.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from orderlymq_broker.core.effects import Caller, CallSoon, Close, Effect, Now, Propose, Send
from orderlymq_broker.processors.dispatch import BrokerCore
from orderlymq_broker.settings import Address, BrokerSettings
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.records import Outcome, Record, decode_records
from orderlymq_broker.state.restoration import fence
from orderlymq_broker.state.statemachine import StateMachine
from orderlymq_broker.state.tables import TableWrites
from orderlymq_broker.store.entry import split_entry
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import message_key
from orderlymq_protocol.frame.command import FLAG_ONEWAY, RemotingCommand
from tests.broker.state.entries import Replica
from tests.broker.store.memory import MemoryStore

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000

ALICE = Caller(1, "192.0.2.1", 40_001)
BOB = Caller(2, "192.0.2.2", 40_002)
TOOL = Caller(9, "192.0.2.9", 40_009)


def settings(**changes: Any) -> BrokerSettings:
    """Return the settings of a broker called broker-a in the cluster shop."""
    plain = BrokerSettings(
        cluster="shop",
        group="broker-a",
        node_id=1,
        peers={1: Address("127.0.0.1", 7001)},
        address=Address("192.0.2.100", 10911),
        http=Address("127.0.0.1", 8001),
        data_dir=Path("unused"),
    )
    return msgspec.structs.replace(plain, **changes)


class Shell:
    """One replica that leads by default."""

    def __init__(
        self, options: BrokerSettings | None = None, store: MemoryStore | None = None
    ) -> None:
        self.settings = options or settings()
        self.store = store or MemoryStore()
        self.state = BrokerState(self.store)
        self.machine = StateMachine(self.state)
        self.core = BrokerCore(self.settings, self.state, self.store)
        self._wall_ms = START_MS
        self.monotonic_ms = 5_000
        self.is_confirmed = True  # The wall clock, confirmed by a majority of the raft group.
        self.term = 0
        self.log: list[bytes] = []
        self.pending: list[Propose] = []
        self.later: list[CallSoon] = []
        self.proposals: list[Propose] = []
        self.sent: list[Send] = []
        self.closed: list[Close] = []
        self.proposed: list[Record] = []
        self._opaque = 0
        self._answers: defaultdict[int, list[RemotingCommand]] = defaultdict(list)

    # -- the world ---------------------------------------------------------------------------------

    @property
    def wall_ms(self) -> int:
        """The wall clock; if a test advances it, that much time has passed."""
        return self._wall_ms

    @wall_ms.setter
    def wall_ms(self, wall_ms: int) -> None:
        self.monotonic_ms += max(0, wall_ms - self._wall_ms)
        self._wall_ms = wall_ms

    def set_clock(self, wall_ms: int) -> None:
        """Set the wall clock without letting time pass."""
        self._wall_ms = wall_ms

    @property
    def now(self) -> Now:
        return Now(self.wall_ms, self.monotonic_ms, self.is_confirmed)

    def lead(self) -> "Shell":
        """Become leader of the next term."""
        self.term += 1
        self.run(self.core.become_leader(self.term, self.state.physical_end, self.now))
        self.settle()
        return self

    def follow(self, *, leader_known: bool = True) -> "Shell":
        self.run(self.core.become_follower(leader_known))
        return self

    def lose_proposals(self) -> None:
        """Lose, for certain, all proposals that are not committed."""
        lost, self.pending = self.pending, []
        self.core.proposals_lost()
        for proposal in lost:
            if proposal.lost is not None:
                self.run(proposal.lost(None))

    def restart(self) -> "Shell":
        """Return a replica that starts from what this one has stored."""
        self.state.check_invariants()
        copy = Shell(self.settings, self.store)
        copy.wall_ms, copy.term, copy.log = self.wall_ms, self.term, self.log
        copy.is_confirmed = self.is_confirmed
        assert copy.state.digest() == self.state.digest()
        return copy

    def restored(self) -> "Shell":
        """Return a replica that starts now from a backup of this one."""
        writes, batch = TableWrites(), Batch()
        fence(self.state, writes, taken_ms=self.wall_ms, restored_ms=self.wall_ms)
        writes.flush(batch)
        self.store.write(batch, sync=True)
        return self.restart()

    def replay(self) -> None:
        """Assert that a replica with only the log reaches the same state."""
        replica = Replica()
        for data in self.log:
            replica.apply(data)
        assert replica.state.digest() == self.state.digest()
        replica.state.check_invariants()

    def pass_time(self, ms: int, *, step: int = 100) -> None:
        """Let time pass, ticking as the loop does."""
        end = self.monotonic_ms + ms
        while self.monotonic_ms < end:
            step_ms = min(step, end - self.monotonic_ms)
            self.wall_ms += step_ms
            self.run(self.core.tick(self.now))
            self.settle()

    # -- requests ----------------------------------------------------------------------------------

    def submit(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        caller: Caller = ALICE,
        version: int = 409,
        oneway: bool = False,
    ) -> int:
        """Hand a request to the core without a turn; return its opaque."""
        self._opaque += 1
        command = RemotingCommand(
            int(code),
            self._opaque,
            FLAG_ONEWAY if oneway else 0,
            ext or {},
            body,
            version=version,
        )
        self.run(self.core.handle(command, caller, self.now))
        return self._opaque

    def ask(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        caller: Caller = ALICE,
        version: int = 409,
        oneway: bool = False,
    ) -> RemotingCommand | None:
        """Hand a request to the core, let it settle, and return its reply if there is one."""
        opaque = self.submit(code, ext, body, caller=caller, version=version, oneway=oneway)
        self.settle()
        return self.reply_to(opaque)

    def call(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", **more: Any
    ) -> RemotingCommand:
        """As ``ask``, for a request that must get a reply."""
        reply = self.ask(code, ext, body, **more)
        assert reply is not None, f"request {code} was not answered"
        return reply

    def reply_to(self, opaque: int) -> RemotingCommand | None:
        replies = self._answers[opaque]
        assert len(replies) <= 1, f"request {opaque} was answered {len(replies)} times"
        return replies[0] if replies else None

    def notified(self, code: int = 40) -> list[int]:
        """Return the connections that got requests of *code*, and forget them."""
        told = [
            s.connection for s in self.sent if not s.command.is_response and s.command.code == code
        ]
        self.sent = [s for s in self.sent if s.command.is_response or s.command.code != code]
        return told

    # -- turns -------------------------------------------------------------------------------------

    def run(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.sent.append(effect)
                    if effect.command.is_response:
                        self._answers[effect.command.opaque].append(effect.command)
                case Close():
                    self.closed.append(effect)
                case CallSoon():
                    self.later.append(effect)
                case Propose():
                    refusal = self.core.context.entries.admit(effect)
                    if refusal is None:
                        self.pending.append(effect)
                    else:
                        self.run(self.core.refused(effect, refusal))

    def settle(self) -> None:
        """Let turns pass until nothing is uncommitted."""
        while self.pending or self.later:
            self.go_on()
            if self.pending:
                self.turn()

    def go_on(self) -> None:
        """Let work that was put off take its next step."""
        later, self.later = self.later, []
        for effect in later:
            self.run(effect.step(self.now))

    def turn(self) -> list[Outcome]:
        """Commit and apply everything proposed so far as one entry."""
        proposals, self.pending = self.pending, []
        self.proposals += proposals
        context = self.core.context
        entries = context.entries
        built = entries.build(proposals, self.wall_ms, context.ages.earliest_ms(self.now))
        misplaced = [id(proposal) for proposal, _ in built.misplaced]
        entries.settle(proposal for proposal, _ in built.misplaced)
        for proposal, refusal in built.misplaced:
            self.run(self.core.refused(proposal, refusal))
        proposals = [each for each in proposals if id(each) not in misplaced]
        entries.proposed(built)
        self.proposed += decode_records(split_entry(built.data).meta)
        outcomes = self.apply(built.data)
        entries.settle(proposals)
        self.run(self.core.applied(outcomes, self.now))
        position = 0
        for proposal in proposals:
            mine = outcomes[position : position + len(proposal.records)]
            position += len(proposal.records)
            if proposal.applied is not None:
                self.run(proposal.applied(mine, self.now))
        return outcomes

    def apply(self, data: bytes) -> list[Outcome]:
        """Apply one entry as any replica does, through the store."""
        self.log.append(data)
        parts = split_entry(data)
        batch = Batch()
        position = 0
        for record in decode_records(parts.meta):
            size = getattr(record, "size", 0)
            if size:
                batch.put(
                    Family.MESSAGES,
                    message_key(parts.physical_start + position),
                    bytes(parts.blob[position : position + size]),
                )
                position += size
        outcomes = self.machine.apply(self.state.applied_index + 1, max(1, self.term), parts, batch)
        self.store.write(batch, sync=True)
        return outcomes
