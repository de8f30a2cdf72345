"""The API server warns about each edited field of a Cluster that causes a restart, and about no live one."""

from collections import Counter
from typing import Any

import pytest

from orderlymq_operator.plan.guard import dangerous
from orderlymq_operator.resources.changewarnings import policies
from orderlymq_operator.resources.cluster.rollout import LIVE, restart_sentences
from orderlymq_operator.resources.crd import schema
from orderlymq_operator.resources.kinds import KINDS
from tests.operator.examples import cluster

SPEC = schema("Cluster")["properties"]["spec"]
VALIDATIONS = {
    (policy["resource"], policy["operation"]): policy["spec"]["validations"]
    for policy in policies(SPEC)
}


def test_each_field_that_restarts_something_has_one_warning() -> None:
    """Law: each field that restarts something has one warning; live and immutable fields have none."""
    told = Counter(
        each["message"].split(":")[0].removeprefix("spec.")
        for each in VALIDATIONS["clusters", "UPDATE"]
        if ": a change" in each["message"]
    )
    wanted = {".".join(names) for names, said in restart_sentences(SPEC) if said != LIVE}

    assert told == Counter(wanted)
    assert "canary" not in told
    assert "bootstrap" not in told
    assert "tls" in told


def test_names_with_a_point_are_looked_up_as_texts() -> None:
    """Law: a key with a point is quoted in the rule, because CEL would take the point for the next field."""
    (found,) = (
        each["expression"]
        for each in VALIDATIONS["clusters", "UPDATE"]
        if "lockMaxLiveTime" in each["expression"]
    )

    name = '[?"rocketmq.broker.rebalance.lockMaxLiveTime"]'
    assert found == f"dyn(object).spec.?config{name} == dyn(oldObject).spec.?config{name}"


@pytest.mark.parametrize(
    ("field", "before", "after"),
    [
        ("replicasPerGroup", {}, {"replicasPerGroup": 1}),
        ("groups", {"groups": 3}, {}),
        ("retention.time", {}, {"retention": {"time": "1h"}}),
        ("config.fileReservedTime", {}, {"config": {"fileReservedTime": 1}}),
        ("retention.size", {}, {"retention": {"size": "1Gi"}}),
        ("storage.autoGrow.limit", {"storage": {"autoGrow": {"limit": "90Gi"}}}, {}),
    ],
)
def test_what_waits_for_a_confirmation_is_warned_of(
    field: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Law: an edit that will wait for a confirmation is warned about, for each field that the guard judges."""
    assert dangerous(cluster(**before), cluster(**after))

    (found,) = (
        each["expression"]
        for each in VALIDATIONS["clusters", "UPDATE"]
        if "as the condition Confirmed says" in each["message"]
        and f"object.spec.{field}" in each["expression"]
    )
    assert f"oldObject.spec.{field}" in found


def test_a_deletion_is_warned_of_where_something_goes_with_it() -> None:
    """Law: a deletion that takes something with it is warned about, by the old object (there is no new one)."""
    deletions = {key[0]: found for key, found in VALIDATIONS.items() if key[1] == "DELETE"}

    assert set(deletions) == {
        f"{kind.lower()}s"
        for kind in KINDS
        if {"deletionPolicy", "deleteClaim"}
        & {
            *(spec := schema(kind)["properties"]["spec"]["properties"]),
            *spec.get("storage", {}).get("properties", {}),
        }
    }
    for (case,) in deletions.values():
        assert case["expression"].startswith("oldObject.")
        assert case["message"].endswith("deleted with it")


def test_more_queues_are_warned_of_whatever_the_type_of_a_topic() -> None:
    """Law: more queues are warned about for each type of topic: keys move, and only Ordered topics keep order meanwhile."""
    told = [each["expression"] for each in VALIDATIONS["topics", "UPDATE"]]

    for compared in ("==", "!="):
        wanted = f"object.spec.type {compared} 'Ordered' || "
        assert f"{wanted}object.spec.queues == oldObject.spec.queues" in told
