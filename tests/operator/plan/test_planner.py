from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from orderlymq_operator.plan.actions import (
    Action,
    ConditionReport,
    ConsumerGroupConfig,
    CreateTopic,
    DeleteConsumerGroup,
    DeleteOrderConfig,
    DeleteTopic,
    ObservedNameServer,
    PutOrderConfig,
    Refuse,
    ReportCondition,
    SetConsumerGroup,
    StartNameServer,
    StartReplica,
    Subject,
    TopicConfig,
    UpdateTopic,
    chain_of,
)
from orderlymq_operator.plan.planner import plan
from orderlymq_operator.resources.kinds import Desired, Topic
from tests.operator.examples import desired, group, topic
from tests.operator.world import World

_ORDERED = TopicConfig(8, 6, order=True)


def _work(actions: Sequence[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, ReportCondition)]


def _settled(wanted: Desired) -> World:
    world = World()
    world.settle(wanted)
    return world


def test_a_new_cluster_begins_with_its_processes_only() -> None:
    """Law: a new cluster first starts its processes; nothing else is created before there is a leader."""
    wanted = desired(topic(), group())

    assert _work(plan(wanted, World().observed())) == [
        StartNameServer(0),
        StartReplica("demo-0", 1, join=False),
        StartReplica("demo-0", 2, join=False),
        StartReplica("demo-0", 3, join=False),
    ]


def test_the_queue_list_of_an_ordered_topic_is_published_before_its_queues_exist() -> None:
    """Law: an ordered topic's queue list is published before its queues exist, so clients never see a part of it."""
    world = World()
    world.settle(desired(groups=2))

    actions = _work(plan(desired(topic(), group(), groups=2), world.observed()))

    assert actions == [
        PutOrderConfig("orders", "demo-0:4;demo-1:4"),
        CreateTopic("orders", "demo-0", TopicConfig(4, 6, order=True)),
        CreateTopic("orders", "demo-1", TopicConfig(4, 6, order=True)),
        SetConsumerGroup("billing", "demo-0", ConsumerGroupConfig(True, True, 16, 1, 15)),
        SetConsumerGroup("billing", "demo-1", ConsumerGroupConfig(True, True, 16, 1, 15)),
    ]


def test_attributes_that_a_tool_gave_a_topic_follow_it_to_a_raft_group_that_gets_it_later() -> None:
    """Law: a raft group that gets a topic later begins with the attributes that a tool set elsewhere, and keeps its own."""
    wanted = desired(topic(type="Normal", queues=16), groups=2)
    world = World()
    world.settle(desired(topic(type="Normal"), groups=1))
    world.settle(desired(topic(type="Normal"), groups=2))
    told = (
        ("cleanup.policy", "COMPACTION"),
        ("message.type", "MIXED"),
    )  # An earlier broker took both.
    table = world.groups["demo-0"].topics
    table["orders"] = replace(table["orders"], attributes=told)

    made = _work(world.settle(wanted))
    later = world.groups["demo-1"].topics
    config = TopicConfig(8, 6, order=False, attributes=told[1:])
    assert made == [CreateTopic("orders", "demo-1", config)]
    for own in ((), (("message.type", "NORMAL"),)):
        later["orders"] = replace(config, attributes=own)
        assert world.settle(wanted) == []
        later["orders"] = replace(later["orders"], permission=4)
        changed = replace(config, attributes=own)
        assert _work(world.settle(wanted)) == [UpdateTopic("orders", "demo-1", changed)]


def test_a_group_with_a_start_position_waits_for_its_topics() -> None:
    """Law: a group with a start position waits for its topics; the position is given once, at its creation."""
    wanted = desired(topic(), group(topics=[{"name": "orders"}], startFrom="Latest"))
    world = World()
    world.settle(desired())

    first = _work(plan(wanted, world.observed()))
    done = _work(world.settle(wanted))

    config = ConsumerGroupConfig(True, True, 16, 1, 15)
    assert not any(isinstance(action, SetConsumerGroup) for action in first)
    assert SetConsumerGroup("billing", "demo-0", config, "Latest", ("orders",)) in done


def test_a_group_begins_behind_the_last_message_in_every_raft_group_before_it_exists_in_one() -> (
    None
):
    """Law: Latest is set in every raft group before the group exists in one; a creation that continues does not repeat it."""
    wanted = desired(topic(), group(topics=[{"name": "orders"}], startFrom="Latest"), groups=2)
    world = _settled(desired(topic(), groups=2))
    config = ConsumerGroupConfig(True, True, 16, 1, 15)

    first = SetConsumerGroup("billing", "demo-0", config, "Latest", ("orders",), ("demo-1",))
    second = SetConsumerGroup("billing", "demo-1", config, "Earliest", ("orders",))
    assert _work(plan(wanted, replace(world.observed(), accepted=None))) == [first, second]

    world.perform(first, wanted)
    assert _work(plan(wanted, replace(world.observed(), accepted=None))) == [second]


def test_a_group_that_exists_skips_nothing_in_a_raft_group_added_later() -> None:
    """Law: in a raft group that is added later an existing group starts at the earliest message and skips nothing."""
    consumers = group(startFrom="Latest")
    world = _settled(desired(consumers))

    done = _work(world.settle(desired(consumers, groups=2)))

    config = ConsumerGroupConfig(True, True, 16, 1, 15)
    assert SetConsumerGroup("billing", "demo-1", config, "Earliest", ()) in done


def test_nothing_is_planned_for_topics_while_a_group_is_silent() -> None:
    """Law: nothing is planned for topics while a raft group is silent; a guess could create queues twice."""
    wanted = desired(topic(type="Normal"), groups=2)
    world = World()
    world.settle(desired(groups=2))
    world.groups["demo-1"].leader = None

    assert _work(plan(wanted, world.observed())) == []


def test_nothing_is_planned_for_topics_while_no_name_server_answers() -> None:
    """Law: nothing is planned for topics while no name server answers, because the published lists cannot be read."""
    wanted = desired(topic())
    world = World()
    world.settle(desired())
    silent = {
        index: replace(item, order_config=None)
        for index, item in world.observed().name_servers.items()
    }

    assert _work(plan(wanted, replace(world.observed(), name_servers=silent))) == []


def test_a_normal_topic_grows_by_update_and_keeps_its_queues() -> None:
    """Law: a Normal topic grows by updates, groups with the fewest queues first, and no group loses a queue."""
    world = _settled(desired(topic(type="Normal", queues=3), groups=2))

    done = _work(world.settle(desired(topic(type="Normal", queues=8), groups=2)))

    assert done == [
        UpdateTopic("orders", "demo-0", TopicConfig(4, 6, order=False)),
        UpdateTopic("orders", "demo-1", TopicConfig(4, 6, order=False)),
    ]


def test_a_new_group_gets_new_queues_of_normal_topics_and_none_of_ordered_ones() -> None:
    """Law: a new raft group gets queues of Normal topics and all consumer groups, but no queues of ordered topics."""
    before = desired(topic("a"), topic("b", type="Normal"), group())
    after = desired(topic("a"), topic("b", type="Normal", queues=12), group(), groups=2)
    world = _settled(before)

    done = _work(world.settle(after))

    created = [action for action in done if not isinstance(action, StartReplica)]
    assert created == [
        CreateTopic("b", "demo-1", TopicConfig(4, 6, order=False)),
        SetConsumerGroup("billing", "demo-1", ConsumerGroupConfig(True, True, 16, 1, 15)),
        CreateTopic("TBW102", "demo-1", TopicConfig(8, 7, order=False)),
    ]


def test_no_send_creates_a_topic_before_every_declared_one_exists() -> None:
    """Law: automatic creation by sends is enabled only after each declared topic exists; otherwise it could become Normal."""
    wanted = desired(topic("a"), topic("b", type="Normal"), groups=2)
    world = World()

    done = _work(world.settle(wanted))

    template = TopicConfig(8, 7, order=False)
    assert done[-2:] == [CreateTopic("TBW102", name, template) for name in ("demo-0", "demo-1")]
    world.groups["demo-0"].topics.clear()
    assert CreateTopic("TBW102", "demo-0", template) not in plan(wanted, world.observed())


def test_what_needs_a_topic_without_a_finalizer_waits_for_it() -> None:
    """Law: auto-creation and consumer groups wait for a Topic that has no finalizer yet."""
    wanted = desired(topic(), group(topics=[{"name": "orders"}], startFrom="Latest"))
    world = _settled(desired(config={"autoCreateTopicEnable": False}))

    assert _work(world.settle(replace(wanted, unheld=frozenset({("Topic", "orders")})))) == []
    assert world.settle(wanted)


def test_a_cluster_without_auto_creation_has_no_template() -> None:
    """Law: without automatic creation there is no template topic."""
    world = _settled(desired(topic(), config={"autoCreateTopicEnable": False}))

    assert set(world.groups["demo-0"].topics) == {"orders"}


def test_settings_of_a_group_and_permissions_of_a_topic_change_in_place() -> None:
    """Law: settings of a group and permissions of a topic are changed in place."""
    world = _settled(desired(topic(), group()))
    wanted = desired(
        topic(permission="ReadOnly"),
        group(enabled=False, retry={"maxTimes": 3}, consumeTimeout="90s", onDeadLetter="HoldKey"),
    )

    assert _work(world.settle(wanted)) == [
        UpdateTopic("orders", "demo-0", TopicConfig(8, 4, order=True)),
        SetConsumerGroup("billing", "demo-0", ConsumerGroupConfig(True, False, 3, 1, 2, "HoldKey")),
    ]


def test_a_group_changes_to_keys_in_place() -> None:
    """Law: a group changes to order by key in place; brokers decide when."""
    world = _settled(desired(group()))
    retry = {"pause": "250ms", "pauseMax": "1m30s"}
    wanted = desired(group(concurrency="Key", laneKeyProperty="orderId", retry=retry))
    config = ConsumerGroupConfig(True, True, 16, 1, 15, "Continue", "Key", "orderId")
    paused = replace(config, retry_pause_ms=250, retry_pause_max_ms=90_000)

    assert _work(world.settle(wanted)) == [SetConsumerGroup("billing", "demo-0", paused)]


_CONCURRENT = ConsumerGroupConfig(False, True, 16, 1, 15, concurrent=True)
_PLAIN = replace(_CONCURRENT, concurrent=False)


def test_a_concurrent_group_is_made_so_and_one_that_exists_is_left() -> None:
    """Law: a new concurrent group is declared so, an existing one is not;
    ordered and keyed groups have no such declaration.
    """
    wanted = desired(group(ordering="Concurrent"))
    world = _settled(wanted)
    assert world.groups["demo-0"].consumer_groups["billing"] == _CONCURRENT
    ordered = _settled(desired(group()))

    world.groups["demo-0"].consumer_groups["billing"] = _PLAIN
    ordered.groups["demo-0"].consumer_groups["billing"] = _CONCURRENT

    assert _work(world.settle(wanted)) == []
    changed = desired(group(ordering="Concurrent", retry={"maxTimes": 3}))
    assert _work(world.settle(changed)) == [
        SetConsumerGroup("billing", "demo-0", replace(_PLAIN, retry_times=3))
    ]
    assert _work(ordered.settle(desired(group()))) == [
        SetConsumerGroup("billing", "demo-0", ConsumerGroupConfig(True, True, 16, 1, 15))
    ]
    more = desired(group(ordering="Concurrent"), groups=2)
    assert SetConsumerGroup("billing", "demo-1", _PLAIN, "Client", ()) in world.settle(more)
    keyed = _settled(desired(group(ordering="Concurrent", concurrency="Key")))
    assert keyed.groups["demo-0"].consumer_groups["billing"].concurrent is False


def test_drift_is_repaired() -> None:
    """Law: settings that a tool changed, deleted or withdrew are restored."""
    wanted = desired(topic(), group())
    world = _settled(wanted)
    world.groups["demo-0"].topics["orders"] = TopicConfig(8, 2, order=False)
    world.groups["demo-0"].consumer_groups.clear()
    world.order_config.clear()
    world.order_config["orders"] = "demo-0:8"

    assert _work(world.settle(wanted)) == [
        UpdateTopic("orders", "demo-0", _ORDERED),
        SetConsumerGroup("billing", "demo-0", ConsumerGroupConfig(True, True, 16, 1, 15)),
    ]


def test_a_topic_that_producers_have_made_behind_its_list_becomes_no_ordered_one() -> None:
    """Law: a topic that a producer created before its ordered creation is not made ordered,
    because its queues have messages.
    """
    wanted = desired(topic(queues=4), group(), groups=2)
    world = World()
    world.settle(desired(groups=2))
    world.order_config["orders"] = "demo-0:2;demo-1:2"
    made = world.groups["demo-0"].topics["orders"] = TopicConfig(8, 6, order=False)

    (refused,) = plan(wanted, world.observed())

    assert isinstance(refused, Refuse)
    assert (refused.field, refused.reason) == (
        "spec.type",
        "the topic 'orders' exists already and is not ordered",
    )
    beside = {"demo-0:4": world.groups["demo-0"], "demo-1:4": world.groups["demo-1"]}
    for text, found in beside.items():
        # A topic outside its list may be made in any way by a tool.
        world.order_config["orders"] = text
        for each in world.groups.values():
            each.topics["orders"] = made
        found.topics["orders"] = TopicConfig(4, 6, order=True)
        assert not any(isinstance(each, Refuse) for each in plan(wanted, world.observed()))


def test_a_lost_queue_list_is_published_again_from_the_queues() -> None:
    """Law: a lost queue list is published again from the brokers' queues."""
    wanted = desired(topic(), groups=2)
    world = _settled(wanted)
    world.order_config.clear()

    assert _work(world.settle(wanted)) == [PutOrderConfig("orders", "demo-0:4;demo-1:4")]


def test_a_lost_queue_list_lets_no_ordered_topic_grow_without_a_fence() -> None:
    """Law: while one name server has lost the list and the other is silent,
    the old list is restored before the topic grows.
    """
    grown = desired(topic(queues=12, queueChangePolicy="DrainAndSwitch"), groups=2)
    world = World()
    world.settle(desired(topic(), groups=2))
    servers = {0: ObservedNameServer(), 1: ObservedNameServer({})}

    actions = _work(plan(grown, replace(world.observed(), accepted=None, name_servers=servers)))

    assert actions == [PutOrderConfig("orders", "demo-0:4;demo-1:4")]


def test_no_queue_of_an_ordered_topic_is_made_while_a_name_server_lacks_its_list() -> None:
    """Law: no queue of an ordered topic is made while a name server lacks its list; publishing it is tried first."""
    wanted = desired(topic(), groups=2)
    world = _settled(desired(groups=2))
    servers = {0: ObservedNameServer({"orders": "demo-0:4;demo-1:4"}), 1: ObservedNameServer()}
    observed = replace(world.observed(), accepted=None, name_servers=servers)

    actions = _work(plan(wanted, observed))

    made = [
        CreateTopic("orders", name, TopicConfig(4, 6, order=True)) for name in ("demo-0", "demo-1")
    ]
    assert actions == [PutOrderConfig("orders", "demo-0:4;demo-1:4"), *made]
    assert len({chain_of(action) for action in actions}) == 1


def test_a_list_that_a_deleted_topic_has_left_behind_says_nothing() -> None:
    """Law: an old list of a deleted topic is ignored; the topic of that name is a new one, and one group is gone."""
    world = _settled(desired(topic(queues=4)))
    world.groups["demo-0"].topics.pop("orders")
    world.order_config["orders"] = "demo-0:4;demo-1:4"
    wanted = desired(topic(queues=4))

    actions = _work(plan(wanted, replace(world.observed(), accepted=None)))

    list_ = PutOrderConfig("orders", "demo-0:4")
    assert actions == [list_, CreateTopic("orders", "demo-0", TopicConfig(4, 6, order=True))]


def test_only_what_was_given_up_with_policy_delete_is_deleted() -> None:
    """Law: only topics removed with policy Delete are deleted; undeclared ones and those with Retain stay."""
    world = _settled(desired(topic("keep"), topic("drop"), group("gone")))
    wanted = replace(
        desired(), deleted_topics=frozenset({"drop"}), deleted_consumer_groups=frozenset({"gone"})
    )

    assert _work(world.settle(wanted)) == [
        DeleteConsumerGroup("gone", "demo-0"),
        DeleteTopic("drop", "demo-0"),
        DeleteOrderConfig("drop"),
    ]
    assert set(world.groups["demo-0"].topics) == {"keep", "TBW102"}


def test_what_depends_on_something_stands_behind_it_in_the_same_lane() -> None:
    """Law: dependent actions are in one chain in order, so a failure of the first stops the next: the list, then queues,
    then groups.
    """
    world = World()
    world.settle(desired(groups=2))
    made = plan(desired(topic("orders"), groups=2), world.observed())
    world.settle(desired(topic("orders"), groups=2))
    wanted = replace(desired(groups=2), deleted_topics=frozenset({"orders"}))
    gone = plan(wanted, world.observed())

    for actions, kinds in (
        (made, [PutOrderConfig, CreateTopic, CreateTopic]),
        (gone, [DeleteTopic, DeleteTopic, DeleteOrderConfig]),
    ):
        chain = [action for action in actions if chain_of(action) == ("Topic", "orders")]
        assert [type(action) for action in chain] == kinds


def test_the_queue_list_of_a_topic_stays_while_a_group_that_may_hold_queues_is_silent() -> None:
    """Law: a deleted topic's list stays while a silent group may have queues of it."""
    world = World()
    world.settle(desired(topic("orders"), groups=2))
    world.groups["demo-1"].leader = None
    wanted = replace(desired(groups=2), deleted_topics=frozenset({"orders"}))

    actions = plan(wanted, world.observed())

    assert DeleteTopic("orders", "demo-0") in actions
    assert DeleteOrderConfig("orders") not in actions


def test_conditions_say_what_is_missing_and_are_reported_once() -> None:
    """Law: conditions name what is missing, and are written only if they change."""
    wanted = desired(topic())
    world = World()

    first = plan(wanted, world.observed())
    world.settle(wanted)

    reports = [action for action in first if isinstance(action, ReportCondition)]
    assert reports == [
        ReportCondition(
            Subject("Cluster", "demo"),
            ConditionReport("False", "NameServerUnavailable", "name server 0 does not answer"),
        ),
        ReportCondition(
            Subject("Topic", "orders"),
            ConditionReport("False", "BrokerUnavailable", "demo-0 does not answer"),
        ),
    ]
    assert {item.status for item in world.conditions.values()} == {"True"}
    assert plan(wanted, world.observed()) == []


_TOPICS = st.lists(
    st.builds(
        lambda name, kind, queues: topic(name, type=kind, queues=queues),
        st.sampled_from("abcd"),
        st.sampled_from(["Ordered", "Normal", "Delay"]),
        st.integers(1, 20),
    ),
    unique_by=lambda item: item.topic_name,
    max_size=4,
)
_CLUSTERS = st.fixed_dictionaries(
    {
        "groups": st.integers(1, 3),
        "replicasPerGroup": st.sampled_from([1, 3, 5]),
        "nameServers": st.fixed_dictionaries({"replicas": st.integers(1, 3)}),
        "lock": st.fixed_dictionaries({"leaseSeconds": st.integers(32, 35)}),
    }
)


def _manifests(topics: list[Topic], spec: dict[str, object]) -> Desired:
    return desired(*topics, group(), **spec)


@given(_TOPICS, _CLUSTERS)
def test_plans_converge_and_then_stay_silent(topics: list[Topic], spec: dict[str, object]) -> None:
    """Law: from nothing, plans for any manifests converge in a bounded number of passes and are then empty."""
    wanted = _manifests(topics, spec)
    world = World()

    world.settle(wanted)

    assert plan(wanted, world.observed()) == []
    for item in topics:
        layout = [group.topics.get(item.topic_name) for group in world.groups.values()]
        assert sum(config.queues for config in layout if config) == item.spec.queues


@settings(deadline=None)  # The machine may be busy.
@given(_TOPICS, _CLUSTERS, _TOPICS, _CLUSTERS, st.randoms(use_true_random=False))
def test_any_change_converges_or_is_refused_before_anything_is_touched(
    topics: list[Topic],
    spec: dict[str, object],
    topics_after: list[Topic],
    spec_after: dict[str, object],
    chance: Random,
) -> None:
    """Law: any change converges or is refused as a whole; one replica of a group at a time, ordered queues unchanged."""
    world = World()
    world.settle(_manifests(topics, spec))
    for item in world.groups.values():
        item.leader = chance.choice(item.voters())
    ordered = {
        name: {
            group: item.topics[name].queues
            for group, item in world.groups.items()
            if name in item.topics
        }
        for name in world.order_config
    }
    wanted = _manifests(topics_after, spec_after)

    actions = plan(wanted, world.observed())

    if any(isinstance(action, Refuse) for action in actions):
        assert all(isinstance(action, Refuse) for action in actions)
        return
    world.settle(wanted)  # Checks the rules about replicas in every pass.
    assert plan(wanted, world.observed()) == []
    for name, layout in ordered.items():
        assert layout == {
            group: item.topics[name].queues
            for group, item in world.groups.items()
            if name in item.topics
        }


@given(_TOPICS, _CLUSTERS, st.data())
def test_a_crash_at_any_point_is_picked_up(
    topics: list[Topic], spec: dict[str, object], data: st.DataObject
) -> None:
    """Law: if a backend does only part of a plan and loses its processes, the plan still completes later."""
    wanted = _manifests(topics, spec)
    world = World(accepted=wanted)
    for _ in range(data.draw(st.integers(0, 4))):
        actions = plan(wanted, world.observed())
        for action in actions[: data.draw(st.integers(0, len(actions)))]:
            world.perform(action, wanted)
        world.heal()
    for item in world.groups.values():
        for node, replica in item.replicas.items():
            item.replicas[node] = replace(replica, running=False, healthy=False, revision=None)
        item.leader = None

    world.settle(wanted)

    assert plan(wanted, world.observed()) == []


def test_nothing_is_ready_before_clients_can_find_every_group() -> None:
    """Law: a broker is Ready only when name servers know it, because clients need its route."""
    wanted = desired(topic(), group())
    world = _settled(wanted)
    deaf = ObservedNameServer(dict(world.order_config), brokers=frozenset())
    told = ObservedNameServer(dict(world.order_config), brokers=frozenset({"demo-0"}))

    early = plan(wanted, replace(world.observed(), name_servers={0: told, 1: deaf}))

    text = "demo-0 is not registered with name server 1 yet"
    reports = [action.condition for action in early if isinstance(action, ReportCondition)]
    assert reports == [
        ConditionReport("False", "GroupNotReady", text),
        ConditionReport("False", "BrokerUnavailable", text),
        ConditionReport("False", "BrokerUnavailable", text),
    ]
    assert not plan(wanted, replace(world.observed(), name_servers={0: told, 1: told}))
