"""
The list of pages: each answers under its address as HTML, under `/api` as JSON, and under `/events` as it changes.

Rule: one function makes the model of a page; HTML and JSON are two views of this model.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from orderlymq_console.cluster import ClusterReader
from orderlymq_console.links import WAITING
from orderlymq_console.models import Page
from orderlymq_console.pages.blocked import blocked
from orderlymq_console.pages.deadletters import dead_letters
from orderlymq_console.pages.groups import group, groups
from orderlymq_console.pages.key import key
from orderlymq_console.pages.letters import letters
from orderlymq_console.pages.member import member
from orderlymq_console.pages.message import message
from orderlymq_console.pages.messages import messages
from orderlymq_console.pages.overview import overview, raft
from orderlymq_console.pages.pipelines import pipeline, pipelines
from orderlymq_console.pages.topics import topic, topics
from orderlymq_console.pages.undelivered import waiting
from orderlymq_console.parameters import Parameters
from orderlymq_console.web.events import stream
from orderlymq_console.web.identity import who_looks
from orderlymq_console.web.keys import READER, RENDERER


@dataclass(frozen=True, slots=True)
class View:
    """A page: its address, its template, the function that makes its model, and whether it follows the cluster."""

    path: str
    template: str
    build: Callable[[ClusterReader, Parameters], Awaitable[Page]]
    is_live: bool = True

    @property
    def name(self) -> str:
        """Its address below `/api` and `/events`."""
        return "/overview" if self.path == "/" else self.path


VIEWS: Final = (
    View("/", "overview.html", overview),
    View("/blocked", "blocked.html", blocked),
    View("/topics", "topics.html", topics),
    View("/topics/{topic}", "topic.html", topic),
    View("/topics/{topic}/messages", "messages.html", messages, is_live=False),
    View("/groups", "groups.html", groups),
    View("/groups/{group}", "group.html", group),
    View("/groups/{group}/member", "member.html", member, is_live=False),
    View("/key", "key.html", key, is_live=False),
    View("/message", "message.html", message, is_live=False),
    View("/dead-letters", "deadletters.html", dead_letters),
    View(WAITING, "waiting.html", waiting),
    View("/dead-letters/{group}", "letters.html", letters, is_live=False),
    View("/pipelines", "pipelines.html", pipelines),
    View("/pipelines/{pipeline}", "pipeline.html", pipeline),
    View("/raft", "raft.html", raft),
)


def add_views(application: web.Application) -> None:
    """Register all pages."""
    for view in VIEWS:
        application.router.add_get(view.path, _html(view))
        application.router.add_get(f"/api{view.name}", _json(view))
        if view.is_live:
            application.router.add_get(f"/events{view.name}", _events(view), allow_head=False)


def _parameters(request: web.Request) -> Parameters:
    return Parameters({**request.query, **request.match_info})


def _html(view: View) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        model = await view.build(request.app[READER], _parameters(request))
        path = "/overview" if request.path == "/" else request.rel_url.raw_path
        query = f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
        return request.app[RENDERER].page(
            view.template,
            request,
            who_looks(request),
            page=model,
            events=f"/events{path}{query}" if view.is_live else "",
        )

    return handle


def _json(view: View) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        model = await view.build(request.app[READER], _parameters(request))
        return web.Response(
            text=model.model_dump_json(by_alias=True), content_type="application/json"
        )

    return handle


def _events(view: View) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        async def render() -> str:
            model = await view.build(request.app[READER], _parameters(request))
            return request.app[RENDERER].live(
                view.template, request, who_looks(request), page=model
            )

        return await stream(request, render)

    return handle
