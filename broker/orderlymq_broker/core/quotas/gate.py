"""Where requests meet the quotas: before anything is known of the sender but its address, and when its account is known."""

from orderlymq_broker.core.effects import Now, Peer
from orderlymq_broker.core.requestcontext import Context, RequestRefused
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand


def check_address(context: Context, request: RemotingCommand, peer: Peer, now: Now) -> None:
    """Refuse a request whose address has used up its quota.

    Raises:
        RequestRefused: it has (2).
    """
    _raise(context, context.quotas.of_address(request, peer, now))


def check_account(context: Context, request: RemotingCommand, peer: Peer, now: Now) -> None:
    """Refuse a request whose account has used up its quota; the operator's own account has none.

    Raises:
        RequestRefused: it has (2).
    """
    account = context.state.access.accounts.get(peer.account) if peer.account else None
    if account is not None:
        _raise(context, context.quotas.of_account(account.quota, request, peer, now))


def _raise(context: Context, refusal: str) -> None:
    if refusal:
        context.counters["quota_refusals"] += 1
        raise RequestRefused(ResponseCode.SYSTEM_BUSY, refusal)
