"""
A real RocketMQ for tests: the name server and one broker from Maven Central, as `make bench` runs them.

Its store has small files (1 MiB), so that a test can make it lose one. A restarted broker keeps its port.
"""

import time
from pathlib import Path
from typing import Final, Self

from bench.peers.nodes import Node
from bench.peers.rocketmq import BROKER, NAME_SERVER, process

from tests.ports import free_ports

START_TIMEOUT_S: Final = 60.0
COMMIT_LOG_FILE_BYTES: Final = 1 << 20
_JUST_STARTED: Final = ("-Xms64m", "-XX:TieredStopAtLevel=1")  # starts quickly, need not run fast


class RocketMQ:
    """A name server and a broker; the context manager ends them."""

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
            # An index for a few messages instead of twenty million.
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 40_000,
            "autoCreateTopicEnable": "false",
            "registerNameServerPeriod": 10_000,  # the shortest time that it permits
        }
        heap = (
            *_JUST_STARTED,
            "-Xmx256m",
            "-XX:MaxDirectMemorySize=128m",
            # Tests must not depend on the disk's other contents.
            "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
        )
        self._broker = process(directory, "broker", BROKER, heap, settings)

    @property
    def commit_log(self) -> Path:
        """The folder with the files of messages; each file is named by its first offset."""
        return self.directory / "store" / "commitlog"

    def start_broker(self) -> None:
        """Start the broker and wait until it serves."""
        _start(self._broker)

    def restart_name_server(self) -> None:
        """Replace the name server by a new one, which knows nothing until the broker registers again."""
        self._name_server.kill()
        _start(self._name_server)

    def stop_broker(self) -> None:
        """Stop the broker in order, so that it finds its data again."""
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
        """Stop both processes in any order; their store is deleted."""
        self._broker.kill()
        self._name_server.kill()


def _start(node: Node) -> None:
    said = node.log.stat().st_size if node.log.exists() else 0
    node.start()
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and node.is_running:
        # The broker prints this line when it serves and has registered.
        if b"boot success" in node.log.read_bytes()[said:]:
            return
        time.sleep(0.1)
    raise AssertionError(f"RocketMQ's {node.name} did not start:\n{node.log.read_text()}")
