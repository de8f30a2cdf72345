"""
Operators: one that another has followed changes nothing, and every replica learns of the newest.

The rule: a request with a token is refused once a greater one is in the log, or on its way there. Requests without one are
served as ever: people's tools have none. A token comes into the log as a record that replicas of every release apply alike; as a
field of the request's own record, a former release would drop it, and its replicas would judge later requests otherwise.
Where operators take their tokens from: ``orderlymq_protocol/operatortoken.py``.
"""

from orderlymq_broker.core.effects import Effect, Now, Propose
from orderlymq_broker.core.requestcontext import Context, RequestRefused
from orderlymq_broker.state.records import AssignmentSet
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.header.extensions import EXT_TOKEN
from orderlymq_protocol.integers import read_integer
from orderlymq_protocol.operatortoken import stale_operator, token_max_at


def check_token(context: Context, ext: dict[str, str], now: Now) -> int:
    """Return the token of the operator that asks; who names none has the smallest, 0.

    Raises:
        RequestRefused: another operator has followed it, or no operator has such a token yet (1).
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
            f"operatorToken {token} is greater than {maximum}, the greatest one that an operator can have "
            f"at this broker's time; compare the clocks of operator and brokers",
        )
    if token < greatest:
        context.counters["stale_operators"] += 1
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, stale_operator(token, greatest))

    return token


def note_token(context: Context, ext: dict[str, str]) -> list[Effect]:
    """Return the proposal of a checked token, which comes before the operator's request; nothing when the token is known."""
    token = int(ext[EXT_TOKEN])
    if not context.leading or token <= _greatest(context):
        return []
    context.view.operator_token = token

    # It decides nothing: no group has an empty name.
    return [Propose([AssignmentSet("", "", (), token)])]


def _greatest(context: Context) -> int:
    return max(context.state.operator_token, context.view.operator_token)
