"""Amounts of CPU, memory and disk: in the forms of Kubernetes' pods."""

from contextlib import nullcontext
from typing import Any

import pytest
from pydantic import ValidationError

from orderlymq_operator.resources.quantities import quantity
from orderlymq_operator.resources.workload import ComputeRequests, Resources, Toleration

_TAKEN = {
    "cpu": [2, "2", "0.5", "0.05", "0.001", "1.25", "500m"],
    "memory": [1073741824, "512Mi", "1.5Gi", "0.5G", "1"],
    "ephemeral-storage": ["10Gi", "2.5Gi", 10**9],
}
_REFUSED = {
    "cpu": [0, -1, 0.5, True, "0", "0.0", "0.0001", "-1", "1.5m", "1,5", "two", 10**7],
    "memory": [0, 1.5, "0", "0.0Gi", "1.5GB", "-1Gi", ".5Gi", "1.Gi", 10**15],
    "ephemeral-storage": [0, "", "1 Gi"],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, some in _TAKEN.items() for v in some])
def test_an_amount_is_taken_as_kubernetes_takes_it(key: str, value: int | str) -> None:
    """Law: amounts are accepted as in Kubernetes (numbers, texts, decimals) and passed to pods unchanged;
    the operator knows their size.
    """
    said = ComputeRequests.model_validate({key: value}).model_dump(by_alias=True, exclude_none=True)

    assert said == {key: str(value)}
    assert (quantity(said[key]) or 0) > 0


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, some in _REFUSED.items() for v in some])
def test_what_is_no_amount_or_none_at_all_is_refused(key: str, value: Any) -> None:
    """Law: what is not an amount, or zero, is refused; the schema has the same form and bounds."""
    with pytest.raises(ValidationError):
        ComputeRequests.model_validate({key: value})


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "spot"}, True),
        ({"key": "spot", "operator": "Exists", "value": ""}, True),
        ({"key": "spot", "effect": "NoExecute", "tolerationSeconds": 5}, True),
        ({}, False),
        ({"value": "yes"}, False),
        ({"key": "spot", "operator": "Exists", "value": "yes"}, False),
        ({"key": "spot", "tolerationSeconds": 5}, False),
        ({"key": "spot", "effect": "NoSchedule", "tolerationSeconds": 5}, False),
    ],
    ids=str,
)
def test_a_toleration_with_which_no_pod_can_be_made_is_refused(said: Any, taken: bool) -> None:
    """Law: a toleration with which Kubernetes makes no pod is refused in the manifest, not later in the StatefulSet."""
    with nullcontext() if taken else pytest.raises(ValidationError):
        Toleration.model_validate(said)


def test_an_empty_value_of_a_toleration_is_none() -> None:
    """Law: a toleration's empty value counts as absent; the API server leaves it out,
    and the object would always seem changed.
    """
    said = {"key": "spot", "operator": "Exists"}

    assert Toleration.model_validate({**said, "value": ""}) == Toleration.model_validate(said)


@pytest.mark.parametrize(
    ("requests", "limits", "taken"),
    [
        ({"memory": "1Gi"}, {"memory": "1024Mi"}, True),
        ({"cpu": 2}, {"memory": "1Gi"}, True),
        ({"cpu": 2}, {"cpu": "1500m"}, False),
        ({"memory": "256Mi"}, {"memory": "128Mi"}, False),
        ({"ephemeral-storage": "1G"}, {"ephemeral-storage": 10**8}, False),
    ],
    ids=str,
)
def test_a_request_beyond_its_limit_is_refused(requests: Any, limits: Any, taken: bool) -> None:
    """Law: a request above its limit is refused in the manifest, not later in the StatefulSet."""
    with nullcontext() if taken else pytest.raises(ValidationError, match="is more than limits"):
        Resources.model_validate({"requests": requests, "limits": limits})
