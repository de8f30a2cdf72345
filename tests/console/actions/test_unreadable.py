"""A message whose body cannot be decompressed is shown as stored, can be skipped, and hides nothing else."""

import re
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from orderlymq.admin.client import AdminClient
from orderlymq_console.actions.redrive import plan_redrive
from orderlymq_console.app import Console
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.collector import Collector
from orderlymq_console.links import key_link, skip_link
from orderlymq_console.pages.letters import letters
from orderlymq_console.parameters import BadParameter, Parameters
from orderlymq_console.settings import ConsoleSettings
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.header.catalogue import SendMessageHeader
from orderlymq_protocol.message import properties
from orderlymq_protocol.message.sysflag import COMPRESSED
from orderlymq_testing.cluster import Cluster
from tests.console.actions.test_offsetactions import progress
from tests.console.pages.test_letterreading import give_up
from tests.console.signedin import ALICE, Log, fields, post, sign_in

pytestmark = pytest.mark.cluster
BODY = b"no zlib stream"
AS_STORED = "6e 6f 20 7a 6c 69 62"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("unreadable")) as running:
        yield running


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.name_server) as client:
        yield client


async def send_raw(admin: AdminClient, topic: str, key: str, body: bytes, flag: int = 0) -> None:
    """Send to queue 0 with possibly wrong flags, as a defective producer does."""
    said = {properties.SHARDING_KEY: key, properties.UNIQ_KEY: f"{topic}-{key}-{flag}"}
    header = SendMessageHeader(
        producer_group="odd",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=flag,
        born_timestamp=1,
        flag=0,
        properties=properties.encode_properties(said).decode(),
    )
    (address,) = (await admin.brokers()).values()
    await admin.instance.call(address, RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), body)


async def test_it_is_shown_and_skipped(
    cluster: Cluster, admin: AdminClient, browser: aiohttp.ClientSession
) -> None:
    """Law: an unreadable body is shown in all pages and forms, and can be skipped."""
    cluster.create_topic("odd", queues=1)
    await send_raw(admin, "odd", "before", b"before")
    await send_raw(admin, "odd", "k", BODY, COMPRESSED)
    await send_raw(admin, "odd", "after", b"after")
    await admin.set_group(SubscriptionGroupConfig("billing"))
    await admin.reset_offsets("billing", "odd", "earliest")
    settings = ConsoleSettings(name_servers=cluster.name_server, port=0, accounts=(ALICE,))
    async with Console(settings, Log()) as console:
        await sign_in(browser, console, ALICE)
        shown = []
        for path in (
            "/message?topic=odd&queue=broker-a:0&offset=1&form=text",
            f"/message?topic=odd&id=odd-k-{COMPRESSED}",
            "/topics/odd/messages?queue=broker-a:0&offset=1",
            "/topics/odd/messages?key=k",
            skip := skip_link("billing", "odd", "broker-a", 0, 1),
        ):
            async with browser.get(console.url + path) as answer:
                html = await answer.text()
            shown.append((answer.status, AS_STORED in html, "as it is stored" in html))
        bodies = re.findall(r"<pre[^>]*>([^<]*)</pre>", html)
        async with browser.get(f"{console.url}{key_link('odd', 'k')}") as answer:
            assert answer.status == 200, await answer.text()
        form = {**await fields(browser, console, skip), "confirm": "billing"}
        status, html = await post(browser, console, skip, form)

    assert shown == [(200, True, True)] * 5
    assert (bodies[0], bodies[2]) == ("before", "after")
    assert (status, "1 queue moved" in html) == (200, True), html
    assert await progress(cluster, "odd") == [(2, 3)]


async def test_a_letter_that_cannot_be_read_keeps_its_own_key_alone(admin: AdminClient) -> None:
    """Law: an unreadable dead letter delays only its own key; letters of other keys are redriven."""
    await give_up(admin, "odds", "odder", ["a", "b"])
    await send_raw(admin, "odder", "a", BODY, COMPRESSED)
    await give_up(admin, "odds", "odder", ["a", "b"])
    reader = ClusterReader(admin, Collector())

    page = await letters(reader, Parameters({"group": "odds"}))
    every = await plan_redrive(reader, Parameters({"group": "odds", "topic": "odder", "all": "1"}))
    with pytest.raises(BadParameter, match="would continue without it"):
        await plan_redrive(reader, Parameters({"group": "odds", "topic": "odder", "key": "a"}))

    assert {row.key: row.step for row in page.rows} == {"a": "unknown", "b": "redrive"}
    assert "cannot be read" in next(row.step_unknown for row in page.rows if row.key == "a")
    assert {each.key for each in every.letters} == {"b"}
    assert (
        "The letters of 1 key are not sent, because a body among them cannot be read."
        in every.effects
    )
