"""The load program (bench/java): a process that reads commands line by line and answers in JSON."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from bench.fetch import PROGRAM

Event = dict[str, Any]


class ProgramError(RuntimeError):
    """The load program could not execute a command; the text is the program's."""


class Program:
    """One running load program; as a context manager, it is killed at the end."""

    def __init__(self, client: str, servers: str, log: Path, *, address: str = "") -> None:
        target = PROGRAM / "target"
        home = log.parent
        words = [f"client={client}", f"servers={servers}"]
        if address:
            words.append(f"address={address}")
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [
                "java",
                "-Xms256m",
                "-Xmx768m",
                "-XX:+UseSerialGC",  # two cores are shared with three nodes: no threads for the collector
                "-Drocketmq.client.logLevel=ERROR",
                f"-Drocketmq.client.logRoot={home}",
                f"-Duser.home={home}",
                "-cp",
                f"{target}/lib/*:{target}/classes",
                "io.orderlymq.bench.Main",
                *words,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=dict(os.environ),
        )
        self._events: list[Event] = []
        self._news = threading.Condition()
        #: Called with each event when it arrives, in the reading thread.
        self.heard: Callable[[Event], None] = lambda event: None
        threading.Thread(target=self._read, daemon=True).start()
        self.wait("started", 60.0)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # Libraries print their own lines; only JSON objects are events.
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            self.heard(event)
            with self._news:
                self._events.append(event)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def tell(self, verb: str, **words: object) -> None:
        """Send a command without waiting for its end."""
        assert self._process.stdin is not None
        texts = (f"{name}={_text(value)}" for name, value in words.items())
        self._process.stdin.write(" ".join([verb, *texts]) + "\n")
        self._process.stdin.flush()

    def ask(self, verb: str, timeout_s: float = 60.0, **words: object) -> Event:
        """Send a command and return its answer."""
        self.tell(verb, **words)
        return self.wait("done", timeout_s)

    def wait(self, kind: str, timeout_s: float) -> Event:
        """Return the next event of a kind; discard the events before it.

        Raises:
            ProgramError: The command failed, the program ended, or the time-out expired.
        """
        deadline = time.monotonic() + timeout_s
        with self._news:
            while True:
                while self._events:
                    event = self._events.pop(0)
                    if event["event"] == "failed":
                        raise ProgramError(f"{event['command']}: {event['reason']}")
                    if event["event"] == kind:
                        return event
                if self._process.poll() is not None:
                    raise ProgramError(f"the load program has ended; read {self._log.name}")
                if time.monotonic() > deadline:
                    raise ProgramError(f"no {kind!r} within {timeout_s} s")
                self._news.wait(0.2)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            assert pipe is not None
            pipe.close()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
