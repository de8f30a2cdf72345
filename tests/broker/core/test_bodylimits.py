"""The size limits of request bodies, and requests that are refused before they are decoded."""

from typing import Any

import pytest

from orderlymq_broker.core.bodylimits import (
    BODY_SIZE_MAX,
    PRODUCER_GROUPS_MAX,
    SUBSCRIPTIONS_MAX,
    body_size_max,
    excess,
    read_heartbeat,
)
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.declaration import ModelError
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import request


def test_every_body_that_is_read_has_a_limit() -> None:
    """Law: every code has a limit, except sends; a code that is added later has the smallest one."""
    limits = {code: body_size_max(code) for code in RequestCode}

    assert [code for code, limit in limits.items() if limit is None] == [
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.ORDERLYMQ_APPEND_COPIES,
    ]
    assert max(limit for limit in limits.values() if limit is not None) == 2 << 20
    assert body_size_max(32_000) == BODY_SIZE_MAX


def test_an_excess_is_named_with_what_to_do() -> None:
    """Law: the refusal says what to do, because the client gets it as the remark."""
    assert excess(request(400, {}, b"x" * BODY_SIZE_MAX)) == ""
    assert excess(request(400, {}, b"x" * (BODY_SIZE_MAX + 1))) == (
        "the body of a request 400 has 65537 bytes; at most 65536 are allowed: send less in one request"
    )


@pytest.mark.parametrize(
    "body",
    [
        {"consumerDataSet": [{"groupName": "g"}] * (SUBSCRIPTIONS_MAX + 1)},
        {
            "consumerDataSet": [
                {"groupName": "g", "subscriptionDataSet": [{"topic": "t"}] * SUBSCRIPTIONS_MAX}
            ]
        },
        {"producerDataSet": [{"groupName": "g"}] * (PRODUCER_GROUPS_MAX + 1)},
    ],
    ids=["groups", "subscriptions", "producers"],
)
def test_a_heartbeat_with_too_many_parts_is_refused(body: dict[str, Any]) -> None:
    """Law: a heartbeat with too many parts is refused, because each part takes time at every heartbeat and log space when
    it changes.
    """
    with pytest.raises(ModelError, match="divide them over several clients"):
        read_heartbeat(fastjson.dumps({"clientID": "c", **body}))


@pytest.mark.parametrize("odd", [{"consumerDataSet": 3}, {"consumerDataSet": [3]}, {}, []])
def test_a_heartbeat_that_is_none_is_refused_as_before(odd: Any) -> None:
    """Law: a heartbeat with a wrong structure is still refused as such; counting its parts does not fail on it."""
    with pytest.raises(ModelError):
        read_heartbeat(fastjson.dumps({**odd, "producerDataSet": None} if odd != [] else odd))
