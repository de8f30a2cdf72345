"""
Proof that a client of this machine is dead.

The rule: a lock moves before its lease ends only on proof. A closed connection is no proof, only the reason to check.
While a client is connected, we find the processes that hold the other end of its connection (``sockets.py``). After
the connection has closed, the client is dead if all these processes are gone and no other process holds the socket. A
zombie, or a process whose number another one has, counts as gone. All calls to the operating system run in a thread.
"""

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

import psutil

from orderlymq_broker.server.clientdeath import portablesockets, sockets
from orderlymq_broker.server.clientdeath.sockets import Holding, Owners, SocketEnd
from orderlymq_protocol.hosts import ip_of, is_loopback
from orderlymq_runtime.process.supervisor import Supervisor, end_tasks
from orderlymq_runtime.process.waits import wait_for

_log = logging.getLogger(__name__)

# A killed process is gone within milliseconds, one that dumps its core within seconds.
LOOKS_S: Final = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.0, 2.0)
# Looks for new clients take at most this share of a CPU, however many clients come.
LOOK_SHARE: Final = 0.1
# They may take this much CPU time without a pause: ten looks, so that a client that comes soon after another one
# is known before it can die.
LOOK_RESERVE_S: Final = 0.2
# A heartbeat follows every 30 s; an obstacle that was met three times will stay.
QUESTIONS_MAX: Final = 3
# The most clients that may be guessed for an unnamed connection: each costs an object per connection. If more members
# of a group run on this machine, the others wait for their heartbeats.
GUESSES_MAX: Final = 64

_PID_IN_CLIENT_ID: Final = re.compile(r"@([0-9]{1,9})(?:[#@].*)?$")
_PID: Final = re.compile(r"[0-9]{1,9}")

OnDead: TypeAlias = Callable[[str, str, frozenset[SocketEnd] | None], None]
View: TypeAlias = sockets.View | portablesockets.View

_machine: Final = sockets if sockets.IS_READABLE else portablesockets
_T = TypeVar("_T")
_P = ParamSpec("_P")


def pid_of(client_id: str, said: str = "") -> int | None:
    """Return the process that a client names, in a header field or inside a *client_id* of RocketMQ's form, or None."""
    if _PID.fullmatch(said):
        return int(said)
    found = _PID_IN_CLIENT_ID.search(client_id)
    return int(found.group(1)) if found else None


def own_addresses() -> frozenset[str]:
    """Return the addresses of this machine's interfaces."""
    interfaces = psutil.net_if_addrs().values()
    return frozenset(each.address.partition("%")[0] for found in interfaces for each in found)


def is_local(host: str, addresses: frozenset[str]) -> bool:
    """Return whether a peer's address may be one of this machine, which has *addresses*."""
    address = ip_of(host)
    return address is not None and (address.is_loopback or str(address) in addresses)


def is_of_another_machine(host: str, replica: str | None) -> bool:
    """Return whether a forwarded client's address may mean another machine than this one.

    A loopback address means the machine of the *replica* that has the connection. That is this machine
    only if this replica also reaches the other one at a loopback address.

    Args:
        host: the client's address, as the other replica sees it.
        replica: the address of the other replica; None if it is not known.
    """
    return is_local(host, frozenset()) and not (replica and is_loopback(replica))


@dataclass(slots=True)
class _Question:
    """A question whether a client is at the other end of a connection."""

    known: "_Known"
    client_id: str
    end: SocketEnd
    ours: SocketEnd | None
    pid: int | None
    is_forwarded: bool


@dataclass(slots=True)
class _Guess:
    """A question which of *candidates* is at the other end of a connection, if that end is on this machine."""

    known: "_Known"
    candidates: Callable[[], Iterable[str]]
    end: SocketEnd
    is_forwarded: bool


@dataclass(slots=True)
class _Client:
    """One client that uses, or may use, a connection.

    Attributes:
        holding: its socket and processes; None while they are being looked for or cannot be proven.
        is_named: whether it names its process and that process holds its socket.
        is_guess: whether it has sent no heartbeat and is only known as a member of the requested group.
        asked: how often it was looked for.
        is_asked: whether it is being looked for.
    """

    end: SocketEnd
    is_guess: bool
    is_named: bool = False
    holding: Holding | None = None
    asked: int = 0
    is_asked: bool = False


@dataclass(slots=True)
class _Known:
    """The clients of one connection, and when it was lost, by the monotonic clock."""

    clients: dict[str, _Client] = field(default_factory=dict)
    lost_s: float | None = None


class LookBudget:
    """The CPU time that looks may take: a share of all time, and a reserve for several in a row.

    Elapsed time during a look does not count: a busy machine prolongs a look, and a client that waits for the
    next look could die first.
    """

    def __init__(self) -> None:
        self._paid_at_s = 0.0

    def spend(self, cpu_s: float, now_s: float) -> None:
        """Spend *cpu_s* seconds of CPU time."""
        self._paid_at_s = max(self._paid_at_s, now_s) + cpu_s / LOOK_SHARE

    def pause_s(self, now_s: float) -> float:
        """Return how long the next look has to wait."""
        return max(0.0, self._paid_at_s - now_s - LOOK_RESERVE_S / LOOK_SHARE)


class Liveness:
    """Watches the clients that are connected from this machine.

    Life cycle of a client: call `seen` after each of its heartbeats, and `lost` when its connection is closed. After
    that, *on_dead* is called at most once, with the client id, the proof, and the ends of the client's connections.
    The ends are None unless only they distinguish it from another program with the same id. Two programs on one
    machine may be given the same instance name. One look at the machine answers for all clients that wait for it,
    however many they are.

    Attributes:
        looks: how often the machine was looked at.
    """

    def __init__(self, on_dead: OnDead, supervisor: Supervisor | None = None) -> None:
        self._on_dead = on_dead
        self._supervisor = supervisor or Supervisor()
        self._known: dict[int, _Known] = {}
        # The number of clients of each set of processes.
        self._connected: Counter[Owners] = Counter()
        self._questions: list[_Question] = []
        self._guesses: list[_Guess] = []
        self._lost: dict[Owners, _Lost] = {}
        self._next_look: asyncio.Task[tuple[View, float]] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._budget = LookBudget()
        self.looks = 0

    def seen(
        self,
        connection: int,
        client_ids: list[str],
        end: SocketEnd,
        said: str = "",
        *,
        ours: SocketEnd | None = None,
        forwarded: bool = False,
    ) -> None:
        """Note which clients use a connection from *end*; *said* is their process, if they name it.

        *ours* is this broker's end, if it is known. A *forwarded* connection ends at another broker.
        """
        known = self._known.setdefault(connection, _Known())
        for client_id in client_ids:
            pid = pid_of(client_id, said)
            client = known.clients.setdefault(client_id, _Client(end, is_guess=False))
            client.is_guess = False
            self._ask(client, _Question(known, client_id, end, ours, pid, forwarded))
        # If a program speaks for several clients, its process proves none of them.
        speakers = [each for each in known.clients.values() if not each.is_guess]
        if len(speakers) > 1:
            for client in speakers:
                self._forget_holding(client)

    def guess(
        self,
        connection: int,
        candidates: Callable[[], Iterable[str]],
        end: SocketEnd,
        *,
        forwarded: bool = False,
    ) -> None:
        """Note that one of *candidates* may use a connection: the client whose process holds its other end.

        *candidates* is called later, and only if *end* is on this machine, because a group may have many members.
        """
        known = self._known.setdefault(connection, _Known())
        self._identify_soon()
        self._guesses.append(_Guess(known, candidates, end, forwarded))

    @property
    def identified(self) -> int:
        """The number of connected clients whose processes are known, so that their death could be proven."""
        return self._connected.total()

    def knows(self, connection: int) -> bool:
        """Return whether clients of a connection are known or guessed."""
        return connection in self._known

    def lost(self, connection: int) -> None:
        """Check whether the clients of a closed connection are dead."""
        known = self._known.pop(connection, None)
        if known is None:
            return
        known.lost_s = time.monotonic()
        for client_id, client in known.clients.items():
            if client.holding is not None:
                self._release(client.holding.owners)
                self._suspect(client_id, client, client.holding)

    async def close(self) -> None:
        """Stop looking."""
        await end_tasks(self._tasks)

    def _suspect(self, client_id: str, client: _Client, holding: Holding) -> None:
        waiting = self._lost.get(holding.owners)
        if waiting is None:
            waiting = self._lost[holding.owners] = _Lost()
            self._spawn(self._look(holding.owners, waiting))
        is_in_id = client.is_named and holding.is_held_by(pid_of(client_id))
        gone = waiting.clients.setdefault(client_id, _Gone(is_in_id))
        gone.holdings.append(holding)
        gone.ends.add(client.end)
        waiting.more.set()

    def _ask(self, client: _Client, question: _Question) -> None:
        if client.is_asked or client.holding is not None or client.asked >= QUESTIONS_MAX:
            return
        client.is_asked = True
        client.asked += 1
        self._identify_soon()
        self._questions.append(question)

    def _identify_soon(self) -> None:
        if not self._questions and not self._guesses:
            self._spawn(self._identify())

    def _forget_holding(self, client: _Client) -> None:
        if client.holding is not None and not client.is_named:
            self._release(client.holding.owners)
            client.holding = None

    def _release(self, owners: Owners) -> None:
        self._connected[owners] -= 1
        if not self._connected[owners]:
            del self._connected[owners]

    async def _identify(self) -> None:
        """Answer the present questions, and then those that come meanwhile."""
        await asyncio.sleep(0)
        seconds = asyncio.get_running_loop().time
        while self._questions or self._guesses:
            await asyncio.sleep(self._budget.pause_s(seconds()))
            asked: list[_Question] = []
            try:
                await self._take_guesses()
                asked = self._questions[:]
                answers, read_s, cpu_s = await self._answers(asked)
                self._budget.spend(cpu_s, seconds())
                for question, answer in answers:
                    self._answer(question, answer, read_s)
            except OSError as error:
                _log.warning("the clients of this machine cannot be found: %s", error)
            except Exception as error:
                # A failed look must not prevent later ones.
                self._supervisor.report("liveness", "looking for clients of this machine", error)
            finally:
                for question in asked:
                    question.known.clients[question.client_id].is_asked = False
                # Clients of later questions may have connected after the look.
                del self._questions[: len(asked)]

    async def _take_guesses(self) -> None:
        """Ask about the candidates of the present guesses."""
        guesses = self._guesses[:]
        try:
            hosts = await _local_hosts({each.end[0] for each in guesses})
            for each in guesses:
                # A client that has identified itself meanwhile needs no guess.
                if each.end[0] in hosts and not each.known.clients:
                    self._ask_candidates(each)
        finally:
            del self._guesses[: len(guesses)]

    def _ask_candidates(self, guess: _Guess) -> None:
        known, end = guess.known, guess.end
        named = ((each, pid_of(each)) for each in guess.candidates())
        usable = ((each, pid) for each, pid in named if pid is not None)
        for client_id, pid in islice(usable, GUESSES_MAX):
            client = known.clients.setdefault(client_id, _Client(end, is_guess=True))
            self._ask(client, _Question(known, client_id, end, None, pid, guess.is_forwarded))

    async def _answers(
        self, asked: list[_Question]
    ) -> tuple[list[tuple[_Question, Holding | str]], float, float]:
        """Return the answers about those clients in *asked* that are local.

        Returns:
            Also the time when the connections were read, and the CPU seconds that it took.
        """
        hosts = await _local_hosts({each.end[0] for each in asked})
        local = [each for each in asked if each.end[0] in hosts]
        if not local:
            return [], 0.0, 0.0
        view, looking_s = await self._view()
        answers, answering_s = await asyncio.to_thread(_timed, _answered, view, local)
        return answers, view.read_s, looking_s + answering_s

    def _answer(self, question: _Question, found: Holding | str, read_s: float) -> None:
        known, client = question.known, question.known.clients[question.client_id]
        if known.lost_s is not None and known.lost_s < read_s:
            return  # the client's end may belong to another program by now
        if isinstance(found, str):
            _log.debug("the death of client %s cannot be proven: %s", question.client_id, found)
            return
        client.is_named = found.is_held_by(question.pid)
        speakers = sum(not each.is_guess for each in known.clients.values())
        if not client.is_named and (client.is_guess or speakers > 1):
            return
        if known.lost_s is not None:
            self._suspect(question.client_id, client, found)
            return
        client.holding = found
        self._connected[found.owners] += 1

    async def _view(self) -> tuple[View, float]:
        """Return the result of a scan that begins after this call, and its CPU seconds.

        Callers that come meanwhile share the next scan.
        """
        if self._next_look is None:
            # If it fails, every caller that waits for it gets the error.
            self._next_look = asyncio.create_task(self._take_view(), name="liveness view")
            self._own(self._next_look)
        return await asyncio.shield(self._next_look)

    async def _take_view(self) -> tuple[View, float]:
        await asyncio.sleep(0)
        self._next_look = None
        self.looks += 1
        # For a client that names no process, all its sockets are checked, so the tables are read first.
        asked = {(each.end, each.ours if each.pid else None) for each in self._questions}
        return await asyncio.to_thread(_timed, _machine.View, asked)

    async def _look(self, owners: Owners, waiting: "_Lost") -> None:
        try:
            await self._look_often(owners, waiting)
        finally:
            del self._lost[owners]

    async def _look_often(self, owners: Owners, waiting: "_Lost") -> None:
        looked = 0
        while looked < len(LOOKS_S):
            if await wait_for(waiting.more, LOOKS_S[looked]):
                looked = 0
            waiting.more.clear()
            proof = await asyncio.to_thread(_proof_of_death, owners)
            # No connection of a dead process stays open; remaining ones are reported as lost in a moment.
            if proof is not None and owners not in self._connected:
                await self._declare(waiting, proof)
            if not waiting.clients:
                break
            # Another connection that was lost since is a reason to look often again.
            looked = 0 if waiting.more.is_set() else looked + 1

    async def _declare(self, waiting: "_Lost", proof: str) -> None:
        """Declare clients dead whose socket no process holds; a child process of an owner may still hold it."""
        try:
            view, _ = await self._view()
        except OSError as error:
            _log.warning("it is not known whether clients are dead: %s", error)
            return
        for client_id, gone in sorted(waiting.clients.items()):
            if any(map(view.is_held, gone.holdings)):
                continue
            if not gone.is_in_id and self._speaks(client_id):
                continue  # another program with the same id
            del waiting.clients[client_id]
            _log.info("client %s is dead: %s", client_id, proof)
            self._on_dead(client_id, proof, None if gone.is_in_id else frozenset(gone.ends))

    def _speaks(self, client_id: str) -> bool:
        clients = (known.clients.get(client_id) for known in self._known.values())
        return any(client is not None and not client.is_guess for client in clients)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._own(self._supervisor.once("liveness", work))

    def _own(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@dataclass(slots=True)
class _Gone:
    """A client whose connections are gone.

    Attributes:
        is_in_id: whether its process is in its client id. A process that it only names may belong to any program that
            uses the id.
    """

    is_in_id: bool
    holdings: list[Holding] = field(default_factory=list)
    ends: set[SocketEnd] = field(default_factory=set)


@dataclass(slots=True)
class _Lost:
    """The clients of certain processes whose connections are gone; *more* is set when another one is."""

    clients: dict[str, _Gone] = field(default_factory=dict)
    more: asyncio.Event = field(default_factory=asyncio.Event)


async def _local_hosts(hosts: Collection[str]) -> set[str]:
    """Return those of *hosts* that belong to this machine."""
    addresses: frozenset[str] = frozenset()
    if not all(map(is_loopback, hosts)):
        addresses = await asyncio.to_thread(own_addresses)
    return {each for each in hosts if is_local(each, addresses)}


def _proof_of_death(owners: Owners) -> str | None:
    """Return why all *owners* are certainly gone, or None if one of them may live."""
    try:
        proofs = [_machine.proof_of_death(each) for each in sorted(owners)]
    except OSError:
        return None
    if any(proof is None for proof in proofs):
        return None
    return "; ".join(proof for proof in proofs if proof)


def _timed(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> tuple[_T, float]:
    """Do *work*; return its result and the CPU seconds that this thread took for it."""
    began = time.thread_time()
    return work(*args, **kwargs), time.thread_time() - began


def _answered(view: View, questions: list[_Question]) -> list[tuple[_Question, Holding | str]]:
    return [
        (each, view.client_of(each.end, each.pid, forwarded=each.is_forwarded))
        for each in questions
    ]
