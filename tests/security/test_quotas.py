"""A stranger, and a tenant, who ask as much as they can."""

from orderlymq_broker.core.effects import Peer
from orderlymq_broker.processors.admin.access import signature
from orderlymq_broker.settings import AccessSettings, AddressQuotas
from orderlymq_broker.state.admin.accessrecords import AccountSet, Quota
from orderlymq_broker.state.records import GroupSet, TopicSet
from tests.broker.processors.driver import ALICE, Shell, settings
from tests.broker.processors.requests import create, heartbeat_body, send, send_ext

BUSY = 2


def test_a_stranger_at_one_address_gets_its_share_and_no_more() -> None:
    """Over a thousand connections, with any mixture of requests; others are served meanwhile."""
    quotas = AddressQuotas(requests_per_s=50, connections=100)
    shell = Shell(settings(address_quotas=quotas)).lead()
    create(shell, TopicSet("orders", 1, 1), GroupSet("billing"))
    served = 0

    for number in range(1_000):
        stranger = Peer(1_000 + number, "2001:db8::" + format(number + 1, "x"), 40_000)
        ext, body = send_ext("orders"), b"paid"
        code = (310, 34, 11, 29, 20500)[number % 5]
        if code == 34:
            ext, body = {}, heartbeat_body(f"c{number}")
        served += shell.call(code, ext, body, peer=stranger).code != BUSY

    assert served <= 100
    assert send(shell, peer=ALICE).code == 0


def test_a_tenant_over_its_quota_costs_its_neighbour_nothing() -> None:
    """Both send from one address, as behind a balancer."""
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
