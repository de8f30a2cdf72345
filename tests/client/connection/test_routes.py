"""Queue lists from routes: stable, whichever brokers are alive."""

from hypothesis import given
from hypothesis import strategies as st

from orderlymq.connection.routes import (
    Routes,
    TopicRoute,
    parse_order_conf,
    template_route,
    topic_route,
)
from orderlymq_protocol.body.catalogue import BrokerData, QueueData, TopicRouteData
from orderlymq_protocol.body.messagequeue import MessageQueue


def _data(*brokers: tuple[str, int, int], order: str | None = None) -> TopicRouteData:
    return TopicRouteData(
        tuple(QueueData(name, count, count, perm) for name, count, perm in brokers),
        tuple(BrokerData("C", name, {0: f"{name}:1"}) for name, _, _ in brokers),
        order,
    )


def test_queues_stand_in_javas_order_whatever_the_name_server_sent() -> None:
    """Law: queues are sorted by broker name, then queue id, as in Java (SEL-01)."""
    route = topic_route("T", _data(("b", 1, 6), ("a", 2, 6)))

    assert route.publish == (
        MessageQueue("T", "a", 0),
        MessageQueue("T", "a", 1),
        MessageQueue("T", "b", 0),
    )


def test_the_declared_list_counts_even_when_a_broker_is_gone() -> None:
    """Law: the declared list counts even if a broker group is gone, so that `hash % n` does not change (SEL-05, ORD-08,
    NSR-08).
    """
    whole = topic_route("T", _data(("a", 2, 6), ("b", 2, 6), order="a:2;b:2"))
    less = topic_route("T", _data(("a", 2, 6), order="a:2;b:2"))

    assert less.publish == whole.publish
    assert less.is_ordered


def test_a_broker_without_a_leader_keeps_its_queues() -> None:
    """Law: a broker group without a leader keeps its queues; Java drops them and moves keys (SEL-05)."""
    data = TopicRouteData((QueueData("a", 2, 2, 6),), (BrokerData("C", "a", {1: "a:2"}),))

    assert len(topic_route("T", data).publish) == 2


def test_permissions_are_kept() -> None:
    """Law: permission 4 allows reads, 2 writes."""
    route = topic_route("T", _data(("a", 1, 4), ("b", 1, 2)))

    assert [queue.broker_name for queue in route.publish] == ["b"]
    assert [queue.broker_name for queue in route.subscribe] == ["a"]


def test_a_declaration_is_read_and_a_broken_one_ignored() -> None:
    """Law: a declaration is parsed, and a broken part is ignored (wire 4.8)."""
    assert parse_order_conf("broker-a:4;broker-b:8") == {"broker-a": 4, "broker-b": 8}
    assert parse_order_conf("nonsense") is None
    assert parse_order_conf(f"broker-a:{'0' * 5_000}4;broker-b: 8 ") == {
        "broker-a": 4,
        "broker-b": 8,
    }
    assert parse_order_conf("broker-a:0;:4;broker-b:-1") == {"broker-a": 0}
    assert parse_order_conf(None) is None


def test_a_topic_to_be_created_gets_at_most_the_wanted_queues() -> None:
    """Law: a topic to be created gets at most the wanted number of queues: min(4, the template's 8) (PRO-08)."""
    template = topic_route("TBW102", _data(("a", 8, 7)))

    assert template_route("T", template, 4) == topic_route("T", _data(("a", 4, 6)))


def test_routes_show_whether_something_changed_and_where_leaders_are() -> None:
    """Law: an update says whether the route changed, and routes give the leaders' addresses (CLI-06)."""
    routes = Routes()

    first = routes.update("T", _data(("a", 2, 6)))
    same = routes.update("T", _data(("a", 2, 6)))
    grown = routes.update("T", _data(("a", 4, 6)))

    assert (first, same, grown) == (True, False, True)
    assert routes.address("a") == "a:1"
    assert routes.address("x") is None
    assert routes.addresses() == {"a:1"}
    assert routes.addresses(["T", "unknown"]) == {"a:1"}
    assert routes.topics == ("T",)
    known = routes.get("T")
    routes.forget("T")
    routes.forget("T")
    assert (routes.get("T"), routes.former("T")) == (None, known)
    assert isinstance(topic_route("T", TopicRouteData()), TopicRoute)


def test_a_removed_group_of_brokers_is_greeted_no_more() -> None:
    """Law: a removed broker group gets no heartbeats, but its last address stays for returned messages."""
    routes = Routes()
    routes.update("T", _data(("a", 2, 6), ("b", 2, 6)))

    routes.update("T", _data(("a", 2, 6)))

    assert routes.addresses() == {"a:1"}
    assert routes.address("b") == "b:1"


def test_a_group_that_is_away_is_greeted_while_a_topic_declares_it() -> None:
    """Law: a broker group that is away gets heartbeats while a topic declares it."""
    routes = Routes()
    routes.update("T", _data(("a", 2, 6), ("b", 2, 6), order="a:2;b:2"))

    routes.update("T", _data(("a", 2, 6), order="a:2;b:2"))

    assert routes.addresses() == {"a:1", "b:1"}
    assert routes.addresses(["T"]) == {"a:1"}


def test_a_group_is_greeted_until_the_last_of_its_topics_is_forgotten() -> None:
    """Law: a broker group gets heartbeats until its last topic is forgotten; senders still find its leader."""
    routes = Routes()
    routes.update("T", _data(("a", 2, 6)))
    routes.update("U", _data(("a", 2, 6), ("b", 1, 6)))

    routes.forget("U")
    after_one = routes.addresses()
    routes.forget("T")

    assert (after_one, routes.addresses()) == ({"a:1"}, set())
    assert (routes.former("T"), routes.address("a")) == (
        topic_route("T", _data(("a", 2, 6))),
        "a:1",
    )


@given(
    st.lists(
        st.tuples(st.sampled_from("TUV"), st.sets(st.sampled_from("abcd")) | st.none()), max_size=30
    )
)
def test_who_is_greeted_is_who_present_routes_name(
    changes: list[tuple[str, set[str] | None]],
) -> None:
    """Law: heartbeats go to the addresses in present routes; a slow twin looks at all routes."""
    routes, present = Routes(), dict[str, set[str]]()

    for topic, brokers in changes:
        if brokers is None:
            routes.forget(topic)
            present.pop(topic, None)
        else:
            routes.update(topic, _data(*((name, 2, 6) for name in sorted(brokers))))
            present[topic] = brokers
        assert routes.addresses() == {f"{name}:1" for name in set().union(*present.values())}
