"""A remoting server that answers each code as a test says, and remembers the requests."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.server import RemotingServer
from orderlymq_runtime.security.tls import ServerTls

# With None the server does not answer.
Answer = Callable[[RemotingCommand], RemotingCommand | None]


def _succeed(request: RemotingCommand) -> RemotingCommand:
    return request.reply()


class Scripted:
    """The handler; `asked` has code, fields and body of each request, `answers` the answer by code."""

    def __init__(self, answers: Mapping[int, Answer]) -> None:
        self.asked: list[tuple[int, dict[str, str], bytes]] = []
        self.answers = dict(answers)

    def connection_made(self, conn: Connection) -> None:
        pass

    def connection_lost(self, conn: Connection) -> None:
        pass

    def received(self, conn: Connection, command: RemotingCommand) -> None:
        self.asked.append((command.code, dict(command.ext), command.body))
        answer = self.answers.get(command.code, _succeed)
        if (reply := answer(command)) is not None:
            conn.send(reply)


@asynccontextmanager
async def serving(
    answers: Mapping[int, Answer], tls: ServerTls | None = None
) -> AsyncIterator[tuple[Scripted, str]]:
    """Serve *answers* (success for other codes); yield handler and address."""
    handler = Scripted(answers)
    server = RemotingServer(handler, tls=tls)
    host, port = await server.listen("127.0.0.1", 0)
    try:
        yield handler, f"{host}:{port}"
    finally:
        await server.close()
