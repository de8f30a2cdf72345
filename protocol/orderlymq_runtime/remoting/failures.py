"""The answers to requests that failed here, and in place of answers that cannot be written."""

from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.codec import FrameError
from orderlymq_protocol.frame.command import RemotingCommand, bounded_remark


def failure_reply(command: RemotingCommand, error: Exception) -> RemotingCommand:
    """Return the answer of a request whose handler raised *error*: SYSTEM_ERROR, as RocketMQ's servers."""
    return command.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")


def unsendable_reply(response: RemotingCommand, error: FrameError) -> RemotingCommand:
    """Return what is answered instead of a *response* that cannot be written."""
    return RemotingCommand(
        ResponseCode.SYSTEM_ERROR,
        response.opaque,
        response.flag,
        remark=bounded_remark(str(error)),
        serialize_type=response.serialize_type,
    )
