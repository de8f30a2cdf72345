"""
The ground of a broker group: the addresses of its processes, and the links that can be cut.

`Loopback` is the ground of ``orderlymq up``: one address, bound by the leader; nothing can be cut. In `Namespaces`
every replica is a machine with its own network, on a bridge with one more machine for all clients. Clients reach the
broker group at an address that is translated to the leader's, as kube-proxy does for a Service; `point` moves it.
The commands here run inside the run's own namespaces (``__main__.py``), so that nothing outside is changed and
nothing is left behind.
"""

import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product
from typing import Final, Protocol

from tests.nemesis.ground.slowness import Slowness

CLIENTS: Final = "clients"
_SUBNET: Final = "10.77.0"
_CLIENTS_HOST: Final = f"{_SUBNET}.100"
_CONTROL_HOST: Final = f"{_SUBNET}.254"
_SERVICE_HOST: Final = "10.77.9.9"

PORT: Final = 10911
RAFT_PORT: Final = 10920
HTTP_PORT: Final = 10940
NAME_SERVER_PORT: Final = 9876


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one replica: host and ports for its peers and for the nemesis, and the host it binds for clients."""

    host: str
    raft_port: int
    http_port: int
    listen_host: str | None


class Ground(Protocol):
    """The parts of the machine that a broker group needs."""

    name: str
    bind: str
    address: tuple[str, int]
    name_server: tuple[str, int]

    def place(self, node: int) -> Place:
        """Return the place of a replica."""

    def within(self, who: int | str) -> list[str]:
        """Return the words that start a command at replica *who* or at the clients."""

    def service(self, leader: int) -> str:
        """Return an address at which the nemesis, which is never cut off, reaches the broker group."""

    def point(self, leader: int) -> None:
        """Point the clients' address to *leader*."""

    def close(self) -> None:
        """Undo what was made."""


@dataclass
class Loopback:
    """One machine, one address; *base* is the first of a hundred ports."""

    base: int = 31_400
    name: str = "loopback"
    bind: str = "leader"
    address: tuple[str, int] = field(init=False)
    name_server: tuple[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.address = ("127.0.0.1", self.base + 11)
        self.name_server = ("127.0.0.1", self.base + 1)

    def place(self, node: int) -> Place:
        return Place("127.0.0.1", self.base + 20 + node, self.base + 40 + node, None)

    def within(self, who: int | str) -> list[str]:
        return []

    def service(self, leader: int) -> str:
        return f"127.0.0.1:{self.address[1]}"

    def point(self, leader: int) -> None:
        pass  # the leader has bound the address

    def close(self) -> None:
        pass


@dataclass
class Namespaces:
    """A machine for each of *replicas* replicas, and one for all clients."""

    replicas: int
    name: str = "namespaces"
    bind: str = "always"
    address: tuple[str, int] = (_SERVICE_HOST, PORT)
    name_server: tuple[str, int] = (_CLIENTS_HOST, NAME_SERVER_PORT)
    _leader: int | None = None
    _slowness: Slowness = field(default_factory=Slowness)

    def __post_init__(self) -> None:
        for program in ("iptables", "ip", "tc"):
            if shutil.which(program) is None:
                raise GroundError(
                    f"{program} is missing; on Debian: apt-get install iptables iproute2"
                )
        run("mount", "-t", "tmpfs", "tmpfs", "/run/netns", ensure="/run/netns")
        run("ip", "link", "add", "bridge0", "type", "bridge")
        run("ip", "addr", "add", f"{_CONTROL_HOST}/24", "dev", "bridge0")
        run("ip", "link", "set", "bridge0", "up")
        for who in (*range(1, self.replicas + 1), CLIENTS):
            self._add(who)

    def place(self, node: int) -> Place:
        return Place(_host(node), RAFT_PORT, HTTP_PORT, "0.0.0.0")

    def within(self, who: int | str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{who}"]

    def service(self, leader: int) -> str:
        return f"{_host(leader)}:{PORT}"

    def point(self, leader: int) -> None:
        if leader == self._leader:
            return
        self._leader = leader
        rules = ["-F OUTPUT"]
        # Clients up to 4.4 send to the port two below.
        for port in (PORT, PORT - 2):
            to = f"{_host(leader)}:{port}"
            rules.append(
                f"-A OUTPUT -d {_SERVICE_HOST} -p tcp --dport {port} -j DNAT --to-destination {to}"
            )
        for rule in rules:
            run(*self.within(CLIENTS), "iptables", "-w", "-t", "nat", *rule.split())

    def cut(self, one: Iterable[int | str], other: Iterable[int | str]) -> None:
        """Drop everything that *one* sends to *other*, but nothing in the other direction.

        There is no reset and no error, as when a switch fails.
        """
        for sender, receiver in product(one, other):
            self._rule(receiver, "-A", "INPUT", "-s", _host(sender), "-j", "DROP")

    def heal(self, who: Iterable[int | str]) -> None:
        """Let everything through to *who* again."""
        for each in who:
            self._rule(each, "-F", "INPUT")

    def slow(self, one: int, other: int, *, delay_s: float, jitter_s: float, loss: float) -> None:
        """Delay or lose packets between two replicas, in both directions."""
        self._slowness.set(_host(one), _host(other), delay_s=delay_s, jitter_s=jitter_s, loss=loss)
        for here, there in ((one, other), (other, one)):
            route = f"{_host(there)}/32 dev slow src {_host(here)}"
            run(*self.within(here), "ip", "route", "replace", *route.split())

    def unslow(self) -> None:
        """Let packets between replicas take their direct way again."""
        for here, there in product(range(1, self.replicas + 1), repeat=2):
            if here != there:
                words = (*self.within(here), "ip", "route", "del", f"{_host(there)}/32")
                run(*words, "dev", "slow", may_fail=True)
        self._slowness.clear()

    def close(self) -> None:
        self._slowness.close()

    def _rule(self, who: int | str, *words: str) -> None:
        run(*self.within(who), "iptables", "-w", *words)

    def _add(self, who: int | str) -> None:
        outer, namespace = f"veth-{who}"[:15], str(who)
        run("ip", "netns", "add", namespace)
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        run("ip", "link", "set", outer, "master", "bridge0", "up")
        inside = self.within(who)
        run(*inside, "ip", "link", "set", "lo", "up")
        run(*inside, "ip", "addr", "add", f"{_host(who)}/24", "dev", "eth0")
        run(*inside, "ip", "link", "set", "eth0", "up")
        # So that the clients' address, which no machine has, is routed before it is translated.
        run(*inside, "ip", "route", "add", "default", "via", _CONTROL_HOST)
        if isinstance(who, int):
            self._slowness.add(_host(who), f"/run/netns/{who}")
            run(*inside, "ip", "link", "set", "slow", "up")


def _host(who: int | str) -> str:
    return f"{_SUBNET}.{who}" if isinstance(who, int) else _CLIENTS_HOST


def run(*words: str, may_fail: bool = False, ensure: str | None = None) -> str:
    """Run a system command and return its output.

    Raises:
        GroundError: It failed.
    """
    if ensure is not None:
        subprocess.run(["mkdir", "-p", ensure], check=True)
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode and not may_fail:
        raise GroundError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


class GroundError(Exception):
    """The machine refused a part of the ground; the text names command and reason."""
