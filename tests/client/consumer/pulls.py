"""Answers of brokers to pulls, for the tests of all consumers."""

from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection


def send_away(command: RemotingCommand, _conn: Connection) -> RemotingCommand:
    """Answer a pull as a broker without room for waiting pulls does."""
    ext = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": command.ext["queueOffset"],
        "minOffset": "0",
        "maxOffset": "0",
    }
    return command.reply(ResponseCode.PULL_RETRY_IMMEDIATELY, ext, remark="TOO_MANY_WAIT")
