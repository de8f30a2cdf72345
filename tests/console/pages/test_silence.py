"""A broker that accepts connections but never answers, beside a healthy one, whose pages do not wait."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orderlymq import Consumer
from orderlymq.admin.client import AdminClient
from orderlymq.errors import BrokerUnreachable
from orderlymq.settings import ClientSettings
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.collector import ASKING_MAX, Collector
from orderlymq_console.pages.letters import read_letters
from orderlymq_console.pages.member import member
from orderlymq_console.parameters import Parameters
from orderlymq_protocol.codes import RequestCode
from orderlymq_testing.cluster import Cluster
from tests.client.fakecluster import nobody, running

IMPATIENT = ClientSettings(request_timeout=0.2)
pytestmark = pytest.mark.cluster


class TwoGroups(AdminClient):
    """The administrator of a cluster with a second broker group, which hangs."""

    hanging = ""

    async def brokers(self) -> dict[str, str]:
        """Return both leaders."""
        return {"broker-0": self.hanging, **await super().brokers()}


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[ClusterReader]:
    """A reader of both broker groups."""
    with Cluster(tmp_path) as cluster:
        cluster.create_topic("orders")
        async with (
            nobody() as hanging,
            TwoGroups(cluster.name_server, client_settings=IMPATIENT) as admin,
        ):
            admin.hanging = hanging
            reader = ClusterReader(admin, Collector(clock=lambda: 0.0))
            yield reader
            await reader.collector.close()


async def test_only_the_first_page_waits_for_a_broker_that_hangs(reader: ClusterReader) -> None:
    """Law: only the first page waits for a broker that hangs; later its failure is the answer,
    and nothing but its status is asked.
    """
    await reader.statuses()
    asked = reader.collector.asked
    async with asyncio.timeout(1.0):
        locks = await reader.of_each("locks", lambda client: client.locks("billing"))

    assert reader.collector.asked == asked + 1
    assert locks.readings["broker-a"].value == {}
    assert "did not answer within" in locks.readings["broker-0"].unknown


async def test_a_status_waits_for_no_other_question(reader: ClusterReader) -> None:
    """Law: questions that hang do not delay the statuses, which show which broker is silent."""
    lets = asyncio.Event()
    hanging = [
        asyncio.create_task(reader.of_each(("x", number), lambda _: lets.wait()))
        for number in range(ASKING_MAX)
    ]
    await reader.brokers()
    async with asyncio.timeout(2.0):
        statuses = await reader.statuses()
    lets.set()
    await asyncio.gather(*hanging)

    assert [name for name, _ in statuses.known()] == ["broker-a"]


async def silent() -> None:
    raise BrokerUnreachable("no answer within 3 s")


async def test_the_letters_of_a_silent_broker_group_are_not_asked_for() -> None:
    """Law: dead letters of a silent broker group are not asked for again at each page or queue; those of others are read."""
    async with running(topics={"%DLQ%g": 2}) as cluster, AdminClient(cluster.address) as admin:
        cluster.append("%DLQ%g", 0, b"x")
        letters = ClusterReader(admin, Collector())
        whole = await read_letters(letters, "g")
        asked = len(cluster.seen)
        await letters.collector.read(("status", "broker-a"), silent)
        known = await read_letters(letters, "g")

        assert set(cluster.codes()[asked:]) == {RequestCode.GET_ROUTEINFO_BY_TOPIC}

    assert (whole.total, whole.unknown, known.total) == (1, "", 0)
    assert known.unknown == "broker-a: no answer within 3 s"


async def test_a_member_is_asked_through_a_broker_group_that_knows_it(
    reader: ClusterReader,
) -> None:
    """Law: a member is asked through a broker group that answers; one that hangs does not delay it."""
    async with Consumer(
        "billing",
        reader.admin.instance.name_servers[0],
        topics="orders",
        listener=lambda _, __: None,
    ) as consumer:
        await reader.statuses()
        named = Parameters({"group": "billing", "client": consumer.client_id})
        async with asyncio.timeout(2.0):
            page = await member(reader, named)

    assert (page.unknown, bool(page.stacks)) == ("", True)
