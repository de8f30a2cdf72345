"""Reads of several queues over a link that needs more time for them than one pull may take."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orderlymq.blocking import AdminClient, LoopThread
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.options import Connect
from tests.cluster.processes import Group
from tests.faultyproxy import DOWN, FaultyProxy, faulty_proxy
from tests.spark.topics import Topics

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(180)]

QUEUES = 8
MESSAGES = 16_000
PIECE = 64 << 10
PIECE_S = 0.05  # 1.25 MiB a second


class BehindProxy(Group):
    """A group whose proxy's address is known to name servers."""

    proxy_port = 0

    def settings(self, node: int) -> dict[str, Any]:
        address = {"host": "127.0.0.1", "port": self.proxy_port}
        listen = {"host": "127.0.0.1", "port": self.port}
        return super().settings(node) | {"address": address, "listen": listen}


@contextmanager
def proxied() -> Iterator[FaultyProxy]:
    """Run a proxy during the test."""
    thread = LoopThread()
    context = faulty_proxy(("127.0.0.1", 0))
    proxy = thread.run(context.__aenter__())
    try:
        yield proxy
    finally:
        thread.run(context.__aexit__(None, None, None))
        thread.close()


def test_what_a_slow_link_has_carried_it_does_not_carry_again(tmp_path: Path) -> None:
    """Law: a read ends and transfers its bytes once; if all pulls ran together, most would time out and be repeated."""
    with proxied() as proxy:
        BehindProxy.proxy_port = proxy.port
        group = BehindProxy(tmp_path, 1)
        proxy.target = "127.0.0.1", group.port
        with group, AdminClient(group.name_server_address) as admin:
            topics = Topics(group.name_server_address, admin)
            topic = topics.make(queues=QUEUES)
            topics.bulk(topic, MESSAGES)
            access = access_to(Connect(group.name_server_address))
            lows, highs = access.bounds(access.queues([topic]))
            parts = [QueueRange(queue, lows[queue], highs[queue]) for queue in highs]
            proxy.piece, proxy.delays_s[DOWN] = PIECE, PIECE_S
            before = proxy.passed[DOWN]

            def read(part: QueueRange) -> int:
                return sum(len(chunk) for block in access.read(part) for chunk in block.chunks)

            with ThreadPoolExecutor(QUEUES) as pool:
                size = sum(pool.map(read, parts))

            assert sum(part.size for part in parts) == MESSAGES
            assert size > MESSAGES * 1024
            assert proxy.passed[DOWN] - before < 1.1 * size
            proxy.heal()
