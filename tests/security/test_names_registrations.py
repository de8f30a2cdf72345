"""An attacker at a name server: requests that redirected groups and moved keys before change nothing now."""

import dataclasses
from itertools import count

import pytest

from orderlymq_nameserver.kv import KvTable
from orderlymq_nameserver.processor import NameServerCore
from orderlymq_nameserver.proofs import Proofs
from orderlymq_nameserver.registrations import Identity
from orderlymq_protocol.body.catalogue import QueueData, RegisterBrokerBody, TopicRouteData
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.names import ORDER_NAMESPACE
from orderlymq_protocol.operatortoken import token_max_at
from orderlymq_protocol.signature import Signer
from orderlymq_runtime.remoting.client import RemotingClient
from orderlymq_runtime.remoting.signedcalls import invoke_signed, name_server_signer
from orderlymq_runtime.security.clustersecret import NAME_SERVERS, derived_key
from tests.nameserver.registrations import (
    EXPIRY_MS,
    GROUP_A,
    ask,
    identity_ext,
    queues,
    register_request,
    registration,
    route,
    topic,
)
from tests.nameserver.test_app import TIMEOUT_S, running

SECRET = b"x" * 32
NOW_MS = 1_790_000_000_000
ATTACKER = 66
EVIL = dataclasses.replace(GROUP_A, address="10.6.6.6:10911")
NO_PERMISSION = 16


class Cluster:
    """A name server with a secret, and a broker of the cluster on connection 1."""

    def __init__(self, *, mixed: bool = False) -> None:
        proofs = Proofs(derived_key(SECRET, NAME_SERVERS), "start-1", allow_unsigned=mixed)
        self.core = NameServerCore(KvTable(), expiry_ms=EXPIRY_MS, proofs=proofs)
        numbers = count()
        self.signer = Signer(
            NAME_SERVERS,
            derived_key(SECRET, NAME_SERVERS),
            clock_ms=lambda: NOW_MS,
            nonce=lambda: str(next(numbers)),
        )

    def ask(self, command: RemotingCommand, connection: int = ATTACKER) -> RemotingCommand:
        return self.core.handle(command, connection, 0, NOW_MS)

    def sign(self, command: RemotingCommand) -> RemotingCommand:
        ext = self.signer.sign("ns", command.code, command.ext, command.body)
        return dataclasses.replace(command, ext=ext)

    def ask_signed(self, command: RemotingCommand, connection: int = 1) -> RemotingCommand:
        signed = self.sign(command)
        answer = self.ask(signed, connection)
        if self.signer.learn("ns", answer, signed.ext):
            answer = self.ask(self.sign(command), connection)
        return answer

    def register(self, who: Identity = GROUP_A, body: RegisterBrokerBody | None = None) -> None:
        body = body or registration(3, topic("orders", 8, order=True), topic("TBW102"))
        assert self.ask_signed(register_request(who, body)).code == 0
        queue_list = {"namespace": ORDER_NAMESPACE, "key": "orders", "value": "group-a:8"}
        assert self.ask_signed(request(100, queue_list)).code == 0


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster()
    found.register()
    return found


def _fewer_queues() -> RegisterBrokerBody:
    return registration(1_000_000, topic("orders", 3, order=True))


ATTACKS = {
    "another address": register_request(EVIL, _fewer_queues()),
    "fewer queues": register_request(GROUP_A, _fewer_queues()),
    "good-bye": request(104, identity_ext(GROUP_A)),
    "heartbeat": request(904, identity_ext(GROUP_A)),
    "no writes": request(205, {"brokerName": "group-a"}),
    "writes": request(327, {"brokerName": "group-a"}),
    "deleted topic": request(216, {"topic": "orders"}),
    "entered queues": request(
        217,
        {"topic": "plain"},  # no client may enter queues of an ordered topic
        TopicRouteData((QueueData("group-a", 1, 1, 6, 0),), (), None, {}).to_json(),
    ),
    "queue list": request(
        100, {"namespace": ORDER_NAMESPACE, "key": "orders", "value": "group-a:3"}
    ),
    "no queue list": request(102, {"namespace": ORDER_NAMESPACE, "key": "orders"}),
    "settings": request(318, body=b"orderMessageEnable=true"),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
@pytest.mark.parametrize("mixed", [False, True])
def test_a_stranger_changes_no_route(attack: RemotingCommand, mixed: bool) -> None:
    """C3: the route of an ordered topic is the same before and after the attack, and the refusal gives the reason."""
    cluster = Cluster(mixed=mixed)
    cluster.register()
    before = route(cluster.core, "orders")

    answer = cluster.ask(attack)

    assert answer.code == NO_PERMISSION
    assert "signature of the cluster" in str(answer.remark) or "that signs" in str(answer.remark)
    assert route(cluster.core, "orders") == before


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
def test_the_cluster_may_do_all_of_it(cluster: Cluster, attack: RemotingCommand) -> None:
    """The same requests are served if they are signed."""
    assert cluster.ask_signed(attack).code == 0


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
def test_a_copied_signature_is_worth_nothing(cluster: Cluster, attack: RemotingCommand) -> None:
    """A witness of a signed request can neither replay it nor use its signature for another request."""
    seen = cluster.sign(request(904, identity_ext(GROUP_A)))
    assert cluster.ask(seen).code == 0
    stolen = {name: value for name, value in seen.ext.items() if name.startswith("Omq")}

    assert cluster.ask(seen).code == NO_PERMISSION
    forged = dataclasses.replace(attack, ext={**attack.ext, **stolen})
    assert cluster.ask(forged).code == NO_PERMISSION


def test_another_start_of_the_name_server_takes_no_copy(cluster: Cluster) -> None:
    """A restart loses all nonces, but requests that were signed before it are refused."""
    seen = cluster.sign(register_request(GROUP_A, registration(9, topic("orders", 8, order=True))))
    proofs = Proofs(derived_key(SECRET, NAME_SERVERS), "start-2")
    again = NameServerCore(KvTable(), expiry_ms=EXPIRY_MS, proofs=proofs)

    answer = again.handle(seen, ATTACKER, 0, NOW_MS)

    assert (answer.code, answer.ext["OmqServer"]) == (NO_PERMISSION, "start-2")
    assert route(again, "orders") is None


def test_a_question_keeps_no_broker_alive(cluster: Cluster) -> None:
    """Unsigned 322 used to renew a registration, so that a dead broker group stayed in the routes for ever."""
    ext = identity_ext(GROUP_A)
    body = b'{"counter":3,"stateVersion":0,"timestamp":1}'
    assert cluster.ask(request(322, ext, body)).code == 0

    cluster.core.routes.connection_closed(1)

    assert cluster.core.routes.cluster_info().broker_addr_table == {}


def test_what_asks_needs_no_signature(cluster: Cluster) -> None:
    """mqadmin's lists, routes and other namespaces work without signatures, as with RocketMQ."""
    assert queues(cluster.core, "orders") == {"group-a": 8}
    for code in (106, 206, 319):
        assert cluster.ask(request(code)).code == 0
    own = {"namespace": "PROJECT", "key": "a", "value": "b"}
    assert ask(cluster.core, 100, **own).code == 0
    assert ask(cluster.core, 101, namespace="PROJECT", key="a").ext["value"] == "b"
    assert ask(cluster.core, 102, namespace="PROJECT", key="a").code == 0


def test_a_mixed_fleet_takes_brokers_of_rocketmq() -> None:
    """With the setting, RocketMQ's brokers register, unregister and are administered, under names of their own."""
    cluster = Cluster(mixed=True)
    cluster.register()
    theirs = Identity("C", "rocketmq-a", 0, "10.0.0.9:10911")

    assert cluster.ask(register_request(theirs, registration(1, topic("plain")))).code == 0
    assert queues(cluster.core, "plain") == {"rocketmq-a": 4}
    assert cluster.ask(request(205, {"brokerName": "rocketmq-a"})).code == 0
    assert cluster.ask(request(104, identity_ext(theirs))).code == 0
    assert queues(cluster.core, "plain") == {}


def test_a_broker_of_rocketmq_adds_no_queues_to_an_ordered_topic() -> None:
    """The registration of RocketMQ's broker would move keys of the cluster's ordered topic."""
    cluster = Cluster(mixed=True)
    cluster.register()
    before = route(cluster.core, "orders")

    theirs = Identity("C", "rocketmq-a", 0, "10.0.0.9:10911")
    body = registration(1, topic("orders", 5, order=True))
    assert cluster.ask(register_request(theirs, body)).code == 0

    assert route(cluster.core, "orders") == before


def test_a_broker_that_signs_takes_its_name_back() -> None:
    """In a mixed fleet, an unsigned broker that registers first after a restart of the name server does not keep the name."""
    cluster = Cluster(mixed=True)
    assert cluster.ask(register_request(EVIL, _fewer_queues())).code == 0

    cluster.register()

    found = route(cluster.core, "orders")
    assert found["brokerDatas"][0]["brokerAddrs"] == {"0": GROUP_A.address}
    assert queues(cluster.core, "orders") == {"group-a": 8}


async def test_over_sockets_a_signer_learns_the_mark_by_itself() -> None:
    """The first call of a process costs one more request; users need to do nothing."""
    client = RemotingClient()
    async with running(cluster_secret=SECRET) as server:
        address = str(server.address)
        command = register_request(GROUP_A, registration(1, topic("T")))
        signer = name_server_signer(SECRET)

        signed = await invoke_signed(client, signer, address, command, TIMEOUT_S)
        unsigned = await client.invoke(address, command, TIMEOUT_S)
        stranger = await invoke_signed(
            client, name_server_signer(b"y" * 32), address, command, TIMEOUT_S
        )

        assert (signed.code, unsigned.code, stranger.code) == (0, NO_PERMISSION, NO_PERMISSION)
    await client.close()


def test_what_holds_already_may_be_asked_unsigned(cluster: Cluster) -> None:
    """mqadmin deletes a topic at its brokers and then here, where the deletion changes nothing any more."""
    same = {"namespace": ORDER_NAMESPACE, "key": "orders", "value": "group-a:8"}

    assert cluster.ask(request(100, same)).code == 0
    assert cluster.ask(request(102, {"namespace": ORDER_NAMESPACE, "key": "gone"})).code == 0
    assert cluster.ask(request(216, {"topic": "gone"})).code == 0
    assert cluster.core.kv.table(ORDER_NAMESPACE) == {"orders": "group-a:8"}


@pytest.mark.parametrize("name", ["%RETRY%billing", "%DLQ%billing"])
def test_a_topic_of_a_group_stays_where_brokers_register_it(cluster: Cluster, name: str) -> None:
    """The dashboard deletes a group broker by broker and asks here after each: a refusal would end its work half-way."""
    cluster.register(body=registration(4, topic("orders", 8, order=True), topic(name)))

    assert cluster.ask(request(216, {"topic": name})).code == 0
    assert cluster.core.routes.route(name) is not None


def _listed(code: int, token: object, value: str = "group-a:8") -> RemotingCommand:
    ext = {"namespace": ORDER_NAMESPACE, "key": "orders", "value": value}
    return request(code, {**ext, "operatorToken": str(token)})


def test_a_queue_list_of_a_former_operator_comes_too_late(cluster: Cluster) -> None:
    """Law: a former operator can neither withdraw nor replace a list that its successor has published."""
    assert cluster.ask_signed(_listed(100, 8, "group-a:12")).code == 0

    for late in (_listed(102, 7), _listed(100, 7)):
        refused = cluster.ask_signed(late)
        assert (refused.code, "operatorToken 7 is smaller than 8" in str(refused.remark)) == (
            1,
            True,
        )
    assert cluster.core.kv.get(ORDER_NAMESPACE, "orders") == "group-a:12"
    assert cluster.ask_signed(_listed(102, 8)).code == 0
    # Tools that people use send no token.
    queue_list = {"namespace": ORDER_NAMESPACE, "key": "orders", "value": "group-a:8"}
    assert cluster.ask_signed(request(100, queue_list)).code == 0


@pytest.mark.parametrize("token", [-1, "", "seven", "9" * 5_000])
def test_a_text_that_is_no_token_is_refused(cluster: Cluster, token: object) -> None:
    """Law: a malformed token changes no list and locks no operator out."""
    assert cluster.ask_signed(_listed(100, token, "group-a:9")).code == 1

    assert cluster.ask_signed(_listed(102, 1)).code == 0


def test_a_token_from_a_clock_that_is_ahead_locks_nobody_out(cluster: Cluster) -> None:
    """Law: a token beyond the present time, or an unsigned one, publishes its list but does not fence later operators."""
    assert cluster.ask_signed(_listed(100, token_max_at(NOW_MS) + 1, "group-a:9")).code == 0
    assert cluster.ask(_listed(100, token_max_at(NOW_MS), "group-a:9")).code == 0

    assert cluster.ask_signed(_listed(102, 1)).code == 0
