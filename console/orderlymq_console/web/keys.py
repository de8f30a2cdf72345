"""The keys of the application's parts, with their types, for its handlers."""

from typing import Final

from aiohttp import web

from orderlymq_console.audit import Audit
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.settings import ConsoleSettings
from orderlymq_console.web.renderer import Renderer
from orderlymq_console.web.sessions import Sessions
from orderlymq_console.web.viewers import Viewers

SETTINGS: Final = web.AppKey("SETTINGS", ConsoleSettings)
SESSIONS: Final = web.AppKey("SESSIONS", Sessions)
READER: Final = web.AppKey("READER", ClusterReader)
RENDERER: Final = web.AppKey("RENDERER", Renderer)
VIEWERS: Final = web.AppKey("VIEWERS", Viewers)
AUDIT: Final = web.AppKey("AUDIT", Audit)
