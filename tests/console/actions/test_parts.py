"""Changes that fail midway: the page and the audit log say how much was done."""

from collections.abc import Mapping

import aiohttp
import pytest

from orderlymq import Producer
from orderlymq.admin.client import AdminClient
from orderlymq.errors import BrokerUnreachable
from orderlymq_console.actions.plan import Done, Plan, QueueMove
from orderlymq_console.actions.reset import reset
from orderlymq_console.app import Console
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.collector import Collector
from orderlymq_console.web import changes
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_testing.cluster import Cluster
from tests.console.actions.test_actions import no_lag, park
from tests.console.signedin import ALICE, Log, fields, post, sign_in


class Hanging(AdminClient):
    """The administrator of two broker groups; the second one accepts no change."""

    async def set_offsets(
        self, group: str, topic: str, targets: Mapping[MessageQueue, int]
    ) -> None:
        """Accept new offsets for the first group."""
        if any(queue.broker_name == "broker-b" for queue in targets):
            raise BrokerUnreachable("broker-b did not answer")


async def test_a_reset_counts_the_queues_of_the_broker_groups_that_have_done_it() -> None:
    """Law: a reset that fails in one broker group still counts the queues that were moved in others."""
    moves = tuple(
        QueueMove(broker_group=name, queue=queue, committed=0, target=1, effect="")
        for name in ("broker-a", "broker-b")
        for queue in range(4)
    )
    plan = Plan(
        action="reset",
        title="",
        group="billing",
        topic="orders",
        name="billing",
        effects=(),
        stamp="",
        form={},
        moves=moves,
    )
    async with Hanging("127.0.0.1:1") as admin:
        with pytest.raises(BrokerUnreachable):
            await reset(ClusterReader(admin, Collector()), plan, done := Done())

    assert (done.count, plan.parts) == (4, 8)


@pytest.mark.cluster
async def test_what_was_done_stands_on_the_page_and_in_the_audit_log(
    guarded: Console,
    browser: aiohttp.ClientSession,
    troubled: Cluster,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: if a redrive fails midway, page and audit log say what was sent, and that the failed letter is unknown."""
    release, redrive = (
        f"/groups/packing/{name}?topic=boxes&key=order-2" for name in ("release", "redrive")
    )
    troubled.create_topic("boxes", queues=1)
    async with Producer(name_servers=troubled.name_server) as producer:
        for number in range(3):
            await producer.send("boxes", str(number), key="order-2")
    await park(troubled, "packing", "order-2", topic="boxes", behind=2)
    await no_lag(troubled, "packing")
    await sign_in(browser, guarded, ALICE)
    form = {**await fields(browser, guarded, release), "confirm": "order-2"}
    await post(browser, guarded, release, form)
    form = {**await fields(browser, guarded, redrive), "confirm": "order-2"}
    monkeypatch.setattr(changes, "_TIMEOUT_S", 2.2)
    troubled.delay("send", 1.5, times=2)
    status, html = await post(browser, guarded, redrive, form)

    text = "1 of 3 dead letters sent; the outcome of the others is unknown: no answer in time"
    assert (status, f"Done in part: {text}. Check the state" in html) == (503, True), html
    assert [line["outcome"] for line in log.lines][-2:] == ["begins", f"failed: {text}"]
