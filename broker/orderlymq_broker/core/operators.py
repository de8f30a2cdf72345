"""
Operator tokens: an operator that was replaced by another one can change nothing, and every replica learns the newest token.

The rule: a request with a token is refused once a greater token is in the log or proposed. Requests without a
token, such as those of people's tools, are always served. A token enters the log as a record that replicas of
every release apply alike. If it were a field of the request's own record, an earlier release would drop it,
and its replicas would judge later requests differently. ``orderlymq_protocol/operatortoken.py`` defines where
operators get their tokens.
"""

from orderlymq_broker.core.effects import Effect, Now, Propose
from orderlymq_broker.core.requestcontext import Context, RequestRefused
from orderlymq_broker.state.records import AssignmentSet
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.header.extensions import EXT_TOKEN
from orderlymq_protocol.integers import read_integer
from orderlymq_protocol.operatortoken import stale_operator, token_max_at


def check_token(context: Context, ext: dict[str, str], now: Now) -> int:
    """Return the token of the operator that asks; 0, the smallest, if the request has none.

    Raises:
        RequestRefused: another operator has replaced it, or no operator can have such a token yet (1).
    """
    try:
        token = read_integer(ext.get(EXT_TOKEN, "0"), 0)
    except ValueError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{EXT_TOKEN} {error}") from error
    greatest = _greatest(context)
    if token > (maximum := token_max_at(now.wall_ms, greatest)):
        context.counters["impossible_operators"] += 1
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"operatorToken {token} is greater than {maximum}, the greatest value that is "
            "possible at this broker's time; compare the clocks of operator and brokers",
        )
    if token < greatest:
        context.counters["stale_operators"] += 1
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, stale_operator(token, greatest))

    return token


def note_token(context: Context, ext: dict[str, str]) -> list[Effect]:
    """Return the proposal of a checked token, to precede the operator's request; empty if the token is known."""
    token = int(ext[EXT_TOKEN])
    if not context.leading or token <= _greatest(context):
        return []
    context.view.operator_token = token

    # The record has no other effect, because no group has an empty name.
    return [Propose([AssignmentSet("", "", (), token)])]


def _greatest(context: Context) -> int:
    return max(context.state.operator_token, context.view.operator_token)
