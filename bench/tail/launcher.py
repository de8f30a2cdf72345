"""
A broker with time stamps: ``python -m bench.tail.launcher EVENTS --settings FILE``.

The broker is the usual one. Wrappers around the interfaces of its loop (requests, messages of peers, the writer,
answers) record the time and pass every call on. At the end all records are written to EVENTS, a JSON list per line.
Times are nanoseconds of the clock that the processes of one machine share.
"""

import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orderlymq_broker import __main__ as broker
from orderlymq_broker.app import BrokerProcess
from orderlymq_broker.replication import replicainstance
from orderlymq_broker.replication.interfaces import LoopPorts
from orderlymq_broker.server.peers import Peers
from orderlymq_raft.messages import Append, AppendResponse

_now = time.monotonic_ns
_events: list[tuple[object, ...]] = []


class _Between:
    """A wrapper that passes on every call for which it has no method."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Service(_Between):
    def handle(self, request: Any, peer: Any) -> None:
        _events.append(("arrived", _now()))
        self._inner.handle(request, peer)


class _Clients(_Between):
    def send(self, connection: int, command: Any) -> None:
        _events.append(("answered", _now()))
        self._inner.send(connection, command)


class _Outbound(_Between):
    def send(self, messages: Sequence[Any]) -> None:
        if any(isinstance(each, Append) and each.entries for each in messages):
            _events.append(("built", _now()))
        self._inner.send(messages)


class _Writer(_Between):
    def submit(self, ticket: Any, *, sync: bool, done: Callable[[float], None]) -> None:
        began = _now()

        def ended(elapsed_s: float) -> None:
            _events.append(("synced", _now(), began, int(elapsed_s * 1e9)))
            done(elapsed_s)

        self._inner.submit(ticket, sync=sync, done=ended)


def _ports(writer: Any, outbound: Any, clients: Any, *others: Any) -> LoopPorts:
    return LoopPorts(_Writer(writer), _Outbound(outbound), _Clients(clients), *others)


def _note_collection(phase: str, info: dict[str, int]) -> None:
    _events.append(("collection", _now(), phase == "start"))


def _wrap() -> None:
    received, service = Peers.messages_received, BrokerProcess.service

    def messages_received(self: Peers, messages: list[Any]) -> None:
        answers = [each.sender for each in messages if isinstance(each, AppendResponse)]
        _events.extend(("heard", _now(), sender) for sender in answers)
        received(self, messages)

    # The patched classes are not compiled, and the loop uses its ports as
    # protocols, so this also works with the compiled copy.
    replicainstance.LoopPorts = _ports  # type: ignore[attr-defined, assignment]
    Peers.messages_received = messages_received  # type: ignore[method-assign]
    BrokerProcess.service = lambda self: _Service(service(self))  # type: ignore[method-assign]
    gc.callbacks.append(_note_collection)


def main() -> int:
    """Run the broker and write its records."""
    events, *arguments = sys.argv[1:]
    _wrap()
    try:
        return broker.main(arguments)
    finally:
        Path(events).write_text("".join(f"{json.dumps(each)}\n" for each in _events))


if __name__ == "__main__":
    sys.exit(main())
