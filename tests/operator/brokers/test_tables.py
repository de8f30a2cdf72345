"""What raft groups are asked for in one look."""

import pytest

from orderlymq_operator.brokers.admin import Admin
from orderlymq_operator.brokers.tables import read_tables
from orderlymq_protocol.codes import RequestCode
from orderlymq_runtime.remoting.client import RemotingClient
from tests.operator.examples import desired, topic
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
    """Law: whatever the manifest says by now; brokers report by themselves only what grows there."""
    client = RemotingClient()
    wanted = desired(topic(queueChangePolicy=policy))
    async with serving(ANSWERS) as (broker, address):
        await read_tables(Admin(client), address, wanted, expanding)
    await client.close()

    assert broker.asked[0][:2] == (20506, {"topics": asked})
