"""The broker group under test: a name server and its replicas as processes on a ground, and their reports."""

import asyncio
import http.client
import json
import shutil
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from orderlymq_operator.brokers.admin import Admin, AdminError
from orderlymq_operator.plan.actions import ConsumerGroupConfig, TopicConfig, UserConfig
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import request
from orderlymq_runtime.remoting.client import RemotingClient, RemotingError
from orderlymq_runtime.security.clustersecret import make_cluster_secret, read_cluster_secret
from tests.nemesis.clients.accounts import OPERATOR, ORDINARY, Account, SigningClient
from tests.nemesis.ground.disks import Disk
from tests.nemesis.ground.ground import CLIENTS, Ground
from tests.nemesis.ground.ioerrors import IoErrors
from tests.nemesis.ground.processes import Child, python, wait_until
from tests.nemesis.invariants.delays import LATER, LATER_QUEUES
from tests.nemesis.invariants.rights import GUARDED
from tests.nemesis.invariants.transactions import DEALS

TOPIC: Final = "orders"
QUEUES: Final = 8
#: The topics in addition to the one whose order is judged, and their queues; each gets a few messages per second.
BESIDES: Final[Mapping[str, int]] = {DEALS: 4, LATER: LATER_QUEUES, GUARDED: 1}
_READ_WRITE: Final = 6
_ORDERED: Final = ConsumerGroupConfig(
    orderly=True, enabled=True, retry_times=16, retry_queues=1, consume_timeout_minutes=15
)

# The lanes of messages from all clients: RocketMQ's clients store no sharding key.
_BY_KEY: Final = replace(_ORDERED, concurrency="Key", lane_key_property="KEYS")

START_TIMEOUT_S: Final = 60.0
STATUS_TIMEOUT_S: Final = 1.0

# Few entries are kept, so that a replica that was away for some seconds under load needs a snapshot.
RAFT: Final[Mapping[str, Any]] = {"entries_kept": 400, "snapshot_chunk_size": 65_536}

Result = TypeVar("Result")


@dataclass(slots=True)
class Cluster:
    """A name server and *replicas* replicas, with places for one more that joins.

    Attributes:
        guarded: only signed requests are served.
        topics: what `declare` creates, with its number of queues.
    """

    directory: Path
    replicas: int
    ground: Ground
    disks: dict[int, Disk] = field(default_factory=dict)
    io_errors: dict[int, IoErrors] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    raft: Mapping[str, Any] = field(default_factory=dict)
    guarded: bool = False
    topics: Mapping[str, int] = field(default_factory=lambda: {TOPIC: QUEUES})
    name_server: Child = field(init=False)
    brokers: dict[int, Child] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        host, port = self.ground.name_server
        path = self.directory / "name-server.json"
        secret = self.directory / "cluster.secret"
        make_cluster_secret(secret)
        listen = {"host": host, "port": port}
        path.write_text(json.dumps({"listen": listen, "cluster_secret_file": str(secret)}))
        self.name_server = Child(
            "name server",
            [
                *self.ground.within(CLIENTS),
                *python("orderlymq_nameserver", "--settings", str(path)),
            ],
            self.directory / "name-server.log",
        )
        for node in range(1, self.replicas + 1):
            self.add(node)

    def data_dir(self, node: int) -> Path:
        disk = self.disks.get(node)
        return disk.where / "data" if disk else self.directory / f"node-{node}"

    def add(self, node: int, *, join: bool = False) -> Child:
        """Make a replica's process without starting it."""
        path = self.directory / f"broker-{node}.json"
        path.write_text(json.dumps({**self._settings(node), "join": join}))
        errors = self.io_errors.get(node)
        child = Child(
            f"node {node}",
            [*self.ground.within(node), *python("orderlymq_broker", "--settings", str(path))],
            self.directory / f"broker-{node}.log",
            errors.environment() if errors else {},
        )
        self.brokers[node] = child
        return child

    def _settings(self, node: int) -> dict[str, Any]:
        members = sorted({*range(1, self.replicas + 1), node})
        place = self.ground.place(node)
        address = dict(zip(("host", "port"), self.ground.address, strict=True))
        found: dict[str, Any] = {
            "cluster": "C",
            "group": "g",
            "node_id": node,
            "peers": {
                str(each): {
                    "host": self.ground.place(each).host,
                    "port": self.ground.place(each).raft_port,
                }
                for each in members
            },
            "address": address,
            "bind": self.ground.bind,
            "http": {"host": place.host, "port": place.http_port},
            "data_dir": str(self.data_dir(node)),
            "cluster_secret_file": str(self.directory / "cluster.secret"),
            "name_servers": [dict(zip(("host", "port"), self.ground.name_server, strict=True))],
            "raft": {**RAFT, **self.raft},
            # All topics are declared. If a Java producer's first request for a topic timed out, it would take the
            # template of new topics, where one is shown, and other queues.
            "auto_create_topic": False,
            **self.settings,
        }
        if self.guarded:
            secret = self.directory / "operator.secret"
            secret.write_text(OPERATOR.secret + "\n")
            found["access"] = {
                "enable": True,
                "operator_key": OPERATOR.key,
                "operator_secret_file": str(secret),
            }
        if place.listen_host is not None:
            found["listen"] = {"host": place.listen_host, "port": self.ground.address[1]}
        return found

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all processes and point the clients' address to the leader."""
        for disk in self.disks.values():
            disk.mount()
        self.name_server.start()
        for child in self.brokers.values():
            child.start()
        leader = self.wait_for_leader()
        self.ground.point(leader)

    def declare(self, groups: list[str], *, by_key: Collection[str] = ()) -> None:
        """Create the ordered topics, their queue lists, the consumer groups and the clients' account."""

        async def create(admin: Admin) -> None:
            address = self.ground.service(self.wait_for_leader())
            for topic, queues in self.topics.items():
                await admin.set_topic(address, topic, TopicConfig(queues, _READ_WRITE, order=True))
            for group in groups:
                config = _BY_KEY if group in by_key else _ORDERED
                await admin.set_group(address, group, config)

        self._surely(lambda: self.administer(create))
        if self.guarded:
            self._surely(lambda: self.grant(ORDINARY))
        self.publish()

    def _surely(self, change: Callable[[], None]) -> None:
        """Make a change that may be repeated without harm, across changes of leader."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return change()
            except (AdminError, NoLeaderError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def grant(self, account: Account, permission: str = "PUB|SUB") -> None:
        """Create or change an account.

        Raises:
            AdminError: It was refused or there was no answer; it may take effect all the same.
            NoLeaderError: No replica leads.
        """
        config = UserConfig(
            admin=False,
            default_topic_permission=permission,
            default_group_permission=permission,
            topics=(),
            groups=(),
            white_remote_address="",
            fingerprint="",
        )
        address = self.address_of_leader()
        self.administer(lambda admin: admin.set_user(address, account.key, account.secret, config))

    def delete_account(self, account: Account) -> None:
        """Delete an account; raises as `grant`."""
        address = self.address_of_leader()
        self.administer(lambda admin: admin.delete_user(address, account.key))

    def address_of_leader(self) -> str:
        """Return the address at which the nemesis reaches the leader.

        Raises:
            NoLeaderError: No replica leads.
        """
        leader = self.leader()
        if leader is None:
            raise NoLeaderError("nobody leads")
        return self.ground.service(leader)

    def publish(self) -> None:
        """Send the name server the topics' queue lists, as the operator does whenever one is missing."""
        host, port = self.ground.name_server

        async def put(admin: Admin) -> None:
            for topic, queues in self.topics.items():
                await admin.put_order_config(f"{host}:{port}", topic, f"g:{queues}")

        self.administer(put)

    def wait_for_route(self) -> None:
        """Wait until clients find the topics; before that they would create topics themselves."""
        host, port = self.ground.name_server

        async def ask() -> bool:
            client = RemotingClient()
            try:
                for topic in self.topics:
                    question = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
                    answer = await client.invoke(f"{host}:{port}", question, 1.0)
                    if answer.code != ResponseCode.SUCCESS:
                        return False
            except RemotingError:
                return False
            finally:
                await client.close()
            return True

        if not wait_until(lambda: asyncio.run(ask()), START_TIMEOUT_S):
            topics = ", ".join(self.topics)
            raise NoLeaderError(f"no route for {topics} within {START_TIMEOUT_S:.0f} s")

    def connect(self) -> RemotingClient:
        """Return a client that may send any request here; the caller closes it."""
        return SigningClient() if self.guarded else RemotingClient()

    def administer(self, work: Callable[[Admin], Awaitable[Result]]) -> Result:
        """Run *work* with an administrator's connection.

        Raises:
            AdminError: It was refused or there was no answer.
        """

        async def go() -> Result:
            client = RemotingClient()
            account = (OPERATOR.key, OPERATOR.secret) if self.guarded else ("", "")
            try:
                return await work(
                    Admin(
                        client,
                        *account,
                        cluster_secret=read_cluster_secret(self.directory / "cluster.secret"),
                    )
                )
            finally:
                await client.close()

        return asyncio.run(go())

    def stop(self) -> dict[int, int | None]:
        """Stop all replicas with SIGTERM and return their exit codes."""
        codes = {node: child.end() for node, child in self.brokers.items() if child.process}
        self.name_server.kill()
        return codes

    def close(self) -> None:
        """Kill running processes and unmount."""
        for child in (*self.brokers.values(), self.name_server):
            child.kill()
        for disk in self.disks.values():
            disk.unmount()

    def wipe(self, node: int) -> None:
        """Delete the data of a stopped replica."""
        shutil.rmtree(self.data_dir(node), ignore_errors=True)

    # -- what replicas say -----------------------------------------------------------------------

    def status(self, node: int) -> dict[str, Any] | None:
        """Return the status of a replica, None if it does not answer."""
        place = self.ground.place(node)
        connection = http.client.HTTPConnection(place.host, place.http_port, STATUS_TIMEOUT_S)
        try:
            connection.request("GET", "/status")
            found: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        return found

    def statuses(self) -> dict[int, dict[str, Any]]:
        """Return the statuses of all replicas that answer."""
        asked = [
            node for node, child in list(self.brokers.items()) if child.runs and not child.paused
        ]
        return {node: status for node in asked if (status := self.status(node)) is not None}

    def leader(self) -> int | None:
        """Return the replica that serves in the newest term, None if none does."""
        serving = [status for status in self.statuses().values() if status["serving"]]
        newest = max(serving, key=lambda status: int(status["term"]), default=None)
        return None if newest is None else int(newest["node"])

    def wait_for_leader(self, timeout_s: float = START_TIMEOUT_S) -> int:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            leader = self.leader()
            if leader is not None:
                return leader
            time.sleep(0.05)
        raise NoLeaderError(
            f"nobody leads within {timeout_s:.0f} s; see the logs in {self.directory}"
        )

    def are_all_well(self, *, lag_max: int = 50) -> bool:
        """Return whether every member runs and has applied almost all that is committed."""
        found = self.statuses()
        # This includes replicas that are down at the moment, by a fault or by themselves.
        if set(found) != set(self.brokers) or not any(
            status["serving"] for status in found.values()
        ):
            return False
        commit = max(int(status["commit"]) for status in found.values())
        return all(commit - int(status["applied"]) <= lag_max for status in found.values())

    def wait_until_well(self, timeout_s: float) -> bool:
        return wait_until(self.are_all_well, timeout_s, 0.2)

    def wait_until_equal(self, timeout_s: float) -> bool:
        """Wait until all running replicas have applied the same."""

        def equal() -> bool:
            found = self.statuses()
            running = sum(child.runs for child in self.brokers.values())
            return len(found) == running and len({s["applied"] for s in found.values()}) == 1

        return wait_until(equal, timeout_s, 0.2)

    # -- requests --------------------------------------------------------------------------------

    def transfer(self, target: int) -> str | None:
        """Request a leadership transfer; return the refusal, None if it succeeded."""
        leader = self.leader()
        if leader is None:
            return "nobody leads"
        address = self.ground.service(leader)
        try:
            self.administer(lambda admin: admin.transfer_leadership(address, target))
        except AdminError as error:
            return str(error)
        return None

    def change_membership(self, action: str, node: int, timeout_s: float = 30.0) -> str | None:
        """Add, promote or remove a replica, retrying until it is done; return the last refusal, None if it succeeded."""
        place = self.ground.place(node)
        peer = f"{place.host}:{place.raft_port}"
        deadline = time.monotonic() + timeout_s
        refused: str | None = "nobody leads"
        while refused is not None and time.monotonic() < deadline:
            leader = self.leader()
            if leader is None:
                time.sleep(0.1)
                continue
            address = self.ground.service(leader)
            try:
                self.administer(lambda admin: admin.change_membership(address, action, node, peer))  # noqa: B023 - called within this turn
            except AdminError as error:
                if _is_done_already(action, str(error)):
                    return None
                refused = str(error)
                time.sleep(0.2)
            else:
                refused = None
        return refused


def _is_done_already(action: str, refusal: str) -> bool:
    """Return whether a change was made after all when its answer was lost."""
    done = {
        "add-learner": "is a member already",
        "promote": "is not a learner",
        "remove": "is not a member of the group",
    }
    return done[action] in refusal


class NoLeaderError(Exception):
    """The broker group does not get a leader."""
