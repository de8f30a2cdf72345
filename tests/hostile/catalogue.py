"""
The requests that can be sent, and the fields that each reads: observed, not listed.

Every code of `RequestCode` and every code that a core serves is sent to a broker and a name server without sockets. A
header that records which fields are read shows those that no table declares. A body of `[]` makes the reader of a
body name the class that it wanted. So a new code, header or body is covered without being added here.
"""

import functools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from orderlymq_nameserver.kv import KvTable
from orderlymq_nameserver.processor import NameServerCore
from orderlymq_protocol.brokerkeys import BROKER_KEYS
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.driver import ALICE
from tests.hostile.shapes import header_fields, models, plausible
from tests.hostile.world import EXPIRY_MS, BrokerWorld
from tests.protocol.golden import frames

UNKNOWN_CODES: Final = (0, -1, 999, 32_767, 2**31 - 1, -(2**31))
# Read by the process around the core, which cannot be observed here.
_INTERCEPTED: Final = {int(RequestCode.QUERY_ASSIGNMENT): "AssignmentRequest"}
# Bodies that are read by hand, not through a declaration.
_BY_HAND: Final[dict[int, tuple[bytes, ...]]] = {
    RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP: (
        b'{"action":"add-learner","node":4,"address":"127.0.0.1:9"}',
        b'{"action":"remove","node":9}',
    ),
    RequestCode.ORDERLYMQ_CHANGE_QUEUES: (b'{"groups":["billing"]}', b"{}"),
    RequestCode.ORDERLYMQ_SET_ASSIGNMENT: (
        b'[["broker-a",0,"192.0.2.1@101"],["broker-a",1,"192.0.2.2@202"]]',
        b"[]",
    ),
}
_WANTED: Final = re.compile(r"^(\w+) is not a JSON object")
# How often a request is repeated, each time with the fields that the last one was seen to read.
_ROUNDS: Final = 4


class Server(StrEnum):
    """The server that gets the request."""

    BROKER = "broker"
    NAME_SERVER = "name server"


@dataclass(frozen=True, slots=True)
class Question:
    """The fields and bodies that one request code reads.

    Attributes:
        fields: wire name of a header field -> the name of its content, and its type.
        model: the declared body, if the reader named one.
        bodies: bodies of this code that were captured from real clients, or are text.
    """

    server: Server
    code: int
    fields: dict[str, tuple[str, type]]
    model: str | None
    bodies: tuple[bytes, ...]


class _NotedFields(dict[str, str]):
    """The fields of a header; they record which of them are read."""

    def __init__(self, *given: dict[str, str]) -> None:
        super().__init__(*given)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.read.add(name)
        return super().get(name, default)


Ask = Callable[[RemotingCommand], RemotingCommand | None]


@functools.cache
def questions() -> tuple[Question, ...]:
    """Return all requests that can be sent, sorted by server and code."""
    world = BrokerWorld()
    name_server = NameServerCore(KvTable(), expiry_ms=EXPIRY_MS)
    codes = {int(code) for code in RequestCode}
    found = [
        _observe(Server.BROKER, code, lambda command: world.ask(command, ALICE))
        for code in sorted({*codes, *world.shell.core.codes, *UNKNOWN_CODES})
    ]
    found += [
        _observe(Server.NAME_SERVER, code, lambda command: name_server.handle(command, 1, 0))
        for code in sorted({*name_server.codes, *UNKNOWN_CODES})
    ]
    return tuple(found)


def served() -> set[tuple[Server, int]]:
    """Return the codes that the cores of broker and name server serve."""
    world, name_server = BrokerWorld(), NameServerCore(KvTable(), expiry_ms=EXPIRY_MS)
    return {
        *((Server.BROKER, code) for code in world.shell.core.codes),
        *((Server.NAME_SERVER, code) for code in name_server.codes),
    }


def _observe(server: Server, code: int, ask: Ask) -> Question:
    fields = header_fields(code)
    if server is Server.NAME_SERVER and "brokerName" in fields:
        # A name server accepts any broker's registration, or its end, without proof; so cases must not use the broker
        # group's own name.
        fields["brokerName"] = ("strangerName", str)
    model = _INTERCEPTED.get(code)
    rng = random.Random(code)
    for _ in range(_ROUNDS):
        noted = _NotedFields({wire: plausible(rng, *about) for wire, about in fields.items()})
        # A run finds and reports the effect of a spoiled request; this only observes.
        try:
            reply = ask(RemotingCommand(code, 1, 0, noted, b"[]"))
        except Exception:
            reply = None
        fields |= {name: (name, str) for name in sorted(noted.read - fields.keys())}
        remark = reply.remark if reply is not None else None
        if remark and (match := _WANTED.match(remark)) and match[1] in models():
            model = match[1]
    return Question(server, code, fields, model, _bodies(code))


def _bodies(code: int) -> tuple[bytes, ...]:
    captured = [
        each.body for each in frames() if each.code == code and each.is_request and each.body
    ]
    text: list[bytes] = []
    if code in (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG):
        text = [f"{name}={key.default}".encode() for name, key in BROKER_KEYS.items()]
    return (*dict.fromkeys(captured), *text, *_BY_HAND.get(code, ()))
