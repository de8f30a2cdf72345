"""The part of a transport that connections use: uvloop's transports have the methods of asyncio's, but not the class."""

from collections.abc import Iterable
from typing import Any, Protocol


class StreamTransport(Protocol):
    """The part of `asyncio.Transport` that is used here; asyncio's documentation has the details."""

    def write(self, data: bytes) -> None:
        """Send *data*, or keep it until the socket takes it."""

    def writelines(self, list_of_data: Iterable[bytes]) -> None:
        """Send pieces in their order, in one call if the system can."""

    def write_eof(self) -> None:
        """Close the sending direction after everything written is sent."""

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the socket has not taken yet."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set at how many bytes writing pauses and resumes."""

    def pause_reading(self) -> None:
        """Stop reading from the socket."""

    def resume_reading(self) -> None:
        """Read from the socket again."""

    def is_closing(self) -> bool:
        """Return whether it is closing or closed."""

    def close(self) -> None:
        """Close it after everything written is sent."""

    def abort(self) -> None:
        """Close it immediately; what was not sent is lost."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the socket under *name*."""
