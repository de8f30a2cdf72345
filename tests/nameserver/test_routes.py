"""The laws of the registry: which groups are alive, whose topic table counts, what an ordered topic keeps."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orderlymq_nameserver.kv import KvTable
from orderlymq_nameserver.processor import NameServerCore
from orderlymq_nameserver.registrations import Identity
from tests.nameserver.registrations import (
    EXPIRY_MS,
    GROUP_A,
    GROUP_B,
    ask,
    core,
    queues,
    queues_of_go,
    register,
    register_request,
    registration,
    route,
    topic,
)


def test_a_group_lives_until_the_last_connection_that_registered_it_is_lost() -> None:
    """Law: all replicas publish one address, so losing some of their connections changes nothing."""
    server = core()
    for connection in (1, 2, 3):
        register(server, GROUP_A, registration(1, topic("T")), connection=connection)

    assert server.routes.connection_closed(1) == []
    assert server.routes.connection_closed(3) == []
    before = queues(server, "T")
    assert server.routes.connection_closed(2) == ["group-a"]

    assert before == {"group-a": 4}
    assert route(server, "T") is None
    assert ask(server, 106).body == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'


def test_what_a_connection_has_unregistered_is_forgotten_before_it_ends() -> None:
    """Law: names that come and go on one connection take no memory; registrations that it keeps alive end with it."""
    server = core()
    register(server, GROUP_A, registration(1, topic("T")), connection=1)
    for number in range(50):
        name = Identity("shop", f"group-{number}", 0, f"192.0.2.9:{number}")
        register(server, name, registration(1), connection=1)
        server.routes.unregister(name, 1)

    assert server.routes._names_of == {1: {"group-a"}}
    assert server.routes.connection_closed(1) == ["group-a"]


def test_a_silent_registration_expires_after_120_s_and_its_connection_is_named() -> None:
    """Law: each connection expires by itself; the broker group is removed with its last one."""
    server = core()
    register(server, GROUP_A, registration(1, topic("T")), connection=1, now_ms=0)
    register(server, GROUP_A, registration(1, topic("T")), connection=2, now_ms=60_000)

    assert server.routes.expire(EXPIRY_MS) == ([], [])
    assert server.routes.expire(EXPIRY_MS + 1) == ([], [1])
    assert queues(server, "T") == {"group-a": 4}
    assert server.routes.expire(60_000 + EXPIRY_MS + 1) == (["group-a"], [2])
    assert route(server, "T") is None


def test_a_broker_may_announce_its_own_expiry() -> None:
    """Law: heartbeatTimeoutMillis of 5.x replaces the 120 s."""
    server = core()
    server.routes.register(
        GROUP_A, registration(1), ha_address="", connection=1, now_ms=0, expiry_ms=1_000
    )

    assert server.routes.expire(1_001) == (["group-a"], [1])


def test_the_highest_version_wins_among_replicas() -> None:
    """Law: a replica that lags keeps the broker group alive and changes no topic."""
    server = core()
    register(server, GROUP_A, registration(5, topic("T", 8), topic("New")), connection=1)
    register(server, GROUP_A, registration(4, topic("T", 4)), connection=2)
    server.routes.connection_closed(1)
    register(server, GROUP_A, registration(4, topic("T", 4)), connection=2)

    assert (queues(server, "T"), queues(server, "New")) == ({"group-a": 8}, {"group-a": 4})

    register(server, GROUP_A, registration(6, topic("T", 8)), connection=2)
    assert (queues(server, "T"), queues(server, "New")) == ({"group-a": 8}, {})


def test_a_broker_by_itself_may_register_any_other_version() -> None:
    """Law: RocketMQ's rule holds for RocketMQ's brokers: any version that differs counts."""
    server = core()
    register(server, GROUP_A, registration(5, topic("T", 8)))
    register(server, GROUP_A, registration(5, topic("Same version", 8)))
    assert queues(server, "T") == {"group-a": 8}

    register(server, GROUP_A, registration(1, topic("T", 2)))
    assert queues(server, "T") == {"group-a": 2}


def test_only_id_0_changes_topics_once_it_has_registered() -> None:
    """Law: a follower's table counts only while there is no master."""
    server = core()
    slave = Identity("C", "group-a", 1, "10.0.0.9:10911")
    register(server, slave, registration(9, topic("T", 2)), connection=2)
    assert queues(server, "T") == {"group-a": 2}

    register(server, GROUP_A, registration(1, topic("T", 4)), connection=1)
    reply = register(server, slave, registration(10, topic("T", 2)), connection=2)

    assert queues(server, "T") == {"group-a": 4}
    assert reply.ext == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
    assert route(server, "T")["brokerDatas"][0]["brokerAddrs"] == {
        "0": "10.0.0.1:10911",
        "1": "10.0.0.9:10911",
    }


def test_a_broker_that_takes_another_id_at_its_address_loses_the_old_one() -> None:
    """Law: an address is registered under one id only."""
    server = core()
    slave = Identity("C", "group-a", 1, "10.0.0.9:10911")
    promoted = Identity("C", "group-a", 0, "10.0.0.9:10911")
    register(server, slave, registration(1, topic("T")), connection=2)
    register(server, promoted, registration(2, topic("T")), connection=2)

    assert route(server, "T")["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.9:10911"}


def test_unregistering_ends_only_what_that_connection_registered() -> None:
    """Law: stopping one replica does not remove its broker group from the routes."""
    server = core()
    for connection in (1, 2):
        register(server, GROUP_A, registration(1, topic("T")), connection=connection)
    server.routes.unregister(GROUP_A, 3)
    server.routes.unregister(GROUP_A, 1)
    assert queues(server, "T") == {"group-a": 4}

    server.routes.unregister(GROUP_A, 2)
    assert route(server, "T") is None


def test_the_route_of_an_ordered_topic_is_the_same_before_during_and_after_a_loss() -> None:
    """Law: losing a broker group changes no byte of an ordered topic's route (NSR-08)."""
    server = core()
    orders = topic("orders", 8, order=True)
    register(server, GROUP_B, registration(1, orders, topic("plain")), connection=2)
    register(server, GROUP_A, registration(1, orders, topic("plain")), connection=1)
    before = ask(server, 105, topic="orders").body

    server.routes.connection_closed(1)
    during = ask(server, 105, topic="orders").body
    plain = queues(server, "plain")
    register(server, GROUP_A, registration(1, orders, topic("plain")), connection=3)
    after = ask(server, 105, topic="orders").body

    assert before == during == after
    assert list(queues(server, "orders")) == ["group-a", "group-b"]
    assert route(server, "orders")["orderTopicConf"] == "group-a:8;group-b:8"
    assert plain == {"group-b": 4}
    assert "orderTopicConf" not in route(server, "plain")


def test_an_ordered_topic_keeps_id_0_while_only_a_follower_lives() -> None:
    """Law: without id 0 a Java producer would drop the queues."""
    server = core()
    slave = Identity("C", "group-a", 1, "10.0.0.9:10911")
    body = registration(1, topic("orders", order=True), topic("plain"))
    register(server, GROUP_A, body, connection=1)
    register(server, slave, body, connection=2)
    server.routes.connection_closed(1)

    assert route(server, "orders")["brokerDatas"][0]["brokerAddrs"] == {
        "0": "10.0.0.1:10911",
        "1": "10.0.0.9:10911",
    }
    assert route(server, "plain")["brokerDatas"][0]["brokerAddrs"] == {"1": "10.0.0.9:10911"}


def test_an_ordered_topic_goes_when_it_is_deleted_or_a_higher_version_lacks_it() -> None:
    """Law: nothing else removes an ordered topic from the route, unless its broker group comes from a backup."""
    server = core()
    register(server, GROUP_A, registration(5, topic("x", order=True), topic("y", order=True)))
    server.routes.connection_closed(1)

    for lagging in (4, 5):
        register(server, GROUP_A, registration(lagging), connection=2)
    assert (queues(server, "x"), queues(server, "y")) == ({"group-a": 4}, {"group-a": 4})
    register(server, GROUP_A, registration(6, topic("y", order=True)), connection=2)
    assert (queues(server, "x"), queues(server, "y")) == ({}, {"group-a": 4})
    server.routes.connection_closed(2)
    ask(server, 216, topic="y")
    assert queues(server, "y") == {}
    assert server.routes.topics() == []


def test_a_lagging_replica_does_not_shrink_an_ordered_topic() -> None:
    """Law: the queue count of an ordered topic is that of the highest version that was registered."""
    server = core()
    register(server, GROUP_A, registration(5, topic("x", 8, order=True)))
    server.routes.connection_closed(1)
    register(server, GROUP_A, registration(4, topic("x", 4, order=True)), connection=2)
    assert queues(server, "x") == {"group-a": 8}

    register(server, GROUP_A, registration(5, topic("x", 8, order=True)), connection=3)
    register(server, GROUP_A, registration(6, topic("x", 16, order=True)), connection=3)
    assert queues(server, "x") == {"group-a": 16}


def test_an_administrators_order_conf_makes_a_topic_ordered_until_it_is_deleted() -> None:
    """Law: ORDER_TOPIC_CONFIG is sent unchanged, and keeps the topic as a declaration does."""
    server = core()
    register(server, GROUP_A, registration(1, topic("T")))
    ask(server, 100, namespace="ORDER_TOPIC_CONFIG", key="T", value="group-a:4;group-z:4")
    server.routes.connection_closed(1)

    kept = route(server, "T")
    ask(server, 102, namespace="ORDER_TOPIC_CONFIG", key="T")

    assert kept["orderTopicConf"] == "group-a:4;group-z:4"
    assert [q["brokerName"] for q in kept["queueDatas"]] == ["group-a"]
    assert kept["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911"}
    assert route(server, "T") is None


def test_a_name_belongs_to_one_cluster_while_it_lives() -> None:
    """Law: a second cluster cannot take over the name of a living broker; the refusal says what to do."""
    server = core()
    other = Identity("D", "group-a", 0, "10.9.9.9:10911")
    register(server, GROUP_A, registration(1, topic("T")))

    refusal = server.handle(register_request(other, registration(1)), 2, 0)
    server.routes.connection_closed(1)
    register(server, other, registration(1, topic("T")), connection=2)

    assert refusal.code == 1
    assert "belongs to cluster C: give the broker of cluster D another name" in str(refusal.remark)
    assert route(server, "T")["brokerDatas"][0]["cluster"] == "D"


def test_taking_and_giving_write_permission_lasts_until_the_table_changes() -> None:
    """Law: codes 205 and 327 change every topic of the broker, and the answer says how many."""
    server = core()
    body = registration(1, topic("T"), topic("U"))
    register(server, GROUP_A, body)

    assert ask(server, 205, brokerName="group-a").ext == {"wipeTopicCount": "2"}
    register(server, GROUP_A, body)
    assert route(server, "T")["queueDatas"][0]["perm"] == 4
    assert ask(server, 327, brokerName="group-a").ext == {"addTopicCount": "2"}
    assert route(server, "T")["queueDatas"][0]["perm"] == 6
    ask(server, 205, brokerName="group-a")
    register(server, GROUP_A, registration(2, topic("T"), topic("U")))
    assert route(server, "T")["queueDatas"][0]["perm"] == 6
    assert ask(server, 205, brokerName="nobody").ext == {"wipeTopicCount": "0"}


def test_no_permission_shortens_the_list_of_an_ordered_topic() -> None:
    """Law: clients that hash keys over the writable queues keep the same ones while a group takes no sends.

    The route uses the bit 8 (PERM_PRIORITY), which no client reads: tools that compare the permission with the
    one that they want to set must not see 6.
    """
    server = core()
    for group in (GROUP_A, GROUP_B):
        register(server, group, registration(1, topic("T", order=True), topic("P")))
    before = queues_of_go(server, "T")

    register(server, GROUP_B, registration(2, topic("T", order=True, perm=4), topic("P", perm=4)))

    assert queues_of_go(server, "T") == before
    assert [each["perm"] for each in route(server, "T")["queueDatas"]] == [6, 14]
    assert {name for name, _ in queues_of_go(server, "P")} == {"group-a"}
    server.routes.connection_closed(1)
    assert queues_of_go(server, "T") == before


def test_go_writes_to_the_groups_of_the_queue_list_alone() -> None:
    """Law: a group without order, or outside a published list, neither lengthens nor shortens the list of queues."""
    server = core()
    register(server, GROUP_A, registration(1, topic("T", order=True), topic("L")), connection=1)
    ask(server, 100, namespace="ORDER_TOPIC_CONFIG", key="L", value="group-a:4")
    alone = queues_of_go(server, "T")

    register(server, GROUP_B, registration(1, topic("T"), topic("L", order=True)), connection=2)
    for name in ("T", "L"):
        assert route(server, name)["orderTopicConf"] == "group-a:4"
        assert queues_of_go(server, name) == alone
        assert [each["perm"] for each in route(server, name)["queueDatas"]] == [6, 4]
    server.routes.connection_closed(2)

    assert queues_of_go(server, "T") == queues_of_go(server, "L") == alone
    ask(server, 100, namespace="ORDER_TOPIC_CONFIG", key="L", value="nonsense")
    assert len(queues_of_go(server, "L")) == 8  # a list without a group of the topic is ignored


def test_wiping_the_write_permission_leaves_ordered_topics_as_they_are() -> None:
    """Law: 205 and 327 change no ordered topic; the answer says how many were left and what to do."""
    server = core()
    register(server, GROUP_A, registration(1, topic("P"), topic("L"), topic("T", order=True)))
    ask(server, 100, namespace="ORDER_TOPIC_CONFIG", key="L", value="group-a:4")

    wiped = ask(server, 205, brokerName="group-a")

    assert (wiped.code, wiped.ext) == (0, {"wipeTopicCount": "1"})
    assert "2 ordered topics stay" in str(wiped.remark)
    assert "updateTopicPerm -p 4" in str(wiped.remark)
    assert [len(queues_of_go(server, name)) for name in ("P", "L", "T")] == [0, 4, 4]
    register(server, GROUP_A, registration(2, topic("T", order=True, perm=4)))
    assert ask(server, 327, brokerName="group-a").ext == {"addTopicCount": "0"}
    assert route(server, "T")["queueDatas"][0]["perm"] == 14


def test_no_queues_are_entered_by_hand_in_an_ordered_topic() -> None:
    """Law: 217 of an ordered topic is refused and changes nothing, because other queues would move its keys."""
    server = core()
    register(server, GROUP_A, registration(1, topic("T", order=True)))
    body = (
        b'{"queueDatas":[{"brokerName":"group-a","perm":6,"readQueueNums":2,"writeQueueNums":2}]}'
    )

    reply = ask(server, 217, body, topic="T")

    assert reply.code == 1
    assert "topic[T] is ordered" in str(reply.remark)
    assert queues(server, "T") == {"group-a": 4}


CONNECTIONS = st.integers(1, 3)
NAMES = st.sampled_from(["orders", "payments", "plain", "logs"])


class RegistryMachine(RuleBasedStateMachine):
    """Three replicas of a broker group register, lag, vanish and fall silent in any order.

    The model is the group's history of topic tables, whose versions only grow. It computes the expected
    route without the registry's data structures.
    """

    def __init__(self) -> None:
        super().__init__()
        self.server = NameServerCore(KvTable(), expiry_ms=EXPIRY_MS)
        self.history: list[dict[str, int]] = [{}]
        self.now_ms = 0
        self.replica_version = {1: 0, 2: 0, 3: 0}  # a replica never returns to an older version
        self.seen_ms: dict[int, int] = {}
        self.best_of_life: int | None = None
        self.best_ever = 0
        self.registered: set[int] = set()

    @staticmethod
    def is_ordered(name: str) -> bool:
        return name in {"orders", "payments"}

    @rule(name=NAMES, count=st.integers(1, 8))
    def change_topic(self, name: str, count: int) -> None:
        self.history.append({**self.history[-1], name: count})

    @rule(name=NAMES)
    @precondition(lambda self: self.history[-1])
    def delete_topic(self, name: str) -> None:
        self.history.append({key: n for key, n in self.history[-1].items() if key != name})

    @rule(connection=CONNECTIONS, progress=st.floats(0, 1))
    def register(self, connection: int, progress: float) -> None:
        low, high = self.replica_version[connection], len(self.history) - 1
        version = low + round((high - low) * progress)
        self.replica_version[connection] = version
        topics = [
            topic(name, count, order=self.is_ordered(name))
            for name, count in self.history[version].items()
        ]
        register(
            self.server,
            GROUP_A,
            registration(version, *topics),
            connection=connection,
            now_ms=self.now_ms,
        )
        self.seen_ms[connection] = self.now_ms
        best = self.best_of_life
        self.best_of_life = version if best is None else max(best, version)
        self.best_ever = max(self.best_ever, version)
        self.registered.add(version)

    @rule(connection=CONNECTIONS)
    def lose_connection(self, connection: int) -> None:
        self.server.routes.connection_closed(connection)
        self.seen_ms.pop(connection, None)

    @rule(elapsed_ms=st.integers(0, EXPIRY_MS))
    def pass_time(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        _, silent = self.server.routes.expire(self.now_ms)
        for connection in silent:
            del self.seen_ms[connection]
        assert all(self.now_ms - seen <= EXPIRY_MS for seen in self.seen_ms.values())

    @invariant()
    def the_route_is_what_it_must_be(self) -> None:
        self.server.routes.check()
        assert self.server.routes.topic_count() == len(self.server.routes.topics())
        if not self.seen_ms:
            self.best_of_life = None
        for name in ("orders", "payments", "plain", "logs"):
            served = queues(self.server, name)
            version = self.best_ever if self.is_ordered(name) else self.best_of_life
            count = None if version is None else self.history[version].get(name)
            if self.is_ordered(name) and count is None and self.best_of_life != self.best_ever:
                # The group was lost since then: a replica that lags may bring back a deleted topic.
                older = {self.history[each].get(name) for each in self.registered}
                assert served.get("group-a") in older | {None}
            else:
                assert served == ({} if count is None else {"group-a": count})


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
