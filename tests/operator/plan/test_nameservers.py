"""New settings of name servers: when they get them, and what waits for them."""

from dataclasses import replace
from typing import Any, Final

import pytest

from orderlymq_operator.plan.actions import (
    Action,
    ConditionReport,
    ObservedNameServer,
    ReportCondition,
    RestartNameServer,
    RestartReplica,
    Subject,
)
from orderlymq_operator.plan.forecast.forecast import forecast
from orderlymq_operator.plan.planner import plan
from orderlymq_operator.plan.settings import name_server_revision
from orderlymq_operator.resources.kinds import Desired
from tests.operator.examples import desired
from tests.operator.world import World

_FILES: Final = {"certificateFile": "/server.pem", "keyFile": "/server.key"}


def _wanted(mode: str, **spec: Any) -> Desired:
    return desired(nameServers={"replicas": 2}, tls={"mode": mode, **_FILES}, **spec)


def _rolled(before: Desired, after: Desired) -> list[str]:
    """Return the servers that restart, in order; a name server by its index."""
    world = World()
    world.settle(before)
    enforced = before.cluster.spec.tls.mode == "Enforcing"
    server = ObservedNameServer(
        {}, revision=name_server_revision(before.cluster), serves_plain=not enforced
    )
    observed = replace(world.observed(), accepted=None, name_servers={0: server, 1: server})
    return [_name(step) for step in forecast(after, observed).steps if _name(step)]


def _name(step: Action) -> str:
    match step:
        case RestartNameServer(index):
            return f"name server {index}"
        case RestartReplica(group, node):
            return f"{group}/{node}"
        case _:
            return ""


@pytest.mark.parametrize(
    ("before", "after", "first"),
    [("Permissive", "Enforcing", "replicas"), ("Enforcing", "Permissive", "name servers")],
)
def test_no_broker_calls_a_name_server_that_does_not_take_its_call(
    before: str, after: str, first: str
) -> None:
    """Law: TLS goes on at brokers before name servers enforce it, and off at brokers after name servers take plain calls."""
    found = _rolled(_wanted(before), _wanted(after))

    servers = ["name server 0", "name server 1"]
    assert sorted(found) == ["demo-0/1", "demo-0/2", "demo-0/3", *servers]
    assert (found[-2:] if first == "replicas" else found[:2]) == servers


def test_a_setting_that_name_servers_have_reaches_them_one_after_the_other() -> None:
    """Law: name servers are restarted one after the other, each when the previous one answers, unless it fails anyway."""
    wanted = _wanted("Disabled", config={"logLevel": "DEBUG"})
    old = ObservedNameServer({}, revision="old")
    new = replace(old, revision=name_server_revision(wanted.cluster))

    def asked(*servers: ObservedNameServer) -> list[int]:
        observed = replace(World().observed(), name_servers=dict(enumerate(servers)))
        return [a.index for a in plan(wanted, observed) if isinstance(a, RestartNameServer)]

    assert asked(old, old) == [0]
    assert asked(replace(new, order_config=None), old) == []
    assert asked(new, old) == [1]
    assert asked(replace(old, order_config=None, failing=True), old) == [0]
    assert asked(new, new) == []


def test_the_last_name_server_that_knows_a_group_waits_until_the_next_one_does() -> None:
    """Law: a name server is not restarted while it is the only one that knows a group's route;
    brokers register in a few seconds.
    """
    wanted = _wanted("Disabled", config={"logLevel": "DEBUG"})
    world = World()
    world.settle(wanted)
    old = ObservedNameServer({}, revision="old", brokers=frozenset({"demo-0"}))
    new = replace(old, revision=name_server_revision(wanted.cluster))

    def asked(*servers: ObservedNameServer) -> list[int]:
        observed = replace(world.observed(), accepted=None, name_servers=dict(enumerate(servers)))
        return [a.index for a in plan(wanted, observed) if isinstance(a, RestartNameServer)]

    empty = replace(new, brokers=frozenset())
    assert asked(empty, old) == []
    assert asked(new, old) == [1]
    assert asked(empty, replace(old, order_config=None, failing=True)) == [1]
    world.groups["demo-0"].leader = None
    assert asked(empty, old) == [1], "who does not lead registers with nobody"


def test_a_cluster_is_not_ready_while_a_name_server_has_previous_settings() -> None:
    """Law: a cluster is not Ready while a name server has previous settings."""
    world, wanted = World(), desired()
    world.settle(wanted)
    servers = {0: ObservedNameServer({}, revision="old")}

    found = plan(wanted, replace(world.observed(), name_servers=servers))

    told = ConditionReport(
        "False", "NameServerUnavailable", "name server 0 runs with previous settings"
    )
    assert ReportCondition(Subject("Cluster", "demo"), told) in found
