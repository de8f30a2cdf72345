"""An account without rights knows, or guesses, where messages are stored."""

from orderlymq_broker.processors.admin.access import signature
from orderlymq_broker.settings import AccessSettings
from orderlymq_broker.state.admin.accessrecords import AccountSet
from orderlymq_broker.state.records import TopicSet
from tests.broker.processors.driver import Shell, settings
from tests.broker.processors.requests import create, send_ext

READER, SPY = ("reader", "reader-secret"), ("spying", "spying-secret")
OPERATOR = ("operator", "operator-secret")


def _guarded() -> Shell:
    access = AccessSettings(enable=True, operator_key=OPERATOR[0], operator_secret=OPERATOR[1])
    shell = Shell(settings(access=access))
    shell.lead()
    create(
        shell,
        TopicSet("orders", 1, 1),
        AccountSet(*READER, topic_perms={"orders": "SUB"}),
        AccountSet(*SPY, topic_perms={"other": "PUB|SUB"}, default_group_perm="SUB"),
    )
    return shell


def _ask(
    shell: Shell, who: tuple[str, str], code: int, ext: dict[str, str], body: bytes = b""
) -> int:
    fields = {**ext, "AccessKey": who[0]}
    fields["Signature"] = signature(fields, body, who[1])
    return shell.call(code, fields, body).code


def test_a_message_is_read_by_its_place_only_with_its_topic() -> None:
    """M4: any account could read any message by counting up offsets."""
    shell = _guarded()
    assert _ask(shell, OPERATOR, 310, send_ext("orders"), b"secret order") == 0

    found = {who[0]: _ask(shell, who, 33, {"offset": "0"}) for who in (OPERATOR, READER, SPY)}

    assert found == {"operator": 0, "reader": 0, "spying": 1}
    assert shell.core.context.counters["access_denied"] == 1


def test_a_message_is_handed_out_only_with_its_topic() -> None:
    """Code 309 would have given the message to a member of the spy's own consumer group."""
    shell = _guarded()
    assert _ask(shell, OPERATOR, 310, send_ext("orders"), b"secret order") == 0
    place = {"consumerGroup": "spies", "clientId": "c", "msgId": shell.core.context.message_id(0)}

    _ask(shell, SPY, 309, place)

    assert shell.core.context.counters["access_denied"] == 1
    _ask(shell, SPY, 321, {"topic": "orders", "queueId": "0", "index": "0", "count": "1"})
    assert shell.core.context.counters["access_denied"] == 2
