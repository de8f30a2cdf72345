from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from orderlymq_operator.plan.actions import (
    Action,
    ConditionReport,
    CreateTopic,
    DeleteGroup,
    DeleteOrderConfig,
    DeleteTopic,
    GroupConfig,
    ObservedNameServer,
    PutOrderConfig,
    Refuse,
    ReportCondition,
    SetGroup,
    StartNameServer,
    StartReplica,
    Subject,
    TopicConfig,
    UpdateTopic,
    lane_of,
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
    """Nothing is created before there is a leader to ask."""
    wanted = desired(topic(), group())

    assert _work(plan(wanted, World().observed())) == [
        StartNameServer(0),
        StartReplica("demo-0", 1, join=False),
        StartReplica("demo-0", 2, join=False),
        StartReplica("demo-0", 3, join=False),
    ]


def test_the_queue_list_of_an_ordered_topic_is_published_before_its_queues_exist() -> None:
    """A client that asks in between sees the whole list, never a part of it."""
    world = World()
    world.settle(desired(groups=2))

    actions = _work(plan(desired(topic(), group(), groups=2), world.observed()))

    assert actions == [
        PutOrderConfig("orders", "demo-0:4;demo-1:4"),
        CreateTopic("orders", "demo-0", TopicConfig(4, 6, order=True)),
        CreateTopic("orders", "demo-1", TopicConfig(4, 6, order=True)),
        SetGroup("billing", "demo-0", GroupConfig(True, True, 16, 1, 15)),
        SetGroup("billing", "demo-1", GroupConfig(True, True, 16, 1, 15)),
    ]


def test_attributes_that_a_tool_gave_a_topic_follow_it_to_a_raft_group_that_gets_it_later() -> None:
    """Law: a raft group begins with what brokers take of them, and keeps its own: a person takes one away group by group."""
    wanted = desired(topic(type="Normal", queues=16), groups=2)
    world = World()
    world.settle(desired(topic(type="Normal"), groups=1))
    world.settle(desired(topic(type="Normal"), groups=2))
    told = (
        ("cleanup.policy", "COMPACTION"),
        ("message.type", "MIXED"),
    )  # an earlier broker took both
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
    """A position needs queues; it is given once, when the group is created."""
    wanted = desired(topic(), group(topics=[{"name": "orders"}], startFrom="Latest"))
    world = World()
    world.settle(desired())

    first = _work(plan(wanted, world.observed()))
    done = _work(world.settle(wanted))

    config = GroupConfig(True, True, 16, 1, 15)
    assert not any(isinstance(action, SetGroup) for action in first)
    assert SetGroup("billing", "demo-0", config, "Latest", ("orders",)) in done


def test_a_group_begins_behind_the_last_message_in_every_raft_group_before_it_exists_in_one() -> (
    None
):
    """A creation that ends in the middle goes on without the position: it has been given already."""
    wanted = desired(topic(), group(topics=[{"name": "orders"}], startFrom="Latest"), groups=2)
    world = _settled(desired(topic(), groups=2))
    config = GroupConfig(True, True, 16, 1, 15)

    first = SetGroup("billing", "demo-0", config, "Latest", ("orders",), ("demo-1",))
    second = SetGroup("billing", "demo-1", config, "Earliest", ("orders",))
    assert _work(plan(wanted, replace(world.observed(), accepted=None))) == [first, second]

    world.perform(first, wanted)
    assert _work(plan(wanted, replace(world.observed(), accepted=None))) == [second]


def test_a_group_that_exists_skips_nothing_in_a_raft_group_added_later() -> None:
    """Latest is meant for the beginning of the group, not for queues that come later."""
    consumers = group(startFrom="Latest")
    world = _settled(desired(consumers))

    done = _work(world.settle(desired(consumers, groups=2)))

    config = GroupConfig(True, True, 16, 1, 15)
    assert SetGroup("billing", "demo-1", config, "Earliest", ()) in done


def test_nothing_is_planned_for_topics_while_a_group_is_silent() -> None:
    """The planner does not know which topics exist there; a guess could spread queues twice."""
    wanted = desired(topic(type="Normal"), groups=2)
    world = World()
    world.settle(desired(groups=2))
    world.groups["demo-1"].leader = None

    assert _work(plan(wanted, world.observed())) == []


def test_nothing_is_planned_for_topics_while_no_name_server_answers() -> None:
    """The published queue list of an ordered topic is the truth, and it cannot be read."""
    wanted = desired(topic())
    world = World()
    world.settle(desired())
    silent = {
        index: replace(item, order_config=None)
        for index, item in world.observed().name_servers.items()
    }

    assert _work(plan(wanted, replace(world.observed(), name_servers=silent))) == []


def test_a_normal_topic_grows_by_update_and_keeps_its_queues() -> None:
    """Existing groups are filled up from the emptiest; no group loses a queue."""
    world = _settled(desired(topic(type="Normal", queues=3), groups=2))

    done = _work(world.settle(desired(topic(type="Normal", queues=8), groups=2)))

    assert done == [
        UpdateTopic("orders", "demo-0", TopicConfig(4, 6, order=False)),
        UpdateTopic("orders", "demo-1", TopicConfig(4, 6, order=False)),
    ]


def test_a_new_group_gets_new_queues_of_normal_topics_and_none_of_ordered_ones() -> None:
    """An ordered topic stays where it was laid out; consumer groups exist everywhere."""
    before = desired(topic("a"), topic("b", type="Normal"), group())
    after = desired(topic("a"), topic("b", type="Normal", queues=12), group(), groups=2)
    world = _settled(before)

    done = _work(world.settle(after))

    created = [action for action in done if not isinstance(action, StartReplica)]
    assert created == [
        CreateTopic("b", "demo-1", TopicConfig(4, 6, order=False)),
        SetGroup("billing", "demo-1", GroupConfig(True, True, 16, 1, 15)),
        CreateTopic("TBW102", "demo-1", TopicConfig(8, 7, order=False)),
    ]


def test_no_send_creates_a_topic_before_every_declared_one_exists() -> None:
    """A producer that runs already would make a declared Ordered topic Normal, and Normal it would stay."""
    wanted = desired(topic("a"), topic("b", type="Normal"), groups=2)
    world = World()

    done = _work(world.settle(wanted))

    template = TopicConfig(8, 7, order=False)
    assert done[-2:] == [CreateTopic("TBW102", name, template) for name in ("demo-0", "demo-1")]
    world.groups["demo-0"].topics.clear()
    assert CreateTopic("TBW102", "demo-0", template) not in plan(wanted, world.observed())


def test_what_needs_a_topic_without_a_finalizer_waits_for_it() -> None:
    """No send may make it as Normal, and a group needs its queues to begin with."""
    wanted = desired(topic(), group(topics=[{"name": "orders"}], startFrom="Latest"))
    world = _settled(desired(config={"autoCreateTopicEnable": False}))

    assert _work(world.settle(replace(wanted, unheld=frozenset({("Topic", "orders")})))) == []
    assert world.settle(wanted)


def test_a_cluster_without_auto_creation_has_no_template() -> None:
    """Nobody may take its queues for those of a topic."""
    world = _settled(desired(topic(), config={"autoCreateTopicEnable": False}))

    assert set(world.groups["demo-0"].topics) == {"orders"}


def test_settings_of_a_group_and_permissions_of_a_topic_change_in_place() -> None:
    """Everything that is not part of the order may change."""
    world = _settled(desired(topic(), group()))
    wanted = desired(
        topic(permission="ReadOnly"),
        group(enabled=False, retry={"maxTimes": 3}, consumeTimeout="90s", onDeadLetter="HoldKey"),
    )

    assert _work(world.settle(wanted)) == [
        UpdateTopic("orders", "demo-0", TopicConfig(8, 4, order=True)),
        SetGroup("billing", "demo-0", GroupConfig(True, False, 3, 1, 2, "HoldKey")),
    ]


def test_a_group_changes_to_keys_in_place() -> None:
    """The brokers judge when it may; the manifest says what is wanted."""
    world = _settled(desired(group()))
    retry = {"pause": "250ms", "pauseMax": "1m30s"}
    wanted = desired(group(concurrency="Key", laneKeyProperty="orderId", retry=retry))
    config = GroupConfig(True, True, 16, 1, 15, "Continue", "Key", "orderId")
    paused = replace(config, retry_pause_ms=250, retry_pause_max_ms=90_000)

    assert _work(world.settle(wanted)) == [SetGroup("billing", "demo-0", paused)]


_CONCURRENT = GroupConfig(False, True, 16, 1, 15, concurrent=True)
_PLAIN = replace(_CONCURRENT, concurrent=False)


def test_a_concurrent_group_is_made_so_and_one_that_exists_is_left() -> None:
    """Brokers may refuse the declaration of one that exists; it is withdrawn of an ordered one. Keys have none."""
    wanted = desired(group(ordering="Concurrent"))
    world = _settled(wanted)
    assert world.groups["demo-0"].consumer_groups["billing"] == _CONCURRENT
    ordered = _settled(desired(group()))

    world.groups["demo-0"].consumer_groups["billing"] = _PLAIN
    ordered.groups["demo-0"].consumer_groups["billing"] = _CONCURRENT

    assert _work(world.settle(wanted)) == []
    changed = desired(group(ordering="Concurrent", retry={"maxTimes": 3}))
    assert _work(world.settle(changed)) == [
        SetGroup("billing", "demo-0", replace(_PLAIN, retry_times=3))
    ]
    assert _work(ordered.settle(desired(group()))) == [
        SetGroup("billing", "demo-0", GroupConfig(True, True, 16, 1, 15))
    ]
    more = desired(group(ordering="Concurrent"), groups=2)
    assert SetGroup("billing", "demo-1", _PLAIN, "Client", ()) in world.settle(more)
    keyed = _settled(desired(group(ordering="Concurrent", concurrency="Key")))
    assert keyed.groups["demo-0"].consumer_groups["billing"].concurrent is False


def test_drift_is_repaired() -> None:
    """The planner restores settings that a tool changed, deleted or withdrew behind its back."""
    wanted = desired(topic(), group())
    world = _settled(wanted)
    world.groups["demo-0"].topics["orders"] = TopicConfig(8, 2, order=False)
    world.groups["demo-0"].consumer_groups.clear()
    world.order_config.clear()
    world.order_config["orders"] = "demo-0:8"

    assert _work(world.settle(wanted)) == [
        UpdateTopic("orders", "demo-0", _ORDERED),
        SetGroup("billing", "demo-0", GroupConfig(True, True, 16, 1, 15)),
    ]


def test_a_topic_that_producers_have_made_behind_its_list_becomes_no_ordered_one() -> None:
    """Law: the list was published, and a producer was faster than the creation: queues with messages are not taken away."""
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
        # Beside its list a tool may have made it as it likes.
        world.order_config["orders"] = text
        for each in world.groups.values():
            each.topics["orders"] = made
        found.topics["orders"] = TopicConfig(4, 6, order=True)
        assert not any(isinstance(each, Refuse) for each in plan(wanted, world.observed()))


def test_a_lost_queue_list_is_published_again_from_the_queues() -> None:
    """A name server that lost its file gets the list that the brokers still hold."""
    wanted = desired(topic(), groups=2)
    world = _settled(wanted)
    world.order_config.clear()

    assert _work(world.settle(wanted)) == [PutOrderConfig("orders", "demo-0:4;demo-1:4")]


def test_a_lost_queue_list_lets_no_ordered_topic_grow_without_a_fence() -> None:
    """The name server that has the list is silent, another one has lost it: the old list comes back before anything else."""
    grown = desired(topic(queues=12, queueChangePolicy="DrainAndSwitch"), groups=2)
    world = World()
    world.settle(desired(topic(), groups=2))
    servers = {0: ObservedNameServer(), 1: ObservedNameServer({})}

    actions = _work(plan(grown, replace(world.observed(), accepted=None, name_servers=servers)))

    assert actions == [PutOrderConfig("orders", "demo-0:4;demo-1:4")]


def test_no_queue_of_an_ordered_topic_is_made_while_a_name_server_lacks_its_list() -> None:
    """A server that is silent for a moment would serve routes without the list: the list is tried first, and fails."""
    wanted = desired(topic(), groups=2)
    world = _settled(desired(groups=2))
    servers = {0: ObservedNameServer({"orders": "demo-0:4;demo-1:4"}), 1: ObservedNameServer()}
    observed = replace(world.observed(), accepted=None, name_servers=servers)

    actions = _work(plan(wanted, observed))

    made = [
        CreateTopic("orders", name, TopicConfig(4, 6, order=True)) for name in ("demo-0", "demo-1")
    ]
    assert actions == [PutOrderConfig("orders", "demo-0:4;demo-1:4"), *made]
    assert len({lane_of(action) for action in actions}) == 1


def test_a_list_that_a_deleted_topic_has_left_behind_says_nothing() -> None:
    """Its name server was silent for long; the topic of that name is another one, and one of the groups is gone."""
    world = _settled(desired(topic(queues=4)))
    world.groups["demo-0"].topics.pop("orders")
    world.order_config["orders"] = "demo-0:4;demo-1:4"
    wanted = desired(topic(queues=4))

    actions = _work(plan(wanted, replace(world.observed(), accepted=None)))

    list_ = PutOrderConfig("orders", "demo-0:4")
    assert actions == [list_, CreateTopic("orders", "demo-0", TopicConfig(4, 6, order=True))]


def test_only_what_was_given_up_with_policy_delete_is_deleted() -> None:
    """Topics nobody declared, and those with policy Retain, stay."""
    world = _settled(desired(topic("keep"), topic("drop"), group("gone")))
    wanted = replace(
        desired(), deleted_topics=frozenset({"drop"}), deleted_consumer_groups=frozenset({"gone"})
    )

    assert _work(world.settle(wanted)) == [
        DeleteGroup("gone", "demo-0"),
        DeleteTopic("drop", "demo-0"),
        DeleteOrderConfig("drop"),
    ]
    assert set(world.groups["demo-0"].topics) == {"keep", "TBW102"}


def test_what_depends_on_something_stands_behind_it_in_the_same_lane() -> None:
    """So that a backend holds it back when the first one fails: the list before the queues, and after them."""
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
        lane = [action for action in actions if lane_of(action) == ("Topic", "orders")]
        assert [type(action) for action in lane] == kinds


def test_the_queue_list_of_a_topic_stays_while_a_group_that_may_hold_queues_is_silent() -> None:
    """Clients would see queues that are left there as a part of the topic."""
    world = World()
    world.settle(desired(topic("orders"), groups=2))
    world.groups["demo-1"].leader = None
    wanted = replace(desired(groups=2), deleted_topics=frozenset({"orders"}))

    actions = plan(wanted, world.observed())

    assert DeleteTopic("orders", "demo-0") in actions
    assert DeleteOrderConfig("orders") not in actions


def test_conditions_say_what_is_missing_and_are_reported_once() -> None:
    """A condition that has not changed is not written again."""
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
    """From nothing to any set of manifests in a bounded number of passes; then the plan is empty."""
    wanted = _manifests(topics, spec)
    world = World()

    world.settle(wanted)

    assert plan(wanted, world.observed()) == []
    for item in topics:
        layout = [group.topics.get(item.topic_name) for group in world.groups.values()]
        assert sum(config.queues for config in layout if config) == item.spec.queues


@settings(deadline=None)  # the machine may be busy
@given(_TOPICS, _CLUSTERS, _TOPICS, _CLUSTERS, st.randoms(use_true_random=False))
def test_any_change_converges_or_is_refused_before_anything_is_touched(
    topics: list[Topic],
    spec: dict[str, object],
    topics_after: list[Topic],
    spec_after: dict[str, object],
    chance: Random,
) -> None:
    """One replica of a group at a time, ordered queues as they were, and no half measures."""
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
    world.settle(wanted)  # checks the rules about replicas in every pass
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
    """A backend that did only a part of a plan, and lost its processes, still arrives."""
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
    """A broker that leads and has not reached a name server yet is of no use to clients that ask there for a route."""
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
