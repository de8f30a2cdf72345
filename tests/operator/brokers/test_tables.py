"""What the operator asks broker groups in one look."""

import pytest

from orderlymq_operator.brokers.admin import Admin
from orderlymq_operator.brokers.tables import read_name_server, read_tables
from orderlymq_operator.plan.actions import (
    CreateTopic,
    Observed,
    ObservedGroup,
    ObservedNameServer,
    ObservedReplica,
    ReportCondition,
    SetConsumerGroup,
)
from orderlymq_operator.plan.planner import plan
from orderlymq_protocol.codes import RequestCode
from orderlymq_runtime.remoting.client import RemotingClient
from tests.nameserver import registrations
from tests.nameserver.registrations import GROUP_A, GROUP_B, register, registration
from tests.operator.examples import desired, group, topic
from tests.operator.scripted import Answer, serving


def _says(body: bytes) -> Answer:
    return lambda request: request.reply(body=body)


ANSWERS: dict[int, Answer] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: _says(b'{"topicConfigTable": {}, "dataVersion": {}}'),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _says(
        b'{"subscriptionGroupTable": {}, "dataVersion": {}}'
    ),
    RequestCode.ORDERLYMQ_QUEUE_EXPANSION: _says(b'{"topics": []}'),
}


@pytest.mark.parametrize(
    ("policy", "expanding", "asked"),
    [("DrainAndSwitch", (), "orders"), ("Reject", (), ""), ("Reject", ("orders",), "orders")],
)
async def test_a_raft_group_is_asked_about_what_may_grow_and_what_grows_elsewhere(
    policy: str, expanding: tuple[str, ...], asked: str
) -> None:
    """Law: a broker group is asked about every topic that may expand or is expanding elsewhere."""
    client = RemotingClient()
    wanted = desired(topic(queueChangePolicy=policy))
    async with serving(ANSWERS) as (broker, address):
        await read_tables(Admin(client), address, wanted, expanding)
    await client.close()

    assert broker.asked[0][:2] == (20506, {"topics": asked})


async def test_a_route_has_the_groups_of_the_queue_list_alone() -> None:
    """Law: a topic's route is compared for the broker groups of its queue list only;
    one that a tool created elsewhere does not block an expansion.
    """
    name_server, client = registrations.core(), RemotingClient()
    ordered = registrations.topic("orders", order=True)
    register(name_server, GROUP_A, registration(1, ordered), connection=1)
    register(name_server, GROUP_B, registration(1, ordered), connection=2)
    published = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "group-a:4"}
    registrations.ask(name_server, RequestCode.PUT_KV_CONFIG, **published)
    answers: dict[int, Answer] = {
        code: lambda request: name_server.handle(request, 99, 0)
        for code in (RequestCode.GET_KVLIST_BY_NAMESPACE, RequestCode.GET_ROUTEINFO_BY_TOPIC)
    }
    async with serving(answers) as (_, address):
        found = await read_name_server(Admin(client), address, ("orders",), registered=False)
    await client.close()

    assert found.order_config == {"orders": "group-a:4"}
    assert found.routes == {"orders": {"group-a": 4}}


async def test_one_table_that_a_raft_group_refuses_hides_no_other() -> None:
    """Law: if a broker group refuses one table, the others are still read, and conditions have the broker's words."""
    words = "the list has more than 16711680 bytes, the limit of a response: request single items"
    client = RemotingClient()
    wanted = desired(topic(), group(), replicasPerGroup=1)
    answers: dict[int, Answer] = {
        **ANSWERS,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda asked: asked.reply(1, remark=words),
    }
    async with serving(answers) as (_, address):
        found = await read_tables(Admin(client), address, wanted, ())
    await client.close()
    replica = ObservedReplica("voter", running=True, healthy=True)
    observed = Observed(
        name_servers={0: ObservedNameServer({})},
        groups={"demo-0": ObservedGroup(1, {1: replica}, *found)},
    )
    steps = plan(wanted, observed)

    said = f"{address} answered code 1: {words}"
    assert found == ({}, None, {}, {}, said)
    kinds = {type(step) for step in steps}
    assert (CreateTopic in kinds, SetConsumerGroup in kinds) == (True, False)
    reports = {
        step.subject.kind: step.condition for step in steps if isinstance(step, ReportCondition)
    }
    assert {kind: (report.reason, report.message) for kind, report in reports.items()} == {
        "Cluster": ("GroupNotReady", f"demo-0: {said}"),
        "Topic": ("Progressing", "not effective everywhere yet"),
        "ConsumerGroup": ("BrokerUnavailable", f"demo-0: {said}"),
    }
