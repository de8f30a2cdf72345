"""The answers to requests that failed here, and in place of answers that cannot be written."""

from typing import Final

from orderlymq_protocol.frame.codec import FrameError
from orderlymq_protocol.frame.command import RemotingCommand, bounded_remark

SYSTEM_ERROR: Final = 1


def failure_reply(command: RemotingCommand, error: Exception) -> RemotingCommand:
    """Return the answer of a request whose handler raised *error*: code 1, as RocketMQ's servers."""
    return command.reply(SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")


def unsendable_reply(response: RemotingCommand, error: FrameError) -> RemotingCommand:
    """Return what is answered instead of a *response* that cannot be written."""
    return RemotingCommand(
        SYSTEM_ERROR,
        response.opaque,
        response.flag,
        remark=bounded_remark(str(error)),
        serialize_type=response.serialize_type,
    )
