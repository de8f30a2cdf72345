"""Long lists: they are searched, sorted and cut into pages here, so that a browser gets one page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from orderlymq_console.parameters import Parameters

T = TypeVar("T")

PAGE_SIZE: Final = 50


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """One page of a list: its items, its number from 1 on, the number of pages, and the number of all items."""

    items: Sequence[T]
    number: int
    pages: int
    total: int


def search(names: Sequence[T], query: str, name_of: Callable[[T], str]) -> Sequence[T]:
    """Return the items whose name contains *query*, ignoring case; those that begin with it come first."""
    if not query:
        return names
    wanted = query.casefold()
    found = [item for item in names if wanted in name_of(item).casefold()]

    return sorted(found, key=lambda item: not name_of(item).casefold().startswith(wanted))


def cut(items: Sequence[T], parameters: Parameters) -> Slice[T]:
    """Return the page that the request asks for; the last page if the number is too high."""
    pages = max(1, -(-len(items) // PAGE_SIZE))
    number = min(parameters.number("page", 1, low=1), pages)
    begin = (number - 1) * PAGE_SIZE

    return Slice(items[begin : begin + PAGE_SIZE], number, pages, len(items))
