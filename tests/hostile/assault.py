"""
Cases against real processes: batches over many connections, a probe after each, and checks of the processes.

Laws: the same processes serve under the same ids; leader and term stay; no event loop is blocked for a tenth of a
second of its own CPU time; memory stays bounded; a request that wants an answer gets one with a code of the protocol,
or its connection is closed; no answer shows an uncaught exception; the legitimate clients' history is valid. If a
process ends, it is started again, the case that ended it is searched for, and the run goes on.
"""

import itertools
import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from orderlymq_broker.server.adminrequests import membership_change
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.codec import FrameDecoder, FrameError, encode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.send import SEND_CODES
from orderlymq_runtime.security.clustersecret import derived_key, read_cluster_secret
from tests.hostile import pages, peers
from tests.hostile.cases import Case, Generator
from tests.hostile.catalogue import Server
from tests.hostile.families import may_answer
from tests.hostile.findings import Findings, shown
from tests.hostile.lines import Line, exchange, paced
from tests.hostile.target import JUDGED_TOPIC, Target

BATCH: Final = 600
_LASTING: Final = {Server.BROKER: 12, Server.NAME_SERVER: 3}
_ANSWER_TIMEOUT_S: Final = 10.0
_LOOK_EVERY_S: Final = 1.0
# A pull may be held for so long; an administrator's request may wait for a consumer that is asked in turn.
_PATIENCE_S: Final = 60.0
_ENDING_S: Final = 2.0
# The most slow streams that stay open.
_SLOW_OPEN_MAX: Final = 20
# Each of these costs a restart, and the first few show everything.
_ENDS_OF_STRANGERS_MAX: Final = 3
_MEMORY_MAX: Final = 900 << 20
_CALLS_PER_LOOK: Final = 50
# Some of the requests sign out.
_CALLS_PER_SESSION: Final = 25
# `failure_reply` and `Router` report an unexpected exception in this form.
_UNCAUGHT: Final = re.compile(r"^[A-Z]\w*(?:Error|Exception|Exit|Interrupt): ")
_SERVER_ERROR: Final = 500
# Not ready, and a method or a version that is not served.
_HONEST: Final = frozenset({501, 503, 505})
_LAW_DEAD: Final = "a process ends"
_LAW_HUNG: Final = "a process hangs"


@dataclass(slots=True)
class Assault:
    """Attacks one target with the cases of one seed."""

    target: Target
    seed: int
    findings: Findings
    servers: tuple[Server, ...] = tuple(Server)
    requests: int = 0
    closed: int = 0
    ends: int = 0
    changes: int = 0
    stalls_of_the_machine: int = 0
    stalls_seen: int = 0
    longest_batch_s: float = 0.0
    worst_stall_s: float = 0.0
    memory_max: int = 0
    forged_away: int = 0
    untold: int = 0
    reached: set[tuple[Server, int]] = field(default_factory=set)
    _lines: dict[Server, list[Line]] = field(default_factory=dict)
    _unanswered: dict[int, tuple[float, Case, Line]] = field(default_factory=dict)
    _slow: deque[Line] = field(default_factory=deque)
    _opaque: Iterator[int] = field(default_factory=lambda: itertools.cycle(range(1, 1 << 19)))
    _leadership: tuple[int, int] | None = None
    _stalls: dict[str, tuple[int, int]] = field(default_factory=dict)
    _looked_at: float = 0.0
    _repeats: bool = False
    # A peer did not answer: check which process hangs.
    _is_silent: bool = False
    _generator: Generator = field(init=False)

    def __post_init__(self) -> None:
        self._generator = Generator(self.seed, servers=self.servers)
        self._begin()

    def _begin(self) -> None:
        """Take the present leadership and stalls as the state that must stay."""
        self._leadership = self.target.leadership()
        self._stalls = {name: (each.wall, each.cpu) for name, each in self.target.stalls().items()}
        for lines in self._lines.values():
            for line in lines:
                line.close()
        self._lines = {}
        self._unanswered.clear()

    @property
    def told(self) -> str:
        """Return the figures of the run so far, as the record has them."""
        return (
            f"{self.ends} ends, {self.changes} changes of leader, {self.stalls_seen} stalls with CPU time, the worst below "
            f"{self.worst_stall_s} s"
        )

    def run(self, first: int, count: int, go_on: Callable[[], bool]) -> Iterator[int]:
        """Send *count* cases from *first* on; yield after each batch how many were sent."""
        for start in range(first, first + count, BATCH):
            numbers = range(start, min(start + BATCH, first + count))
            self.attack([self._generator.case(number) for number in numbers])
            yield self.requests
            if not go_on():
                break
        self._look(())

    def attack(self, cases: Sequence[Case]) -> None:
        """Send a batch and check its effects."""
        cases = [case for case in cases if not _is_forbidden(case)]
        began = time.monotonic()
        self._send(cases)
        self.longest_batch_s = max(self.longest_batch_s, time.monotonic() - began)
        self.requests += len(cases)
        if self.target.dead():
            self._after_death(cases)
        elif self._is_silent or time.monotonic() - self._looked_at > _LOOK_EVERY_S:
            self._look(cases)

    # -- sending ---------------------------------------------------------------------------------

    def _send(self, cases: Sequence[Case]) -> None:
        lines: list[Line] = []
        try:
            for server in self.servers:
                lines += self._loaded(server, [case for case in cases if case.server is server])
        except OSError as error:
            if not self.target.dead():
                self._note("a server takes no connection", "", str(error), cases)
            return
        for line, command in exchange(lines, _ANSWER_TIMEOUT_S):
            self._check(line, command)
        self._look_at(lines, cases)

    def _look_at(self, lines: Sequence[Line], cases: Sequence[Case]) -> None:
        """Note which connections ended, and how, after all have answered or time is up."""
        lasting = {id(line) for each in self._lines.values() for line in each}
        closed: list[Line] = []
        for line in lines:
            if line.unread:
                self._note("no client can read an answer", "", line.unread, cases)
            if line.pace and line.is_open:
                # The rest of the stream is held back for some time.
                self._slow.append(line)
                if len(self._slow) > _SLOW_OPEN_MAX:
                    self._slow.popleft().close()
            elif id(line) not in lasting:
                line.close()
            elif not line.is_open:
                closed.append(line)
            elif not line.is_done:
                self._note("a probe has no answer", "", "", cases)
                self._is_silent = True
                line.close()
        self.closed += len(closed)
        if closed and not self.target.dead() and self.target.leadership() == self._leadership:
            # A leader that hands over closes all connections; its own log lines report that.
            for line in closed:
                if not self.target.has_told_of(line.port, line.local_port):
                    self.untold += 1

    def _loaded(self, server: Server, cases: Sequence[Case]) -> list[Line]:
        """Return connections with the cases for one server on them, and a probe after those that last."""
        rng = random.Random(cases[0].number if cases else 0)
        lasting = self._lasting(server)
        lines = list(lasting)
        for case in cases:
            # Closed when everything is written: a case that ends a stream may get no answer.
            if case.ends_stream:
                pace, said = paced(self.seed, case.number, case.frame)
                line = Line(self._port(server), pace)
                lines.append(line)
            else:
                line, said = rng.choice(lasting), case.frame
            line.out += said
            if case.wants_answer:
                self._unanswered[case.opaque] = (time.monotonic(), case, line)
        for line in lasting:
            self._probe(server, line)
        return lines

    def _port(self, server: Server) -> int:
        group = self.target.group
        return group.port if server is Server.BROKER else group.name_server_port

    def _lasting(self, server: Server) -> list[Line]:
        lines = [line for line in self._lines.get(server, ()) if line.is_open]
        while len(lines) < _LASTING[server]:
            lines.append(Line(self._port(server)))
        self._lines[server] = lines
        return lines

    def _probe(self, server: Server, line: Line) -> None:
        line.awaited = next(self._opaque)
        if server is Server.BROKER:
            command = request(RequestCode.GET_MAX_OFFSET, {"topic": JUDGED_TOPIC, "queueId": "0"})
        else:
            command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": JUDGED_TOPIC})
        self.target.signed(command)
        command.opaque = line.awaited
        line.out += encode(command)

    # -- other ports -----------------------------------------------------------------------------

    def ask_pages(self, first: int, count: int) -> None:
        """Request the pages of every process."""
        group = self.target.group
        ports = [self.target.name_server_http, *(group.http_ports[node] for node in group.brokers)]
        for number in range(first, first + count):
            self._ask(ports[number % len(ports)], pages.page(self.seed, number), "page", number)
        self._look(())

    def ask_console(self, first: int, count: int) -> None:
        """Request the pages of the console, mostly as a user who may change something."""
        for number in range(first, first + count):
            if (number - first) % _CALLS_PER_SESSION == 0:
                session = self.target.sign_in()
            request = pages.console_request(self.seed, number, session)
            self._ask(self.target.console_port, request, "console", number)
            if self.target.dead():
                where, detail = self.target.last_error("console")
                self._note_other("a request ends the console", where, detail, "console", number)
                self._revive(self._repeat_other("console", number))
        self._look(())

    def _ask(self, port: int, request: bytes, option: str, number: int) -> None:
        status = pages.ask(port, request)
        if status is not None and status >= _SERVER_ERROR and status not in _HONEST:
            self._note_other("a page fails", f"status {status}", "", option, number)

    def call_as_stranger(self, first: int, count: int) -> None:
        """Speak to the replicas' ports without the cluster's secret; no process may end, and the leader must stay."""
        for start in range(first, first + count, _CALLS_PER_LOOK):
            numbers = range(start, min(start + _CALLS_PER_LOOK, first + count))
            # A busy machine starves a leader, too; a change that strangers cause twice is their doing.
            if self._deposes(numbers) and self._deposes(numbers):
                detail = f"calls {numbers.start} to {numbers.stop - 1}"
                self._note_other("a stranger deposes the leader", "", detail, "peer", start)

    def _deposes(self, numbers: range) -> bool:
        ends = self.ends
        self._call(numbers, None)
        self._end_hung(self._repeat_other("peer", numbers.start))
        changed = self.ends == ends and self.target.leadership() != self._leadership
        if changed:
            self.changes += 1
            self.target.group.wait_for_leader()
        self._begin()
        return changed

    def call_as_liar(self, first: int, count: int) -> None:
        """Speak there with the secret, as a lying replica; it may cause changes of leader, which are only counted."""
        secret = read_cluster_secret(self.target.group.cluster_secret)
        self._call(range(first, first + count), derived_key(secret, "replicas"))
        self._end_hung(self._repeat_other("liar", first))
        try:
            self.target.group.wait_for_leader()
        except AssertionError:
            # A known limit, see docs/evidence/hostile.md: a peer that has the secret is believed.
            self.forged_away += 1
            self.target.revive()
        self._begin()

    def _call(self, numbers: range, key: bytes | None) -> None:
        option, law = ("peer", "a stranger") if key is None else ("liar", "a replica that lies")
        ends_max = self.ends + _ENDS_OF_STRANGERS_MAX
        for number in numbers:
            if self.ends >= ends_max:
                break
            group = self.target.group
            node = 1 + number % group.replicas
            term = (self._leadership or (0, 1))[1]
            stranger = peers.Stranger(self.seed, number, node, term, key)
            peers.send(group.raft_ports[node], stranger)
            if self.target.dead():
                for name in self.target.dead():
                    where, detail = self.target.last_error(name)
                    self._note_other(f"{law} ends a replica", where, detail, option, number)
                self._revive(self._repeat_other(option, number))
            elif key is not None and number % _CALLS_PER_LOOK == 0:
                self._leadership = self.target.leadership() or self._leadership

    def _note_other(self, law: str, where: str, detail: str, option: str, number: int) -> None:
        self.findings.add(law, where, detail, self._repeat_other(option, number))

    def _repeat_other(self, option: str, number: int) -> str:
        guarded = " GUARDED=1" if self.target.guarded else ""
        return f"make hostile SEED={self.seed} ARGS='--{option} {number}'{guarded}"

    # -- answers ---------------------------------------------------------------------------------

    def _check(self, line: Line, command: RemotingCommand) -> None:
        if not command.is_response:
            return
        _, case, _ = self._unanswered.pop(command.opaque, (0.0, None, None))
        if case is None:
            return
        self.reached.add((case.server, case.code))
        if not may_answer(case.code, command.code):
            self._note(
                "an answer has a code that its request cannot have", str(command.code), "", [case]
            )
        if command.remark and _UNCAUGHT.match(command.remark):
            kind = command.remark.partition(":")[0]
            self._note(
                "nobody caught an exception", f"{kind}, code {case.code}", command.remark, [case]
            )

    def _check_patience(self) -> None:
        now = time.monotonic()
        for opaque, (sent_at, case, line) in list(self._unanswered.items()):
            if case.ends_stream or not line.is_open:
                del self._unanswered[opaque]
            elif now - sent_at > _PATIENCE_S:
                del self._unanswered[opaque]
                self._note("a request has no answer", f"{case.server} {case.code}", "", [case])

    # -- looking ---------------------------------------------------------------------------------

    def _look(self, cases: Sequence[Case]) -> None:
        self._looked_at = time.monotonic()
        if self.target.dead():
            self._after_death(cases)
            return
        if self._is_silent and self._end_hung(self._repeat(cases)):
            return
        self._check_patience()
        stalled, starved = self._look_at_stalls()
        for name, times in stalled.items():
            if self._repeats:
                self._note("an event loop stands still", name, f"{times} times", cases)
        if stalled and not self._repeats:
            self.stalls_seen += 1
            self._again(cases)
        for name, size in self.target.memory().items():
            self.memory_max = max(self.memory_max, size)
            if size > _MEMORY_MAX:
                self._note("memory grows", name, f"{size >> 20} MiB", cases)
        leadership = self.target.leadership()
        if leadership is None and self._end_hung(self._repeat(cases)):
            return
        if leadership != self._leadership:
            self._leader_changed(leadership, cases, starved=starved)

    def _end_hung(self, repeat: str) -> bool:
        """End processes that hang, note where they hung, and start them again; return whether any did."""
        self._is_silent = False
        hung = self.target.hung()
        for name in hung:
            where, frames = self.target.end_hung(name)
            self.findings.add(_LAW_HUNG, where, f"{name}: {frames}", repeat)
        if hung:
            self._revive(repeat)
        return bool(hung)

    def _look_at_stalls(self) -> tuple[dict[str, int], bool]:
        """Return the stalls that cost CPU time, by process, and whether others came from the machine."""
        stalled: dict[str, int] = {}
        starved = False
        for name, each in self.target.stalls().items():
            wall, cpu = self._stalls.get(name, (0, 0))
            self.worst_stall_s = max(self.worst_stall_s, each.worst_cpu_s)
            if each.cpu > cpu:
                stalled[name] = each.cpu - cpu
            others = each.wall - wall - (each.cpu - cpu)
            self.stalls_of_the_machine += others
            starved = starved or others > 0
            self._stalls[name] = each.wall, each.cpu
        return stalled, starved

    def _leader_changed(
        self, now: tuple[int, int] | None, cases: Sequence[Case], *, starved: bool
    ) -> None:
        """Note a change of leader as a finding, and whether the same cases cause one again.

        A machine that is busy with other programs also starves a leader for an election time-out. Such changes are
        only counted and shown, and a run on record has none of them.
        """
        self.changes += 1
        before = self._leadership
        try:
            self.target.group.wait_for_leader()
        except AssertionError:
            self._after_death(cases)
            return
        self._begin()
        if starved or before is None:
            return
        law = "the leader changes again" if self._repeats else "the leader changes"
        self._note(law, "", f"node and term were {before}, are {now}", cases)
        if not self._repeats:
            self._again(cases)

    def _again(self, cases: Sequence[Case]) -> None:
        """Send the same cases again: an effect that they cause twice is theirs."""
        self._repeats = True
        try:
            self.attack(cases)
            self._look(cases)
        finally:
            self._repeats = False

    def _after_death(self, cases: Sequence[Case]) -> None:
        dead = self.target.dead()
        if not dead:
            self._note("nobody leads any more", "", "all processes run", cases)
        places = [(name, *self.target.last_error(name)) for name in dead]
        self._revive(self._repeat(cases))
        for name, where, detail in places:
            is_new = self.findings.add(
                _LAW_DEAD, where, f"{name}: {detail}", self._repeat(cases), None
            )
            if is_new:
                self._search(cases, where, f"{name}: {detail}")

    def _revive(self, repeat: str) -> None:
        self.ends += 1
        if not self.target.revive():
            self.findings.add("the group is lost for good", "", "no leader after a restart", repeat)
        self._begin()

    def _search(self, cases: Sequence[Case], where: str, detail: str) -> None:
        """Halve a batch until one case is left that ends a process by itself."""
        while len(cases) > 1:
            first, second = cases[: len(cases) // 2], cases[len(cases) // 2 :]
            cases = first if self._ends_something(first) else second
        if self._ends_something(cases):
            law = f"{_LAW_DEAD}, by one request"
            found = f"{detail} | {shown(cases[0])}"
            self.findings.add(law, where, found, self._repeat(cases), cases[0].code)

    def _ends_something(self, cases: Sequence[Case]) -> bool:
        self._send(cases)
        # A proposal is written after its request was read, and a process takes some time to end.
        deadline = time.monotonic() + _ENDING_S
        while not self.target.dead():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        self._revive(self._repeat(cases))
        return True

    def _note(self, law: str, where: str, detail: str, cases: Sequence[Case]) -> None:
        told = f"{detail} | {shown(cases[0])}" if len(cases) == 1 else detail
        code = cases[0].code if len(cases) == 1 else None
        self.findings.add(law, where, told, self._repeat(cases), code)

    def _repeat(self, cases: Sequence[Case]) -> str:
        if not cases:
            return f"make hostile SEED={self.seed}"
        command = f"make hostile SEED={self.seed} CASE={cases[0].number}"
        if len(cases) > 1:
            command += f" CASES={cases[-1].number - cases[0].number + 1}"
        return command + (" GUARDED=1" if self.target.guarded else "")


def _is_forbidden(case: Case) -> bool:
    """Return whether a case asks, as an administrator may, for something that the laws forbid: another leader."""
    if case.code not in (
        RequestCode.ORDERLYMQ_TRANSFER_LEADERSHIP,
        RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP,
        RequestCode.UPDATE_BROKER_CONFIG,
    ) and not (case.code in SEND_CODES and JUDGED_TOPIC.encode() in case.frame):
        return False
    try:
        commands = FrameDecoder().receive_data(case.frame)
    except FrameError as error:
        commands = error.commands
    for command in commands:
        if command.code == RequestCode.ORDERLYMQ_TRANSFER_LEADERSHIP:
            target = command.ext.get("target", "")
            return not target or target.isdigit()
        if command.code == RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP:
            try:
                membership_change(command.body)
            except ValueError:
                return False
            return True
        if command.code == RequestCode.UPDATE_BROKER_CONFIG:
            # A broker that forbids writing refuses the clients whose history is judged.
            return b"brokerPermission" in command.body
    return False
