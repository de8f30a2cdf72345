"""Commands to a supervisor."""

from pathlib import Path

from orderlymq_operator.local.control import ControlServer
from orderlymq_operator.local.directory import DataDirectory, State
from orderlymq_operator.local.supervisor import Supervisor
from tests.operator.examples import desired, topic
from tests.runtime.pages.turns import turns_for


async def test_however_much_one_connection_asks_for_the_loop_turns_between_two_answers(
    tmp_path: Path,
) -> None:
    """Law: a burst of requests does not keep the supervisor from its brokers."""
    directory = DataDirectory(tmp_path)
    directory.save(state := State(desired(topic(queues=3)), {"demo-0": {1: False}}))
    server = ControlServer(Supervisor(directory, state), directory, 1)
    await server.start()
    try:
        contact = directory.contact()
        assert contact is not None
        token = f"Authorization: Bearer {contact.token}"
        request = f"GET /status HTTP/1.1\r\nHost: x\r\n{token}\r\n\r\n".encode()

        assert await turns_for(contact.host, contact.port, request, 32) >= 32
    finally:
        await server.close()
