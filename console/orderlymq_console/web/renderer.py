"""
Turn a model into HTML: templates with escaping, and texts for numbers, times and sizes.

Rule: the template escapes every value that comes from outside; nothing here marks a value as safe.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from orderlymq import __version__
from orderlymq_console import links
from orderlymq_console.models import Figure
from orderlymq_console.parameters import MOMENT_MAX
from orderlymq_console.settings import Account

#: The pages in the navigation: address and name.
NAVIGATION: Final = (
    ("/", "Overview"),
    ("/blocked", "Blocked"),
    ("/topics", "Topics"),
    ("/groups", "Groups"),
    ("/key", "Key"),
    ("/dead-letters", "Dead letters"),
    (links.WAITING, "Waiting"),
    ("/pipelines", "Pipelines"),
    ("/raft", "Raft"),
)
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True, slots=True)
class Who:
    """The viewer of a page: its account, and the proof for its forms; both are empty if nobody has signed in."""

    account: Account | None = None
    proof: str = ""


class Renderer:
    """Fills the templates."""

    def __init__(self, cluster: str, *, read_only: bool) -> None:
        self._environment = _environment(cluster, read_only=read_only)

    def page(
        self, template: str, request: web.Request, who: Who, *, status: int = 200, **values: Any
    ) -> web.Response:
        """Return a whole page as an answer."""
        context = _context(request, who) | {"status": status} | values
        html = self._environment.get_template(template).render(context)
        return web.Response(status=status, text=html, content_type="text/html")

    def live(self, template: str, request: web.Request, who: Who, **values: Any) -> str:
        """Return the part of a page that follows the cluster."""
        found = self._environment.get_template(template)
        context = found.new_context({**_context(request, who), **values})
        return "".join(found.blocks["live"](context))


@cache
def _environment(cluster: str, *, read_only: bool) -> Environment:
    """Return the templates; each is compiled once in a process."""
    found = Environment(
        loader=PackageLoader("orderlymq_console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "number": number,
        "size": size,
        "moment": moment,
        "span": span,
        "age": age,
        "isotime": isotime,
    }
    found.globals |= {name: getattr(links, name) for name in dir(links) if name.endswith("_link")}
    found.globals |= {
        "navigation": NAVIGATION,
        "version": __version__,
        "cluster": cluster,
        "read_only": read_only,
    }
    found.globals["ui"] = found.get_template("parts.html").module
    return found


def _context(request: web.Request, who: Who) -> dict[str, Any]:
    path = request.path.removeprefix("/events")
    return {
        "path": "/" if path == "/overview" else path,
        # The path as a link writes it: a name in it may have a character that an address escapes.
        "raw_path": request.rel_url.raw_path,
        "proof": who.proof,
        "account": who.account,
        "here": _here(request.query),
        "events": "",
    }


def _here(query: Mapping[str, str]) -> Any:
    """Return a function that makes a link to the same page with some parameters changed."""

    def changed(**values: object) -> str:
        kept = {name: str(value) for name, value in query.items()} | values
        return "?" + urlencode({name: value for name, value in kept.items() if value != ""})

    return changed


def static_files() -> dict[str, tuple[bytes, str]]:
    """Return the console's own files by name, with their types."""
    types = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    return {
        each.name: (each.read_bytes(), types[each.name.rpartition(".")[2]])
        for each in files("orderlymq_console").joinpath("static").iterdir()
        if each.name.rpartition(".")[2] in types
    }


def number(value: Figure | float | None) -> str:
    """Return a number for people; a lower bound begins with ≥."""
    prefix = ""
    if isinstance(value, Figure):
        prefix = "≥ " if value.at_least else ""
        value = value.value
    if value is None:
        return "unknown"
    return prefix + (f"{value:,.1f}" if value != int(value) and value < 1_000 else f"{value:,.0f}")


def size(value: Figure | float | None) -> str:
    """Return a size in bytes for people."""
    if isinstance(value, Figure):
        value = value.value
    if value is None:
        return "unknown"
    if value < 1024:
        return f"{value:,.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:,.1f} {unit}"
    return f"{value / 1024:,.1f} TiB"


def isotime(wall_ms: int) -> str:
    """Return a time for programs; empty if the value is not a time."""
    if not 0 < wall_ms < MOMENT_MAX:
        return ""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")


def moment(wall_ms: int | None) -> str:
    """Return a time for people, in UTC as its Z says; with its date if that is not today."""
    if wall_ms is None or not 0 < wall_ms < MOMENT_MAX:
        return "–"
    at = datetime.fromtimestamp(wall_ms / 1000, UTC)
    today = datetime.now(UTC).date()
    return at.strftime("%H:%M:%SZ" if at.date() == today else "%Y-%m-%d %H:%M:%SZ")


def age(wall_ms: int | None) -> str:
    """Return how long ago a time was."""
    return "–" if wall_ms is None else span(time.time() - wall_ms / 1000)


def span(seconds: Figure | float | None) -> str:
    """Return a span of time in its two largest units."""
    if isinstance(seconds, Figure):
        seconds = seconds.value
    if seconds is None:
        return "unknown"
    left = max(0, round(seconds))
    parts: list[str] = []
    for length, unit in _UNITS:
        if left >= length or (unit == "s" and not parts):
            parts.append(f"{left // length} {unit}")
            left %= length
        if len(parts) == 2 or (parts and not left):
            break
    return " ".join(parts)
