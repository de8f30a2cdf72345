"""The answers to requests whose handler failed, and the replacements of answers that cannot be written."""

from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.codec import FrameError
from orderlymq_protocol.frame.command import RemotingCommand, bounded_remark


def failure_reply(command: RemotingCommand, error: Exception) -> RemotingCommand:
    """Return the answer to a request whose handler raised *error*: SYSTEM_ERROR, as RocketMQ's servers do."""
    return command.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")


def unsendable_reply(response: RemotingCommand, error: FrameError) -> RemotingCommand:
    """Return the answer that replaces a *response* that cannot be written."""
    return RemotingCommand(
        ResponseCode.SYSTEM_ERROR,
        response.opaque,
        response.flag,
        remark=bounded_remark(str(error)),
        serialize_type=response.serialize_type,
    )
