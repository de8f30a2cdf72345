"""
The same cases against the cores, without sockets: ten thousand checks per second.

Laws: for any bytes, reading them raises `FrameError` or nothing, and a core never raises. Its proposals can be
encoded, decoded and applied. Its answers can be written and have a code of the protocol. A request that wants an
answer gets one, at the latest after some time, or its connection is closed. Afterwards the state is valid, a replica
that has only the log has the same state, and the operator is still served.

Cases run in blocks, each in its own world, so that repeating its block up to the case repeats a finding. Blocks are
with and without access control, and with one entry per request or shared ones.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.processors.fetch.sql import compile_sql
from orderlymq_nameserver.kv import KvTable
from orderlymq_nameserver.processor import NameServerCore
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.codec import FrameDecoder, FrameError, encode
from orderlymq_protocol.frame.command import RemotingCommand
from tests.hostile.cases import Case, Generator
from tests.hostile.catalogue import Server
from tests.hostile.families import may_answer
from tests.hostile.findings import Findings, place_of, shown
from tests.hostile.lines import answer_decoder
from tests.hostile.world import EXPIRY_MS, BrokerWorld

BLOCK: Final = 1_000
_CONNECTIONS: Final = 8
# Requests whose proposals share an entry, in every other pair of blocks.
_SHARED: Final = 7
# Longer than any request may wait, including what a leader does on its own in that time.
_PATIENCE_MS: Final = 60_000
_STEP_MS: Final = 500
# The token of an operator that has taken over some hundred times, or that came ten minutes after the first.
_OPERATOR_TOKEN: Final = "600"


@dataclass(slots=True)
class InProcess:
    """Runs blocks of cases and records what breaks.

    Attributes:
        slow_s: CPU time of one request above which it is a finding; None if times are not measured.
        reached: the codes that got an answer.
    """

    seed: int
    findings: Findings
    slow_s: float | None = None
    reached: set[tuple[Server, int]] = field(default_factory=set)
    requests: int = 0

    def run(self, first: int, count: int) -> Iterator[int]:
        """Run *count* cases from *first* on, block by block; yield after each how many are done."""
        # A broker makes the parser before it serves, too (`orderlymq_broker.__main__`).
        compile_sql("a IS NULL")
        generator = Generator(self.seed)
        for start in range(first - first % BLOCK, first + count, BLOCK):
            stop = min(start + BLOCK, first + count)
            number = start // BLOCK
            block = _Block(self, generator, guarded=bool(number & 1), settles_each=not number & 2)
            block.run(range(start, stop))
            self.requests += stop - start
            yield self.requests


class _Block:
    """Some hundred cases in one world."""

    def __init__(
        self, owner: InProcess, generator: Generator, *, guarded: bool, settles_each: bool
    ) -> None:
        self._settles_each = settles_each
        self._owner = owner
        self._generator = generator
        self._guarded = guarded
        self._case: Case
        self._unanswered: dict[int, Case] = {}
        self._renew()

    def _renew(self) -> None:
        self._world = BrokerWorld(guarded=self._guarded)
        self._shell = self._world.shell
        self._name_server = NameServerCore(KvTable(), expiry_ms=EXPIRY_MS)
        self._callers = [Caller(100 + n, "192.0.2.77", 50_000 + n) for n in range(_CONNECTIONS)]
        self._decoders = [answer_decoder() for _ in self._callers]
        self._unanswered.clear()
        self._next_connection = 200

    def run(self, numbers: range) -> None:
        """Run the cases, then check the final laws."""
        for number in numbers:
            self._case = case = self._generator.case(number)
            # Any exception that escapes is a finding; the world may be broken then.
            try:
                if case.server is Server.BROKER:
                    self._to_broker(case)
                else:
                    self._to_name_server(case)
            except Exception as error:
                self._note("a request breaks the core", place_of(error), str(error))
                self._renew()
                continue
        self._law("time breaks the core", self._pass_time)
        self._law("the state is broken", self._shell.state.check_invariants)
        self._law("the log proves another state", self._shell.replay)
        self._law("the operator is not served", self._serve_operator)

    def _law(self, law: str, check: Callable[[], None]) -> None:
        try:
            check()
        except Exception as error:
            self._note(law, place_of(error), str(error))
            self._renew()

    def _note(self, law: str, where: str, detail: str, case: Case | None = None) -> None:
        case = case or self._case
        repeat = f"make hostile SEED={self._owner.seed} CASE={case.number}"
        self._owner.findings.add(law, where, f"{detail} | {shown(case)}", repeat, case.code)

    def _note_slow(self, law: str, began: float) -> None:
        spent = time.thread_time() - began
        if self._owner.slow_s is not None and spent > self._owner.slow_s:
            self._note(law, f"code {self._case.code}", f"{spent * 1000:.0f} ms")

    def _to_broker(self, case: Case) -> None:
        began = time.thread_time()
        index = case.number % _CONNECTIONS
        caller = self._callers[index]
        try:
            commands = self._decoders[index].receive_data(case.frame)
        except FrameError as error:
            commands = error.commands
            self._hang_up(index)
        if case.wants_answer and commands:
            self._unanswered[case.opaque] = case
        if case.ends_stream and self._decoders[index].buffered_bytes:
            self._hang_up(index)
        shell = self._shell
        for command in commands:
            shell.run(shell.core.handle(command, caller, shell.now))
        self._note_slow("a request takes too long", began)
        if self._settles_each or case.number % _SHARED == 0:
            began = time.thread_time()
            shell.settle()
            self._note_slow("what was proposed takes too long to apply", began)
            self._take_answers()
        if case.number % 50 == 0:
            shell.pass_time(100)

    def _take_answers(self) -> None:
        shell = self._shell
        for send in shell.sent:
            self._check_answer(send.command)
        shell.sent.clear()
        for close in shell.closed:
            for index, caller in enumerate(self._callers):
                if caller.connection == close.connection:
                    self._hang_up(index)
        shell.closed.clear()

    def _check_answer(self, command: RemotingCommand) -> None:
        case = self._unanswered.pop(command.opaque, None)
        if not command.is_response:
            return
        try:
            encode(command)
        except FrameError as error:
            self._note("an answer cannot be written", f"code {command.code}", str(error), case)
        if case is not None:
            if not may_answer(case.code, command.code):
                law = "an answer has a code that its request cannot have"
                self._note(law, str(command.code), "", case)
            self._owner.reached.add((case.server, case.code))

    def _hang_up(self, index: int) -> None:
        caller = self._callers[index]
        shell = self._shell
        shell.run(shell.core.connection_closed(caller.connection))
        self._callers[index] = Caller(self._next_connection, caller.host, caller.port)
        self._decoders[index] = answer_decoder()
        self._next_connection += 1
        lost = [o for o, case in self._unanswered.items() if case.number % _CONNECTIONS == index]
        for opaque in lost:
            del self._unanswered[opaque]

    def _pass_time(self) -> None:
        shell = self._shell
        shell.settle()
        shell.pass_time(_PATIENCE_MS, step=_STEP_MS)
        self._take_answers()
        for case in self._unanswered.values():
            self._note("a request has no answer", f"code {case.code}", "", case)
        self._unanswered.clear()

    def _serve_operator(self) -> None:
        if self._guarded:
            return
        ext = {"operatorToken": _OPERATOR_TOKEN, "consumerGroup": "billing", "action": "notify"}
        reply = self._world.ask(RemotingCommand(RequestCode.ORDERLYMQ_SET_ASSIGNMENT, 1, 0, ext))
        assert reply is not None, "no answer to the operator's notice"
        assert reply.code == ResponseCode.SUCCESS, reply.remark

    def _to_name_server(self, case: Case) -> None:
        began = time.thread_time()
        try:
            commands = FrameDecoder().receive_data(case.frame)
        except FrameError as error:
            commands = error.commands
        now_ms = case.number
        for command in commands:
            if command.is_response:
                continue
            self._name_server.knows_too_little(command, now_ms)
            reply = self._name_server.handle(command, case.number % _CONNECTIONS, now_ms)
            self._unanswered[command.opaque] = case
            self._check_answer(reply)
        self._note_slow("a request takes too long", began)
        if case.number % 50 == 0:
            self._name_server.routes.expire(now_ms)
            self._name_server.routes.dump(now_ms)
