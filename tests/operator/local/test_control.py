"""Commands to a supervisor."""

import asyncio
import json
from pathlib import Path

import pytest

from orderlymq_operator.local.control import ControlClient, ControlServer
from orderlymq_operator.local.directory import DataDirectory, State
from orderlymq_operator.local.errors import FailedError
from orderlymq_operator.local.supervisor import Supervisor
from tests.operator.examples import desired, topic
from tests.operator.local.manifests import normal_topic, text
from tests.operator.local.supervision import running
from tests.runtime.pages.turns import turns_for


async def test_however_much_one_connection_asks_for_the_loop_turns_between_two_answers(
    tmp_path: Path,
) -> None:
    """Law: many requests on one connection do not block the supervisor's loop: it turns between two answers."""
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


async def test_the_loop_turns_while_manifests_are_read(tmp_path: Path) -> None:
    """Law: reading many manifests does not block the supervisor's loop: another command is answered meanwhile."""
    directory = DataDirectory(tmp_path)
    directory.save(state := State(desired(topic(queues=3)), {"demo-0": {1: False}}))
    server = ControlServer(Supervisor(directory, state), directory, 1)
    await server.start()
    contact = directory.contact()
    assert contact is not None

    async def ask(line: str, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(contact.host, contact.port)
        header = f"{line} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {contact.token}\r\n"
        writer.write(f"{header}Content-Length: {len(body)}\r\n\r\n".encode() + body[:-1])
        await writer.drain()
        return reader, writer

    try:
        files = [{"name": "f", "text": normal_topic(8) * 1_500 + "\n---\n- no manifest\n"}]
        body = json.dumps({"files": files, "prune": False}).encode()
        planned, writer = await ask("POST /plan", body)
        writer.write(body[-1:])
        answer = asyncio.create_task(planned.readline())
        for _ in range(10):
            await asyncio.sleep(0)  # So that the whole request is there.
        status, other = await ask("GET /status", b"")

        assert b" 200 " in await status.readline()
        assert not answer.done()
        assert b" 422 " in await answer
        writer.close()
        other.close()
    finally:
        await server.close()


@pytest.mark.cluster
@pytest.mark.usefixtures("stub_brokers")
@pytest.mark.timeout(60)
async def test_what_cannot_be_written_down_ends_its_request_alone(
    directory: DataDirectory, ports: int
) -> None:
    """Law: a request that cannot be saved (full disk) fails alone and changes nothing; the next one is answered."""
    file = directory.path / "cluster.json"
    changed = [("test.yaml", text(ports, replicas=1, extra=normal_topic(4)))]
    async with running(directory, ports, replicas=1) as supervisor:
        server = ControlServer(supervisor, directory, 1)
        await server.start()
        client = ControlClient(directory)
        kept = file.read_bytes()
        file.unlink()
        file.mkdir()
        try:
            with pytest.raises(
                FailedError, match=r"not accepted, .* cluster keeps running: .*directory"
            ):
                await asyncio.to_thread(client.apply, changed, prune=False)
            file.rmdir()
            file.write_bytes(kept)

            steps = await asyncio.to_thread(client.apply, changed, prune=False)
        finally:
            await server.close()

    assert steps == ["create topic clicks with 4 queues on demo-0"]
