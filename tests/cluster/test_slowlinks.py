"""A group whose links are slow for its largest message keeps its leader and stores the message."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orderlymq_runtime.remoting.client import RemotingClient
from tests.cluster.bareclient import TOPIC, invoke, send_command
from tests.cluster.processes import Group
from tests.faultyproxy import UP, FaultyProxy, faulty_proxy

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

SIZE = 4_000_000
# Each connection carries 1.3 MB/s, so the message takes three times the election time-out.
PIECE, PIECE_S = 1 << 16, 0.05
ELECTION_MS = 1_000
PATIENCE_S = 60.0


@dataclass(slots=True)
class SlowGroup(Group):
    """Replicas that connect to each other through proxies."""

    ways: dict[int, int] = field(default_factory=dict)

    def settings(self, node: int) -> dict[str, Any]:
        """Return the settings of *node*, whose peers know it by its proxy's address."""
        return {
            **Group.settings(self, node),
            "peers": {
                str(each): {"host": "127.0.0.1", "port": self.ways[each]} for each in self.ways
            },
            "raft_listen": {"host": "127.0.0.1", "port": self.raft_ports[node]},
            "raft": {"election_ms": ELECTION_MS},
        }


async def test_a_large_message_costs_no_leader_its_place(
    tmp_path: Path, client: RemotingClient
) -> None:
    """Law: a message whose transfer exceeds the election time-out is stored without a change of the term."""
    async with AsyncExitStack() as stack:
        proxies: list[FaultyProxy] = [
            await stack.enter_async_context(faulty_proxy(("127.0.0.1", 0))) for _ in range(3)
        ]
        group = SlowGroup(
            tmp_path, ways={node: proxy.port for node, proxy in enumerate(proxies, 1)}
        )
        for node, proxy in enumerate(proxies, 1):
            proxy.target = "127.0.0.1", group.raft_ports[node]
        try:
            await asyncio.to_thread(group.start)
            # A leader begins to serve before it binds the address.
            small = await invoke(client, group.address, send_command(TOPIC, 0, b"x"), PATIENCE_S)
            term = await asyncio.to_thread(terms, group)
            for proxy in proxies:
                proxy.piece, proxy.delays_s[UP] = PIECE, PIECE_S

            large = await client.invoke(
                group.address, send_command(TOPIC, 0, bytes(SIZE)), PATIENCE_S
            )

            assert (small.code, large.code) == (0, 0)
            assert await asyncio.to_thread(terms, group) == term
            assert sum(proxy.passed[UP] for proxy in proxies) > 2 * SIZE
        finally:
            await asyncio.to_thread(group.stop)


def terms(group: Group) -> dict[int, int]:
    """Return the term of each replica."""
    return {int(status["node"]): int(status["term"]) for status in group.statuses()}
