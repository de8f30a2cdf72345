"""Dangerous edits and their confirmations."""

from dataclasses import replace
from typing import Any

import pytest

from orderlymq_operator.plan.actions import Observed, Refuse
from orderlymq_operator.plan.guard import ANNOTATION_CONFIRM, dangerous, unconfirmed
from orderlymq_operator.plan.refusals import refusals
from orderlymq_operator.resources.kinds import Cluster, Desired
from tests.operator.examples import cluster, desired


def _edition(generation: int, **spec: Any) -> Cluster:
    made = cluster(**spec)
    meta = made.metadata.model_copy(update={"generation": generation})
    return made.model_copy(update={"metadata": meta})


@pytest.mark.parametrize(
    ("before", "after", "acts"),
    [
        ({}, {}, []),
        ({}, {"replicasPerGroup": 1}, ["ReduceReplicas"]),
        ({"replicasPerGroup": 5}, {"replicasPerGroup": 3}, []),
        ({"replicasPerGroup": 1}, {"replicasPerGroup": 3}, []),
        ({}, {"retention": {"time": "1h"}}, ["ShortenRetention"]),
        ({}, {"config": {"fileReservedTime": 1}}, ["ShortenRetention"]),
        ({}, {"config": {"fileReservedTime": 72}}, []),
        ({}, {"retention": {"time": "96h"}}, []),
        ({}, {"retention": {"size": "1Gi"}}, ["ShortenRetention"]),
        ({}, {"storage": {"size": "40Gi"}}, []),
        ({"groups": 2}, {"groups": 1}, []),
        ({"groups": 3}, {"groups": 1}, ["RemoveGroups"]),
        ({"groups": 2}, {"groups": 1, "storage": {"deleteClaim": "Delete"}}, ["RemoveGroups"]),
        ({"groups": 1}, {"groups": 3, "lock": {"leaseSeconds": 90}}, []),
        ({"groups": 3}, {"groups": 1, "replicasPerGroup": 1}, ["ReduceReplicas", "RemoveGroups"]),
    ],
)
def test_only_what_no_later_edit_brings_back_is_dangerous(
    before: dict[str, Any], after: dict[str, Any], acts: list[str]
) -> None:
    """Law: only edits with a loss that no later edit can undo (copies, messages) are dangerous;
    what is proven safe is not.
    """
    assert [act.name for act in dangerous(cluster(**before), cluster(**after))] == acts


def test_a_confirmation_holds_for_one_act_of_one_edit() -> None:
    """Law: a confirmation is valid for one act of one edit: not for another value, act or Cluster, nor for a later edit."""
    before = _edition(1)
    once = _edition(2, retention={"time": "1h"})
    (act,) = dangerous(before, once)
    notes = {ANNOTATION_CONFIRM: f"Other.1234, {act.token}"}

    assert unconfirmed(before, once, notes) == []
    for other in (
        _edition(2, retention={"time": "2h"}),
        _edition(4, retention={"time": "1h"}),
        _edition(2, replicasPerGroup=1),
    ):
        assert len(unconfirmed(before, other, notes)) == 1
    two = Cluster.model_validate(
        {"metadata": {"name": "two", "generation": 2}, "spec": {"retention": {"time": "1h"}}}
    )
    assert len(unconfirmed(before, two, notes)) == 1


def test_a_laptop_refuses_the_edit_until_the_manifest_confirms_it() -> None:
    """Law: on one machine a dangerous edit is refused with the text that confirms it, and accepted with that text."""
    accepted, wanted = Observed(accepted=desired()), desired(replicasPerGroup=1)

    (refused,) = refusals(wanted, accepted)

    token = refused.advice.partition("=")[2].partition(";")[0]
    meta = wanted.cluster.metadata.model_copy(update={"annotations": {ANNOTATION_CONFIRM: token}})
    confirmed = replace(wanted, cluster=wanted.cluster.model_copy(update={"metadata": meta}))
    assert isinstance(refused, Refuse)
    assert refused.field == "spec.replicasPerGroup"
    assert token.startswith("ReduceReplicas.")
    assert refusals(confirmed, accepted) == []


def test_a_first_creation_is_never_dangerous() -> None:
    """Law: a first creation is never dangerous."""
    assert (
        refusals(Desired(cluster(replicasPerGroup=1, retention={"time": "1h"})), Observed()) == []
    )


def test_a_confirmation_names_each_loss_that_it_confirms() -> None:
    """Law: a confirmation names each loss, so a shorter time and a smaller size are confirmed only with just these values."""
    before = _edition(1, retention={"time": "72h", "size": "10Gi"})
    both = _edition(2, retention={"time": "71h", "size": "1Gi"})

    (act,) = dangerous(before, both)
    (other,) = dangerous(before, _edition(2, retention={"time": "71h", "size": "2Gi"}))

    assert "older than 71h" in act.text
    assert f"{1 << 30} bytes" in act.text
    assert act.token != other.token
