"""The API server warns of a change before it is made."""

import json
from typing import Any

import pytest

from e2e.installed import Operator
from e2e.machine import MachineError
from e2e.space import Space

pytestmark = pytest.mark.ci

CHANGES: dict[str, tuple[str, dict[str, Any], str]] = {
    "one copy": ("cluster/demo", {"replicasPerGroup": 1}, "one copy of every message is left"),
    "retention": ("cluster/demo", {"retention": {"time": "1h"}}, "older messages are deleted"),
    "a setting": (
        "cluster/demo",
        {"config": {"tailCacheSize": "32Mi"}},
        "spec.config.tailCacheSize: a change restarts brokers",
    ),
    "a setting of RocketMQ": (
        "cluster/demo",
        {"config": {"rocketmq.broker.rebalance.lockMaxLiveTime": 90_000}},
        "lockMaxLiveTime: a change restarts brokers",
    ),
    "queues": (
        "topic/orders",
        {"queues": 12, "queueChangePolicy": "DrainAndSwitch"},
        "then keys move to other queues",
    ),
    "by key": ("consumergroup/billing", {"concurrency": "Key"}, "consumers are stopped"),
}


def _tried(space: Space, what: str, spec: dict[str, Any]) -> str:
    """Return the warnings of a dry run; empty if there are none."""
    change = json.dumps({"spec": spec})
    words = ("patch", what, "--type=merge", "-p", change, "--dry-run=server")
    try:
        space.kubectl(*words, "--warnings-as-errors")
    except MachineError as error:
        return str(error)
    return ""


def test_what_restarts_moves_or_deletes_is_warned_of(space: Space) -> None:
    """Other changes cause no warning; the objects stay as they were."""
    space.example("quickstart.yaml")
    before = space.must("cluster/demo")["spec"]

    def unwarned() -> dict[str, str]:
        return {
            name: found
            for name, (what, spec, said) in CHANGES.items()
            if said not in (found := _tried(space, what, spec))
        }

    # The API server reads the bindings from a cache.
    space.until(lambda: not unwarned(), f"each of {sorted(CHANGES)} is warned of", 90)
    assert _tried(space, "cluster/demo", {"canary": {"enabled": True}}) == ""
    assert space.must("cluster/demo")["spec"] == before


def test_the_api_server_understands_every_expression(space: Space, operator: Operator) -> None:
    """The server checks them against the types of the definitions, which finds renamed fields."""

    def checked() -> dict[str, object]:
        listed = json.loads(space.kubectl("get", "validatingadmissionpolicies", "-o", "json"))
        return {
            item["metadata"]["name"]: item.get("status", {}).get("typeChecking")
            for item in listed["items"]
            if item["metadata"]["name"].startswith(operator.deployment)
        }

    # A controller of Kubernetes checks them some time later.
    space.until(lambda: None not in checked().values(), "each policy was checked", 60)
    assert len(checked()) == 10
    assert set(map(json.dumps, checked().values())) == {"{}"}
