"""
A real RocketMQ for tests: the name server and one broker that Maven Central has, as `make bench` runs them.

Its store is small (files of 1 MiB), so that a test can make it lose one. The broker keeps its port when it is started again.
"""

import time
from pathlib import Path
from typing import Final, Self

from bench.peers.nodes import Node
from bench.peers.rocketmq import BROKER, NAME_SERVER, process

from tests.ports import free_ports

START_TIMEOUT_S: Final = 60.0
COMMIT_LOG_FILE_BYTES: Final = 1 << 20
_JUST_STARTED: Final = ("-Xms64m", "-XX:TieredStopAtLevel=1")  # starts fast, need not run fast


class RocketMQ:
    """A name server and a broker; a context manager that ends them."""

    broker_name: Final = "apache-a"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        port, name_server = free_ports(2)
        self.bootstrap = f"127.0.0.1:{name_server}"
        small = (*_JUST_STARTED, "-Xmx96m")
        self._name_server = process(
            directory, "namesrv", NAME_SERVER, small, {"listenPort": name_server}
        )
        settings = {
            "brokerClusterName": "apache",
            "brokerName": self.broker_name,
            "listenPort": port,
            "namesrvAddr": self.bootstrap,
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": directory / "store",
            "storePathCommitLog": self.commit_log,
            "mappedFileSizeCommitLog": COMMIT_LOG_FILE_BYTES,
            # Indexes for a few messages instead of twenty million.
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 40_000,
            "autoCreateTopicEnable": "false",
            "registerNameServerPeriod": 10_000,  # the shortest that it allows
        }
        heap = (
            *_JUST_STARTED,
            "-Xmx256m",
            "-XX:MaxDirectMemorySize=128m",
            # A disk that others fill is not what is tested.
            "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
        )
        self._broker = process(directory, "broker", BROKER, heap, settings)

    @property
    def commit_log(self) -> Path:
        """The folder with the files of messages, named by where each begins."""
        return self.directory / "store" / "commitlog"

    def start_broker(self) -> None:
        """Start it and wait until it serves."""
        _start(self._broker)

    def restart_name_server(self) -> None:
        """Let another one take its place, which knows nothing until the broker registers again."""
        self._name_server.kill()
        _start(self._name_server)

    def stop_broker(self) -> None:
        """Stop it in good order: what it has it will find again."""
        self._broker.terminate()
        self._broker.wait(20.0)

    def __enter__(self) -> Self:
        try:
            _start(self._name_server)
            self.start_broker()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop both; the store is thrown away, so in no particular order."""
        self._broker.kill()
        self._name_server.kill()


def _start(node: Node) -> None:
    said = node.log.stat().st_size if node.log.exists() else 0
    node.start()
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and node.is_running:
        # Its own words: a broker says them when it serves and is known to the name server.
        if b"boot success" in node.log.read_bytes()[said:]:
            return
        time.sleep(0.1)
    raise AssertionError(f"RocketMQ's {node.name} did not start:\n{node.log.read_text()}")
