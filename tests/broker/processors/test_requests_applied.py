"""Every replica can apply whatever clients' requests lead to."""

import json
from typing import Any

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orderlymq_broker.state.records import (
    GroupSet,
    TopicSet,
)
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import create, send_ext

ORDERS = TopicSet("orders", 4, 4, order=True)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


# -- any requests ---------------------------------------------------------------------------------

_WORDS = st.sampled_from(
    [
        "orders",
        "billing",
        "c1",
        "0",
        "1",
        "3",
        "-1",
        "2147483648",
        "9" * 30,
        "true",
        "1_0",
        "",
        "UNIQ_KEY\x01U1",
    ]
)
_FIELDS = (
    *"abcdefghijklmn",
    *("topic", "consumerGroup", "producerGroup", "group", "queueId", "queueOffset", "commitOffset"),
    *(
        "offset",
        "delayLevel",
        "originMsgId",
        "originTopic",
        "maxReconsumeTimes",
        "clientID",
        "clientId",
    ),
    *(
        "tranStateTableOffset",
        "commitLogOffset",
        "commitOrRollback",
        "operatorToken",
        "action",
        "key",
    ),
    *(
        "attempt",
        "total",
        "queues",
        "limitMillis",
        "settleMillis",
        "omqEpoch",
        "following",
        "proof",
    ),
)
_LEAVES = st.sampled_from(
    [True, None, 0, 1, -1, 2**31, 2**63, 10**30, 1.5, "orders", "billing", "c1", "9" * 30, "\ud800"]
)
_QUEUES = st.fixed_dictionaries(
    {"topic": st.just("orders"), "brokerName": st.just("broker-a"), "queueId": _LEAVES}
)
_BODIES = st.one_of(
    st.binary(max_size=40),
    st.lists(st.tuples(_LEAVES, _LEAVES, _LEAVES), max_size=2).map(_json),
    st.builds(
        lambda client, group, queues, lease: _json(
            {"clientId": client, "consumerGroup": group, "mqSet": queues, "leaseMillis": lease}
        ),
        *(_LEAVES, _LEAVES, st.lists(_QUEUES, max_size=3), _LEAVES),
    ),
    st.builds(
        lambda client, group, version, codes: _json(
            {
                "clientID": client,
                "consumerDataSet": [
                    {
                        "groupName": group,
                        "subscriptionDataSet": [
                            {"topic": "orders", "subVersion": version, "codeSet": codes}
                        ],
                    }
                ],
                "producerDataSet": [],
            }
        ),
        *(_LEAVES, _LEAVES, _LEAVES, st.lists(_LEAVES, max_size=2)),
    ),
)
_SERVED = sorted(Shell().core.codes)
REQUESTS = st.tuples(
    st.sampled_from([310, 310, 320, 34, 41, 42, 15, *_SERVED]),
    st.dictionaries(st.sampled_from(_FIELDS), _WORDS, max_size=6),
    _BODIES,
)


@hypothesis_settings(max_examples=60, deadline=None)
@given(requests=st.lists(REQUESTS, max_size=12), turns=st.integers(1, 4))
def test_whatever_clients_send_can_be_applied(
    requests: list[tuple[int, dict[str, str], bytes]], turns: int
) -> None:
    """Law: each request is checked by itself, and every replica can apply what it leaves in the log."""
    shell = Shell().lead()
    create(shell, ORDERS, GroupSet("billing"))
    usual = {
        **send_ext("orders"),
        "topic": "orders",
        "consumerGroup": "billing",
        "group": "billing",
    }
    for number, (code, ext, body) in enumerate(requests):
        shell.submit(code, {**usual, **ext}, body)
        if number % turns == 0:
            shell.settle()
    shell.settle()

    assert shell.core.context.entries.uncommitted == 0
    assert shell.core.context.entries.physical_next == shell.state.physical_end
    shell.replay()
    shell.restart()
