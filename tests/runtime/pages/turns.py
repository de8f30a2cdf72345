"""Counts turns of the event loop while a server of pages answers."""

import asyncio


class Turns:
    """Counts the loop's iterations, and notes in which one something happened."""

    def __init__(self) -> None:
        self.noted: list[int] = []
        self.number = 0

    def start(self) -> None:
        self.number += 1
        asyncio.get_running_loop().call_soon(self.start)

    def note(self) -> None:
        self.noted.append(self.number)


async def turns_for(host: str, port: int, request: bytes, count: int) -> int:
    """Send *request* that often at once on one connection; return how often the loop turned until all were answered."""
    turns = Turns()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        turns.start()
        writer.write(request * count)
        answers = b""
        while answers.count(b"HTTP/1.1 200 ") < count:
            part = await reader.read(1 << 16)
            assert part, answers
            answers += part
        return turns.number
    finally:
        writer.close()
