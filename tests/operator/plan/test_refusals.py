from dataclasses import replace
from typing import Any

import pytest

from orderlymq_operator.plan.actions import Observed, ObservedGroup, ObservedNameServer, TopicConfig
from orderlymq_operator.plan.planner import plan
from orderlymq_operator.plan.refusals import of_change, refusals
from orderlymq_operator.resources.kinds import Desired
from tests.operator.examples import cluster, desired, group, topic
from tests.operator.world import World


def _refused(before: Desired, after: Desired) -> list[tuple[str, str]]:
    return [(item.name, item.field) for item in refusals(after, Observed(accepted=before))]


@pytest.mark.parametrize(
    "name",
    [
        "%DLQ%billing",
        "%RETRY%billing",
        "RMQ_SYS_TRACE_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "TBW102",
        "demo",
        "demo-0",
        "demo_REPLY_TOPIC",
        "rmq_sys_orders",
    ],
)
def test_a_name_that_brokers_keep_for_themselves_is_refused_before_anything_is_sent(
    name: str,
) -> None:
    """Law: a topic with a name reserved by brokers is refused before anything is sent."""
    wanted = desired()
    named = replace(wanted, topics=(topic("orders", topicName=name), *wanted.topics))

    assert [(item.name, item.field) for item in refusals(named, Observed())] == [
        ("orders", "spec.topicName")
    ]


def test_a_cluster_whose_new_group_takes_the_name_of_a_topic_is_refused() -> None:
    """Law: a change is refused if a new group would have an existing topic's name; what already stood together is not."""
    before = desired(topic("demo-1"))
    after = replace(before, cluster=cluster(groups=2))
    observed = Observed(accepted=before)

    assert not of_change(refusals(before, observed), before, before)
    (refusal,) = of_change(refusals(after, observed), after, before)
    assert (refusal.name, refusal.field) == ("demo-1", "spec.topicName")
    assert not of_change(refusals(after, Observed(accepted=after)), after, after)


@pytest.mark.parametrize("name", ["a\x01b", "\n", "a\u2028b"])
def test_a_group_whose_keys_no_message_can_carry_is_refused(name: str) -> None:
    """Law: a group whose key property could not be in a message (control characters) is refused."""
    bad = group("billing", concurrency="Key", laneKeyProperty=name)
    good = group("audit", concurrency="Key", laneKeyProperty="Order id, größer")

    assert [(item.name, item.field) for item in refusals(desired(bad, good), Observed())] == [
        ("billing", "spec.laneKeyProperty")
    ]


@pytest.mark.parametrize(
    "retry", [{"pause": "6m"}, {"pause": "2s", "pauseMax": "1s"}, {"pauseMax": "25h"}]
)
def test_a_group_whose_pauses_brokers_refuse_is_refused(retry: dict[str, str]) -> None:
    """Law: retry pauses that brokers would refuse are refused: first at most longest, and at most a day."""
    bad, good = (
        group("billing", retry=retry),
        group("audit", retry={"pause": "1s", "pauseMax": "1s"}),
    )

    assert [(item.name, item.field) for item in refusals(desired(bad, good), Observed())] == [
        ("billing", "spec.retry.pauseMax")
    ]


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ({"groups": 2}, {"groups": 1}, "spec.groups"),
        (
            {"nameServers": {"replicas": 2}},
            {"nameServers": {"replicas": 1}},
            "spec.nameServers.replicas",
        ),
        ({"storage": {"size": "1Gi"}}, {"storage": {"size": "1023Mi"}}, "spec.storage.size"),
        ({}, {"local": {"brokerPort": 20911}}, "spec.local"),
    ],
)
def test_a_cluster_does_not_shrink_or_move(
    before: dict[str, Any], after: dict[str, Any], field: str
) -> None:
    """Law: groups, name servers and disks only grow, and addresses, which stored messages contain, do not change."""
    assert _refused(desired(**before), desired(**after)) == [("demo", field)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"groups": 1}, {"groups": 2}),
        ({"replicasPerGroup": 3}, {"replicasPerGroup": 5}),
        ({"replicasPerGroup": 5}, {"replicasPerGroup": 3}),
        ({"storage": {"size": "1Gi"}}, {"storage": {"size": "2Gi"}}),
        ({"storage": {"size": "1Gi"}}, {"storage": {"size": "1024Mi"}}),
        ({"retention": {"time": "1h"}}, {"retention": {"time": "72h"}}),
        ({}, {"config": {"logLevel": "DEBUG"}}),
    ],
)
def test_what_is_safe_is_allowed(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Law: expansion, other replica counts and settings are allowed."""
    assert _refused(desired(**before), desired(**after)) == []


@pytest.mark.parametrize(
    ("running", "wanted", "refused"),
    [
        ({"Disabled"}, "Enforcing", True),
        ({"Enforcing"}, "Disabled", True),
        ({"Disabled", "Permissive"}, "Enforcing", True),
        ({"Permissive", "Enforcing"}, "Disabled", True),
        ({"Disabled", "Permissive"}, "Disabled", False),
        ({"Permissive"}, "Enforcing", False),
        (set(), "Enforcing", False),
    ],
)
def test_processes_that_could_not_call_each_other_never_run_together(
    running: set[str], wanted: str, refused: bool
) -> None:
    """Law: a change is refused if running processes could not call each other,
    also while the previous step still rolls out.
    """
    after = desired(tls={"mode": wanted, "certificateFile": "/a", "keyFile": "/b"})
    seen = Observed(accepted=desired(), tls_modes=frozenset(running))

    found = refusals(after, seen)

    assert [item.field for item in found] == ["spec.tls.mode"] * refused
    assert all(f"apply Permissive first, then {wanted}" in str(item) for item in found)


@pytest.mark.parametrize("queues", [7, 9, 16])
def test_the_queue_count_of_an_ordered_topic_is_fixed(queues: int) -> None:
    """Law: the queue count of an ordered topic is fixed; otherwise a key would change its queue."""
    (refusal,) = refusals(desired(topic(queues=queues)), Observed(accepted=desired(topic())))

    assert (refusal.kind, refusal.name, refusal.field) == ("Topic", "orders", "spec.queues")
    assert "keeps its 8 queues" in refusal.reason
    assert "keep 8" in refusal.advice


@pytest.mark.parametrize(
    ("before", "after", "fields"),
    [
        ({"queues": 8}, {"queues": 7}, ["spec.queues"]),
        ({"queues": 8}, {"queues": 9}, []),
        ({"queues": 8}, {"queues": 9, "queueChangePolicy": "Reject"}, ["spec.queues"]),
        ({"queues": 8}, {"queues": 9, "queueChangePolicy": "DrainAndSwitch"}, ["spec.queues"]),
        ({}, {"topicName": "other"}, ["spec.topicName"]),
        ({}, {"type": "Delay"}, ["spec.type"]),
        ({}, {"permission": "ReadOnly"}, []),
    ],
)
def test_a_normal_topic_only_grows(
    before: dict[str, Any], after: dict[str, Any], fields: list[str]
) -> None:
    """Law: a Normal topic keeps name and type, and only grows, if its policy allows."""
    found = _refused(
        desired(topic(**{"type": "Normal", **before})),
        desired(topic(**{"type": "Normal", **after})),
    )

    assert found == [("orders", field) for field in fields]


def test_a_consumer_group_keeps_its_name_and_ordering() -> None:
    """Law: a consumer group keeps its name, which offsets belong to, and its ordering."""
    after = desired(group(groupName="other", ordering="Concurrent"))

    assert _refused(desired(group()), after) == [
        ("billing", "spec.groupName"),
        ("billing", "spec.ordering"),
    ]


def test_the_data_of_one_cluster_is_not_given_to_another() -> None:
    """Law: the data of one cluster is never given to another; that is checked first."""
    assert _refused(desired(), Desired(cluster("other"))) == [("other", "metadata.name")]


def _world_with(config: TopicConfig, order_config: dict[str, str]) -> Observed:
    return Observed(
        accepted=desired(),
        name_servers={0: ObservedNameServer(order_config)},
        groups={"demo-0": ObservedGroup(1, {}, {"orders": config}, {})},
    )


@pytest.mark.parametrize(
    ("config", "order_config", "spec", "fields"),
    [
        (TopicConfig(8, 6, order=False), {}, {}, ["spec.type"]),
        (TopicConfig(4, 6, order=True), {}, {}, ["spec.queues"]),
        (TopicConfig(8, 6, order=True), {}, {}, []),
        (TopicConfig(8, 6, order=True), {"orders": "demo-0:8"}, {}, []),
        (TopicConfig(4, 6, order=True), {"orders": "demo-0:4;demo-1:4"}, {}, []),
        (TopicConfig(8, 6, order=True), {"orders": "nonsense"}, {}, []),
        (TopicConfig(8, 6, order=False), {}, {"type": "Normal", "queues": 4}, ["spec.queues"]),
        (TopicConfig(4, 6, order=False), {}, {"type": "Normal"}, []),
        (TopicConfig(8, 6, order=True), {}, {"type": "Normal"}, ["spec.type"]),
    ],
)
def test_a_topic_that_exists_as_something_else_is_a_conflict(
    config: TopicConfig, order_config: dict[str, str], spec: dict[str, Any], fields: list[str]
) -> None:
    """Law: a topic that exists in another form, perhaps made by a client, is a conflict and is not changed."""
    found = refusals(desired(topic(**spec)), _world_with(config, order_config))

    assert [item.field for item in found] == fields


@pytest.mark.parametrize("kind", ["Ordered", "Normal"])
def test_queues_are_not_counted_while_a_group_is_silent(kind: str) -> None:
    """Law: a topic's queues are not compared while a group is silent; the missing ones may be there."""
    wanted = desired(topic(type=kind, queueChangePolicy="Reject"), groups=2)
    config = TopicConfig(4, 6, order=kind == "Ordered")
    answers = ObservedGroup(1, {}, {"orders": config}, {})
    groups = {"demo-0": answers, "demo-1": ObservedGroup()}

    found = refusals(wanted, Observed(name_servers={0: ObservedNameServer()}, groups=groups))

    assert found == []


def test_one_refusal_refuses_the_whole_change() -> None:
    """Law: one refusal refuses the whole change."""
    world = World()
    world.settle(desired(topic()))
    wanted = desired(topic(queues=9), topic("new"), group(), replicasPerGroup=5)

    actions = plan(wanted, replace(world.observed(), accepted=desired(topic())))

    assert [type(action).__name__ for action in actions] == ["Refuse"]
