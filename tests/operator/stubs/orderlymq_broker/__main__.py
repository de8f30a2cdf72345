"""
A stand-in for a broker process: real ports, protocol and settings file, but no raft and no messages.

A group's replicas share one file with topics, groups and membership. The replica with the group's file lock leads and
listens on the group's address, so a leader that ends is replaced as a real one is. A stopped one (SIGSTOP) keeps its port,
as a real one does.
"""

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from orderlymq_protocol.body import config as configbodies
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.pages.server import HealthServer
from orderlymq_runtime.process import loop
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.server import RemotingServer

_CAMPAIGN_S = 0.02


class Replica:
    """One replica of a stand-in group."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.node = int(settings["node_id"])
        data = Path(settings["data_dir"])
        data.mkdir(parents=True, exist_ok=True)
        (data / "DATA").write_text("a replica was here")
        shared = data.parent / f"{settings['group']}.shared"
        self._file = shared
        self._lock = os.open(shared.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
        self._changing = os.open(shared.with_suffix(".changing"), os.O_RDWR | os.O_CREAT)
        self._server: RemotingServer | None = None
        self._http: HealthServer | None = None
        if not shared.exists() and not settings["join"]:
            voters = sorted(map(int, settings["peers"]))
            self._begin({"voters": voters, "learners": [], "topics": {}, "groups": {}, "target": 0})

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._file.read_text())
        return found

    def write(self, shared: dict[str, Any]) -> None:
        new = self._file.with_name(f"{self._file.name}.{self.node}")
        new.write_text(json.dumps(shared))
        new.replace(self._file)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other replicas and tests from changing the file during a change."""
        fcntl.flock(self._changing, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._changing, fcntl.LOCK_UN)

    def _begin(self, shared: dict[str, Any]) -> None:
        """Write the first state, unless another replica already has."""
        new = self._file.with_name(f"{self._file.name}.first{self.node}")
        new.write_text(json.dumps(shared))
        with contextlib.suppress(FileExistsError):
            os.link(new, self._file)
        new.unlink()

    async def run(self) -> None:
        http = self.settings["http"]
        self._http = HealthServer(
            http["host"],
            http["port"],
            ready=lambda: (True, "ready"),
            alive=self._alive,
            status=self.status,
            registry=CollectorRegistry(),
        )
        await self._http.start()
        try:
            while True:
                await self._campaign()
                await asyncio.sleep(_CAMPAIGN_S)
        finally:
            await self._http.close()
            await self._step_down()

    def _alive(self) -> tuple[bool, str]:
        # The one who stops this process waits until an earlier probe was answered.
        with (Path(self.settings["data_dir"]) / "PROBES").open("a") as file:
            file.write(".")
        return True, "ok"

    async def _campaign(self) -> None:
        shared = self.read()
        mine = shared["target"] in (0, self.node) and self.node in shared["voters"]
        if self._server is not None:
            if not mine:
                await self._step_down()
            return
        if not mine:
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        with self._alone():
            self.write({**self.read(), "target": 0, "leader": self.node})
        server = RemotingServer(self, linger_reset=True)
        address = self.settings["address"]
        await server.listen(address["host"], address["port"])
        self._server = server

    async def _step_down(self) -> None:
        if self._server is not None:
            await self._server.close()
            self._server = None
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def status(self) -> dict[str, object]:
        shared = self.read()
        members = [*shared["voters"], *shared["learners"]]
        leads = self._server is not None
        return {
            "role": "leader" if leads else "follower",
            "term": 1,
            "leader": shared.get("leader"),
            "replicas": {str(node): {"match": 1, "lag": 0, "active": True} for node in members},
            "voters": shared["voters"],
            "learners": shared["learners"],
            "settings": self.settings,
        }

    # FrameHandler.

    def connection_made(self, conn: Connection) -> None:
        pass

    def connection_lost(self, conn: Connection) -> None:
        pass

    def received(self, conn: Connection, command: RemotingCommand) -> None:
        with self._alone():
            shared = self.read()
            if command.code in shared.get("mute", ()):
                self.write({**shared, "unanswered": command.code})
                return
            body = self._answer(command, shared)
            self.write(shared)
        code = 0 if body is not None else 3
        conn.send(command.reply(code, body=body or b""))

    def _answer(self, command: RemotingCommand, shared: dict[str, Any]) -> bytes | None:
        ext = command.ext
        match command.code:
            case RequestCode.GET_ALL_TOPIC_CONFIG:
                return json.dumps({"topicConfigTable": shared["topics"]}).encode()
            case RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
                return json.dumps({"subscriptionGroupTable": shared["groups"]}).encode()
            case RequestCode.UPDATE_AND_CREATE_TOPIC:
                shared["topics"][ext["topic"]] = {
                    "topicName": ext["topic"],
                    "readQueueNums": int(ext["readQueueNums"]),
                    "writeQueueNums": int(ext["writeQueueNums"]),
                    "perm": int(ext["perm"]),
                    "order": ext["order"] == "true",
                }
            case RequestCode.DELETE_TOPIC_IN_BROKER:
                shared["topics"].pop(ext["topic"], None)
            case RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
                config = configbodies.SubscriptionGroupConfig.from_json(command.body)
                if config.group_name in shared.get("refused", ()):
                    return None  # As a group with locked queues does.
                shared["groups"][config.group_name] = config.to_json_value()
            case RequestCode.DELETE_SUBSCRIPTIONGROUP:
                shared["groups"].pop(ext["groupName"], None)
            case RequestCode.ORDERLYMQ_TRANSFER_LEADERSHIP:
                shared["target"] = int(ext["target"])
            case RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP:
                self._change_membership(shared, json.loads(command.body))
            case RequestCode.ORDERLYMQ_QUEUE_EXPANSION:
                return b'{"topics": []}'
            case RequestCode.ORDERLYMQ_SET_ASSIGNMENT:
                # An empty answer; the operator uses it to end what its predecessors have sent.
                pass
            case _:
                return None
        return b""

    def _change_membership(self, shared: dict[str, Any], change: dict[str, Any]) -> None:
        node = int(change["node"])
        voters, learners = set(shared["voters"]), set(shared["learners"])
        match change["action"]:
            case "add-learner":
                learners.add(node)
            case "promote":
                learners.discard(node)
                voters.add(node)
            case "remove":
                learners.discard(node)
                voters.discard(node)
        shared["voters"], shared["learners"] = sorted(voters), sorted(learners)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", type=Path, required=True)
    settings = json.loads(parser.parse_args().settings.read_text())
    return loop.run(Replica(settings).run())


if __name__ == "__main__":
    raise SystemExit(main())
