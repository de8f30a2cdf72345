"""The headers of requests of clients and brokers about clients, groups and transactions."""

from dataclasses import field

from orderlymq_protocol.body.declaration import wire_name
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.header.declaration import (
    Header,
    request_header,
)
from orderlymq_protocol.integers import Int, Long


@request_header(RequestCode.UNREGISTER_CLIENT)
class UnregisterClientHeader(Header):
    """A client leaves a group on purpose."""

    client_id: str = field(metadata=wire_name("clientID"))
    producer_group: str | None = None
    consumer_group: str | None = None


@request_header(RequestCode.CONSUMER_SEND_MSG_BACK)
class ConsumerSendMsgBackHeader(Header):
    """A message that a consumer could not handle; a `delay_level` below 0 means dead letter."""

    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None


@request_header(RequestCode.END_TRANSACTION)
class EndTransactionHeader(Header):
    """Commit or roll back a half message; `commit_or_rollback` holds transaction bits of `sysflag`."""

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None


@request_header(RequestCode.CHECK_TRANSACTION_STATE)
class CheckTransactionStateHeader(Header):
    """The broker asks a producer about the outcome of a half message."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
