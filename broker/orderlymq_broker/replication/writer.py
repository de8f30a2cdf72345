"""
The single thread that makes writes durable.

The rule: tickets are always committed in the order in which they were submitted. A full disk delays all of
them until there is space again; none is skipped. Any other error ends writing for good, because its outcome
is unknown. ``loop.py`` submits tickets and is called back on the event loop.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from orderlymq_broker.store.kv import KeyValueStore, StoreError, StoreFailed, StoreFull, WriteTicket

_log = logging.getLogger(__name__)

# Space returns only when files are deleted; try again every fifth of a second.
FULL_RETRY_S: Final = 0.2

Done = Callable[[float], None]


class Writer(Protocol):
    """The interface of the thread for the loop; tests commit by hand."""

    def submit(self, ticket: WriteTicket, *, sync: bool, done: Done) -> None:
        """Commit *ticket* after all before it; then call *done* with the seconds it took."""


@dataclass(frozen=True, slots=True)
class WriterEvents:
    """Further reports of the thread, called on the event loop."""

    full: Callable[[bool], None]
    failed: Callable[[StoreError], None]


class WriterThread:
    """Commits tickets one after the other; `close` waits for the submitted ones."""

    def __init__(
        self,
        store: KeyValueStore,
        post: Callable[[Callable[[], None]], object],
        events: WriterEvents,
        *,
        full_retry_s: float = FULL_RETRY_S,
    ) -> None:
        self._store = store
        self._post = post
        self._events = events
        self._full_retry_s = full_retry_s
        self._queue: queue.SimpleQueue[tuple[WriteTicket, bool, Done] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._runner = threading.Thread(target=self._run, name="writer", daemon=True)
        self._runner.start()

    def submit(self, ticket: WriteTicket, *, sync: bool, done: Done) -> None:
        """Commit *ticket* after all before it, then call *done* on the event loop."""
        self._queue.put((ticket, sync, done))

    def close(self, timeout_s: float = 5.0) -> bool:
        """Commit the submitted batches and end the thread, without waiting for a full disk.

        Returns whether the thread has ended. Until it has, the store is in use.
        """
        self._stopping.set()
        self._queue.put(None)
        self._runner.join(timeout_s)
        return not self._runner.is_alive()

    def _run(self) -> None:
        while True:
            job = self._queue.get()
            if job is None:
                return
            ticket, sync, done = job
            elapsed_s = self._commit(ticket, sync)
            if elapsed_s is None:
                return
            self._tell(partial(done, elapsed_s))

    def _commit(self, ticket: WriteTicket, sync: bool) -> float | None:
        """Write the ticket to the store; return the seconds that this took, None if it was not written."""
        was_full = False
        while True:
            # The wait for space is not part of the disk's speed.
            began = time.perf_counter()
            try:
                self._store.commit(ticket, sync=sync)
                elapsed_s = time.perf_counter() - began
            except StoreFull as full:
                if not was_full:
                    was_full = True
                    _log.error("the disk is full, writes wait for space: %s", full)
                    self._tell(partial(self._events.full, True))
                if self._stopping.wait(self._full_retry_s):
                    return None
            except StoreError as failure:
                self._tell(partial(self._events.failed, failure))
                return None
            except Exception as error:
                # After an unknown error, the contents of the disk are unknown.
                _log.exception("a write failed in an unexpected way")
                unknown = StoreFailed(f"{type(error).__name__}: {error}")
                self._tell(partial(self._events.failed, unknown))
                return None
            else:
                if was_full:
                    _log.info("the disk has space again, writes continue")
                    self._tell(partial(self._events.full, False))
                return elapsed_s

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            self._post(call)
        except RuntimeError:
            # The event loop is closed, so there is no receiver.
            _log.debug("a write ended after the event loop had ended")
