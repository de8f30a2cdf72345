from typing import Any

import pytest
from pydantic import ValidationError

from orderlymq_operator.plan.expansion import SWITCH_MARGIN_MS
from orderlymq_operator.resources.kinds import KINDS, resources_of
from orderlymq_protocol.header.extensions import EXPANSION_MS_MAX
from tests.operator.examples import cluster, desired, group, topic


def test_defaults_are_those_of_the_reference() -> None:
    """Law: defaults are as documented: three replicas, ordered topics with 8 queues, 16 retries."""
    spec, queues, consumers = cluster().spec, topic().spec, group().spec

    assert (spec.groups, spec.replicas_per_group, spec.name_servers.replicas) == (1, 3, 2)
    assert (spec.storage.size, spec.retention.time, spec.flush_disk_type) == (
        "20Gi",
        "72h",
        "SYNC_FLUSH",
    )
    assert (queues.type, queues.queues, queues.effective_queue_change_policy) == (
        "Ordered",
        8,
        "Reject",
    )
    assert (consumers.ordering, consumers.retry.max_times, consumers.consume_timeout) == (
        "Ordered",
        16,
        "15m",
    )


def test_the_name_on_the_wire_is_the_objects_name_unless_given() -> None:
    """Law: the name that clients use is metadata.name, unless topicName or groupName is given."""
    assert topic("orders").topic_name == "orders"
    assert topic("orders", topicName="Orders_EU").topic_name == "Orders_EU"
    assert group("billing", groupName="CID_BILLING").group_name == "CID_BILLING"


def test_ports_follow_from_the_manifest_alone() -> None:
    """Law: ports follow the formulas in the description of `local`."""
    local = cluster().spec.local

    assert [local.name_server(1), local.name_server_http(1)] == [9877, 13901]
    assert [local.broker(0), local.broker(2)] == [10911, 10931]
    assert [local.raft(0, 1), local.raft(2, 3)] == [12911, 12933]
    assert [local.http(0, 1), local.http(2, 3)] == [13911, 13933]


@pytest.mark.parametrize(
    "spec",
    [
        {"local": {"brokerPort": 9877}},
        {"local": {"raftPort": 13910}},
        {"local": {"httpPort": 65531}},
        {"groups": 64, "local": {"brokerPort": 12501}},
        {"config": {"raftHeartbeat": "150ms"}},
    ],
)
def test_settings_that_cannot_work_together_are_refused(spec: dict[str, Any]) -> None:
    """Law: settings that cannot work together are refused: a doubled or invalid port,
    an election timeout below two heartbeats.
    """
    with pytest.raises(ValidationError):
        cluster(**spec)


def test_an_ordered_topic_cannot_expand() -> None:
    """Law: an Ordered topic with the policy Expand is refused, because keys would move between queues."""
    with pytest.raises(ValidationError, match="would move keys"):
        topic(queueChangePolicy="Expand")

    assert topic(type="Normal", queueChangePolicy="Expand").spec.queues == 8


@pytest.mark.parametrize(
    "spec",
    [
        {"drainTimeout": "1h1s"},
        {"drainTimeout": "1s999ms"},
        {"routePropagationTime": "3600001ms"},
        {"routePropagationTime": "2h"},
    ],
)
def test_a_topic_waits_no_longer_than_brokers_do_and_long_enough_to_switch(
    spec: dict[str, str],
) -> None:
    """Law: an expansion's times that a broker would refuse midway are refused in the manifest."""
    with pytest.raises(ValidationError, match=next(iter(spec))):
        topic(queueChangePolicy="DrainAndSwitch", **spec)

    bounds = topic(drainTimeout="2s", routePropagationTime="60m").spec
    assert bounds.drain_timeout.milliseconds >= 2 * SWITCH_MARGIN_MS
    assert bounds.route_propagation_time.milliseconds == EXPANSION_MS_MAX


def test_resources_read_back_as_they_were_written() -> None:
    """Law: resources read back exactly as they were written to the supervisor's file."""
    wanted = desired(topic(queues=16), group(topics=[{"name": "orders"}]), storage={"size": "5Gi"})

    written = resources_of(wanted)

    read = [KINDS[str(item["kind"])].model_validate(item) for item in written]
    assert read == list(wanted.resources())
