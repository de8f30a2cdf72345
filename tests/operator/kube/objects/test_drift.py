import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_operator.kube.objects.cluster import budget_objects, group_set, service_objects
from orderlymq_operator.kube.objects.drift import (
    TRIED_AGAIN_S,
    Answers,
    changes,
    contains,
    stamped,
)
from tests.operator.kube.samples import cluster, environment

# Some of them are keys by which lists are merged.
_KEYS = st.text(max_size=3) | st.sampled_from(["name", "mountPath"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=8,
)
# One volume, mounted at two paths.
_TWICE = [
    {"name": "certs", "mountPath": "/a", "subPath": "x"},
    {"name": "certs", "mountPath": "/b", "subPath": "y"},
]


@given(_JSON)
def test_everything_contains_itself(value: Any) -> None:
    """Law: an object that came back unchanged is not applied again."""
    assert contains(copy.deepcopy(value), value)


@given(st.dictionaries(st.text(max_size=3), _JSON), st.dictionaries(st.text(min_size=4), _JSON))
def test_what_others_added_is_no_drift(wanted: dict[str, Any], added: dict[str, Any]) -> None:
    """Law: defaults of the API server and other controllers' fields are no drift."""
    assert contains({**added, **wanted}, wanted)


def test_an_object_that_was_applied_needs_no_further_write() -> None:
    """Law: an applied object needs no further write, so that an idle operator sends no requests."""
    made = cluster(groups=2)
    wanted = [*budget_objects(made), *service_objects(made, environment(made))]
    live = [stamped(one) for one in wanted]
    live[0]["spec"]["unhealthyPodEvictionPolicy"] = "IfHealthyBudget"

    assert changes(wanted, live) == []


def test_a_field_that_somebody_edited_is_put_right() -> None:
    """Law: a field that somebody edited is restored, although the fingerprint is unchanged."""
    made = cluster()
    wanted = [group_set(made, "demo-0", environment(made))]
    live = [stamped(wanted[0])]
    live[0]["spec"]["replicas"] = 1

    assert changes(wanted, live) == [stamped(wanted[0])]


def test_a_field_that_is_no_longer_wanted_is_taken_away() -> None:
    """Law: a field that is no longer wanted is removed; the fingerprint shows it."""
    wanted = {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"one": "1", "two": "2"}}
    less = {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"one": "1"}}

    assert changes([less], [stamped(wanted)]) == [stamped(less)]


def test_what_comes_back_otherwise_is_applied_again_after_a_while() -> None:
    """Law: an object that comes back different is applied again only after a while, and reported once."""
    made = cluster()
    wanted = group_set(made, "demo-0", environment(made))
    now = [0.0]
    answers = Answers(lambda: now[0])
    found = stamped(wanted)
    found["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror/orderlymq:1"
    found["status"] = {"replicas": 1}

    assert answers.note(stamped(wanted), found)
    assert changes([wanted], [found], answers) == []
    assert not answers.note(stamped(wanted), found)
    now[0] += TRIED_AGAIN_S
    assert changes([wanted], [found], answers) == [stamped(wanted)]
    assert not answers.note(stamped(wanted), found)
    found["spec"]["replicas"] = 1
    assert changes([wanted], [found], answers) == [stamped(wanted)]
    assert answers.note(stamped(wanted), stamped(wanted))


@pytest.mark.parametrize(
    ("live", "wanted", "same"),
    [
        ("1", "1000m", True),
        ("1Gi", "1024Mi", True),
        ("1G", "1Gi", False),
        # As the API server writes more than three decimals.
        ("1073849198182400u", "1.0001Gi", True),
        # As it rounds containers' resources.
        ("1073849198183m", "1.0001Gi", True),
        ("1073849198184m", "1.0001Gi", False),
        ([{"name": "istio"}, {"name": "broker", "image": "a"}], [{"name": "broker"}], True),
        ([{"name": "broker", "image": "a"}], [{"name": "broker", "image": "b"}], False),
        ([*_TWICE, {"name": "istio", "mountPath": "/i"}], _TWICE, True),
        ([_TWICE[0]], _TWICE, False),
        ([_TWICE[0], {**_TWICE[1], "subPath": "z"}], _TWICE, False),
        ([1, 2], [1], False),
        (None, {}, True),
    ],
)
def test_equal_things_in_other_words(live: Any, wanted: Any, same: bool) -> None:
    """Law: equal quantities, named lists in another order, and empty values are no drift."""
    assert contains(live, wanted) is same
