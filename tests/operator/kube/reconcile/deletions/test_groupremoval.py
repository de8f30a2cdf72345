from typing import Any

from orderlymq_operator.kube.objects.cluster import group_set
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.reconcile.groupremoval import (
    blocked,
    held_text,
    ordered_topics,
    planned_groups,
    surplus_groups,
)
from orderlymq_operator.kube.resources import STATEFUL_SETS
from orderlymq_operator.plan.actions import (
    Observed,
    ObservedGroup,
    ObservedNameServer,
    TopicConfig,
)
from orderlymq_operator.resources.kinds import Cluster
from tests.operator.kube.samples import cluster, environment, item


def _live(groups: int) -> Live:
    made = cluster(groups=groups)
    live = Live()
    for group in made.group_names:
        live.put(group_set(made, group, environment(made)))
    return live


def test_a_group_that_still_stands_is_kept_whatever_the_manifest_says() -> None:
    """Law: a broker group that exists is in the plan until it is proven empty, whatever the manifest says."""
    assert planned_groups(cluster(groups=1), _live(3)) == ("demo-0", "demo-1", "demo-2")
    assert planned_groups(cluster(groups=2), _live(1)) == ("demo-0", "demo-1")


def test_a_group_above_one_that_was_never_made_is_kept_and_taken_away() -> None:
    """Law: a group with a higher number than a missing one is still in the plan, and is removed."""
    live, fewer = _live(3), cluster(groups=1, scaleDown={"policy": "Drain"})
    del live.made[STATEFUL_SETS.kind, "demo-1"]

    assert planned_groups(fewer, live) == ("demo-0", "demo-1", "demo-2")
    assert surplus_groups(fewer, live) == ("demo-1", "demo-2")


def test_only_the_policy_drain_takes_groups_away() -> None:
    """Law: only the policy Drain removes groups; Refuse reports it in a condition and does nothing."""
    fewer, drain = {"groups": 1}, {"groups": 1, "scaleDown": {"policy": "Drain"}}

    assert surplus_groups(cluster(**fewer), _live(2)) == ()
    assert _blocked(_live(2), fewer) == "PolicyRefuses"
    assert surplus_groups(cluster(**drain), _live(2)) == ("demo-1",)
    assert _blocked(_live(2), drain) == "Draining"
    assert _blocked(_live(1), fewer) == _blocked(_live(1), drain) == ""


def test_an_edit_that_is_not_accepted_yet_takes_no_group_for_gone() -> None:
    """Law: an edit that waits (paused or not confirmed) removes no group; the condition is about the edit."""
    drain = {"groups": 1, "scaleDown": {"policy": "Drain"}}

    assert _blocked(_live(2), drain, accepted=cluster(groups=2)) == "Draining"


def _blocked(live: Live, spec: dict[str, Any], accepted: Cluster | None = None) -> str:
    """Return the reason of the condition; empty if no group is to be removed."""
    found = blocked(item("Cluster", "demo", spec=spec), accepted or cluster(**spec), live)
    return "" if found is None else found.reason


def test_queues_of_an_ordered_topic_hold_their_group() -> None:
    """Law: queues of an ordered topic keep their group, whether the name server or only brokers know the order;
    a Normal topic does not.
    """
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
    """Law: the message says what a group still holds, the largest first."""
    assert held_text("demo-1", {"log": 3, "events": 70}) == (
        "demo-1 still holds 70 of events, 3 of log"
    )
