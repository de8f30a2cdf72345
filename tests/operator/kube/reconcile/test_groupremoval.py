from orderlymq_operator.kube.objects.cluster import group_set
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.reconcile.groupremoval import (
    held_text,
    ordered_topics,
    planned_groups,
    refused,
    surplus_groups,
)
from orderlymq_operator.plan.actions import (
    Observed,
    ObservedGroup,
    ObservedNameServer,
    TopicConfig,
)
from tests.operator.kube.samples import cluster, environment


def _live(groups: int) -> Live:
    made = cluster(groups=groups)
    live = Live()
    for group in made.group_names:
        live.put(group_set(made, group, environment(made)))
    return live


def test_a_group_that_still_stands_is_kept_whatever_the_manifest_says() -> None:
    """The planner goes on caring for it until it is proven to be empty."""
    assert planned_groups(cluster(groups=1), _live(3)) == ("demo-0", "demo-1", "demo-2")
    assert planned_groups(cluster(groups=2), _live(1)) == ("demo-0", "demo-1")


def test_only_the_policy_drain_takes_groups_away() -> None:
    """Refuse says so in a condition and does nothing."""
    fewer = cluster(groups=1)
    drained = cluster(groups=1, scaleDown={"policy": "Drain"})

    assert surplus_groups(fewer, _live(2)) == ()
    report = refused(fewer, _live(2))
    assert report is not None
    assert report.reason == "PolicyRefuses"
    assert surplus_groups(drained, _live(2)) == ("demo-1",)
    assert refused(drained, _live(2)) is None
    assert refused(fewer, _live(1)) is None


def test_queues_of_an_ordered_topic_hold_their_group() -> None:
    """A name server or only the brokers may say that a topic is ordered; a Normal topic holds no group."""
    ordered, normal = TopicConfig(4, 6, True), TopicConfig(4, 6, False)
    observed = Observed(
        name_servers={0: ObservedNameServer({"orders": "demo-0:4;demo-1:4", "few": "demo-0:4"})},
        groups={
            "demo-0": ObservedGroup(1, {}, {"orders": ordered, "few": ordered}, {}),
            "demo-1": ObservedGroup(1, {}, {"old": ordered, "log": normal}, {}),
        },
    )

    assert ordered_topics("demo-1", observed) == ["old", "orders"]


def test_what_a_group_still_holds_is_named_the_most_first() -> None:
    """A person sees what to consume or to wait for."""
    assert held_text("demo-1", {"log": 3, "events": 70}) == (
        "demo-1 still holds 70 of events, 3 of log"
    )
