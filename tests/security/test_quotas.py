"""A stranger and a tenant send as many requests as they can."""

import msgspec
import pytest

from orderlymq_broker.core.effects import Caller, Propose
from orderlymq_broker.processors.admin.access import signature
from orderlymq_broker.settings import AccessSettings, AddressQuotas, BrokerSettings
from orderlymq_broker.state.admin.accessrecords import AccountSet, Quota
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import request
from tests.broker.processors.driver import ALICE, Shell, settings
from tests.broker.processors.requests import create, heartbeat_body, send, send_ext
from tests.broker.replication.simulation import Replica, SimulatedGroup

BUSY = 2


def test_a_stranger_at_one_address_gets_its_share_and_no_more() -> None:
    """The limit holds over a thousand connections and any mixture of requests; others are served meanwhile."""
    quotas = AddressQuotas(requests_per_s=50, connections=100)
    shell = Shell(settings(address_quotas=quotas)).lead()
    create(shell, TopicSet("orders", 1, 1), GroupSet("billing"))
    served = 0

    for number in range(1_000):
        stranger = Caller(1_000 + number, "2001:db8::" + format(number + 1, "x"), 40_000)
        ext, body = send_ext("orders"), b"paid"
        code = (310, 34, 11, 29, 20500)[number % 5]
        if code == 34:
            ext, body = {}, heartbeat_body(f"c{number}")
        served += shell.call(code, ext, body, caller=stranger).code != BUSY

    assert served <= 100
    assert send(shell, caller=ALICE).code == 0


def test_a_tenant_over_its_quota_costs_its_neighbour_nothing() -> None:
    """Both send from one address, as behind a load balancer."""
    access = AccessSettings(enable=True, operator_key="operator", operator_secret="operators")
    shell = Shell(settings(access=access)).lead()
    create(
        shell,
        TopicSet("orders", 1, 1),
        *(
            AccountSet(name, name * 2, default_topic_perm="PUB", quota=Quota(bytes_per_s=10_000))
            for name in ("greedy", "modest")
        ),
    )

    def sent(who: str, size: int) -> bool:
        fields = {**send_ext("orders"), "AccessKey": who}
        body = b"x" * size
        fields["Signature"] = signature(fields, body, who * 2)
        return shell.call(310, fields, body).code == 0

    greedy = modest = 0
    for _ in range(100):
        greedy += sum(sent("greedy", 4_000) for _ in range(10))
        modest += sent("modest", 500)
        shell.pass_time(100)

    assert modest == 100
    assert greedy * 4_000 <= 11 * 10_000 + 4_000


class Limited(SimulatedGroup):
    """A simulated group with changed settings."""

    def __init__(self, changes: dict[str, object]) -> None:
        self._changes = changes
        super().__init__(1)

    def settings(self, node: int) -> BrokerSettings:
        return msgspec.structs.replace(super().settings(node), **self._changes)


def judged(leader: Replica, code: int, ext: dict[str, str], peer: Caller) -> int:
    """Return the code with which a leader refuses a request that its core does not answer; 0 if it does not refuse."""
    refusal = leader.loop.refusal(request(code, ext), peer)
    return 0 if refusal is None else refusal.code


@pytest.mark.parametrize("code", [RequestCode.QUERY_ASSIGNMENT, RequestCode.ORDERLYMQ_GROUP_STATUS])
def test_what_the_core_does_not_answer_counts_as_well(code: int) -> None:
    """Law: requests for assignments and status count towards an address's quota, also over a further connection."""
    quotas = AddressQuotas(requests_per_s=5, connections=1)
    leader = Limited({"address_quotas": quotas}).elect()

    codes = [judged(leader, code, {}, ALICE) for _ in range(20)]

    assert codes == [0] * 10 + [BUSY] * 10
    assert judged(leader, code, {}, Caller(77, ALICE.host, 40_077)) == BUSY
    assert leader.core.context.counters["quota_refusals"] == 11
    leader.loop.connection_closed(ALICE.connection)
    assert judged(leader, code, {}, Caller(78, "192.0.2.78", 40_078)) == 0


def test_an_account_asks_for_no_status_beyond_its_quota() -> None:
    """Requests with wrong signatures use up nobody's quota."""
    leader = Limited({"access": AccessSettings(enable=True)}).elect()
    accounts = [
        AccountSet("greedy", "greedygreedy", quota=Quota(requests_per_s=5)),
        AccountSet("modest", "modestmodest"),
    ]
    leader.loop.submit([Propose(accounts)])
    leader.group.pass_time(1)

    def asked(who: str, secret: str) -> int:
        ext = {"AccessKey": who}
        ext["Signature"] = signature(ext, b"", secret)
        return judged(leader, RequestCode.ORDERLYMQ_GROUP_STATUS, ext, ALICE)

    assert {asked("greedy", "guessed") for _ in range(20)} == {1}
    assert [asked("greedy", "greedygreedy") for _ in range(20)] == [0] * 10 + [BUSY] * 10
    assert asked("modest", "modestmodest") == 0
