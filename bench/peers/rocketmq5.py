"""
RocketMQ 5 in controller mode: a master and two slaves, and a controller in the name server that elects the master.

The master answers when all in-sync replicas have the message, at least two. A slave reports its position as soon as it
has appended to its mapped file, for any ``flushDiskType``; only the master waits for its disk.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from bench.peers.nodes import HERE, Durability, Ports
from bench.peers.rocketmq import RocketMQ

VERSION = "5.5.0"
LIBRARY = HERE / "rocketmq5" / "target" / f"lib-{VERSION}"


class RocketMQ5(RocketMQ):
    """RocketMQ with a flush by the master, the closest that it gets to a majority of disks."""

    name = "rocketmq5"
    title = f"RocketMQ {VERSION} controller, SYNC_FLUSH"
    durability = Durability.DISK
    acknowledged = (
        "synced by the master (`flushDiskType=SYNC_FLUSH`), and in the page cache of all other replicas in sync, at least one:"
        " on one disk, not on a majority"
    )
    driven = f"{RocketMQ.driven}; one controller, in the name server, with the default time-outs"
    library = LIBRARY
    flush: ClassVar[str] = "SYNC_FLUSH"

    def __init__(self, directory: Path, ports: Ports) -> None:
        self._controller = ports.take()
        super().__init__(directory, ports)

    def _name_server_settings(self) -> Mapping[str, object]:
        return {
            **super()._name_server_settings(),
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "controllers",
            "controllerDLegerPeers": f"n0-127.0.0.1:{self._controller}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": self.directory / "data" / "controller",
        }

    def _replication(self, name: str) -> Mapping[str, object]:
        return {
            "enableControllerMode": "true",
            "controllerAddr": f"127.0.0.1:{self._controller}",
            "haListenPort": self._inner[name],
            "totalReplicas": 3,
            "inSyncReplicas": 2,
            "minInSyncReplicas": 2,
            # Any in-sync replica may become master, so each must have all acknowledged messages.
            "allAckInSyncStateSet": "true",
            "flushDiskType": self.flush,
        }

    @classmethod
    def version(cls) -> str:
        return VERSION


class RocketMQ5InMemory(RocketMQ5):
    """The same with its default: it waits for no disk."""

    name = "rocketmq5-async"
    title = f"RocketMQ {VERSION} controller"
    durability = Durability.MEMORY
    acknowledged = "in the page cache of all replicas in sync, at least two (`flushDiskType=ASYNC_FLUSH`, the default)"
    flush = "ASYNC_FLUSH"
