"""
``python -m orderlymq_nameserver --settings FILE``: run one name server until SIGTERM or SIGINT.

Exit codes: 0 after a requested stop, 2 if it cannot start, with one line that gives the reason.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Final

from orderlymq_nameserver.app import NameServer
from orderlymq_nameserver.kv import KvError
from orderlymq_nameserver.settings import NameServerSettings
from orderlymq_runtime.process import logs, loop
from orderlymq_runtime.remoting.server import PortInUseError
from orderlymq_runtime.settingsfile import SettingsError, read_settings

EXIT_CANNOT_START: Final = 2


def main(arguments: list[str] | None = None) -> int:
    """Run the process and return its exit code."""
    parser = argparse.ArgumentParser(prog="orderlymq_nameserver", description="Run a name server.")
    parser.add_argument(
        "--settings", type=Path, help="JSON file; without it, all settings have their defaults"
    )
    path: Path | None = parser.parse_args(arguments).settings
    try:
        settings = NameServerSettings() if path is None else read_settings(path, NameServerSettings)
        logs.configure(settings.log_level, settings.log_format, "name-server")
        return loop.run(_serve(settings), close_max_s=settings.shutdown_max_ms / 1000)
    except PortInUseError as error:
        reason = str(error.strerror)
    except (SettingsError, KvError) as error:
        reason = str(error)
    except OSError as error:
        reason = f"cannot listen on the address in the settings: {error}"
    print(f"name server: {reason}", file=sys.stderr)  # noqa: T201 - the one line of a failed start
    return EXIT_CANNOT_START


async def _serve(settings: NameServerSettings) -> None:
    server = NameServer(settings)
    await server.start()
    http = "" if server.http_address is None else f", HTTP on {server.http_address}"
    print(f"name server listens on {server.address}{http}", flush=True)  # noqa: T201 - promised line
    try:
        await asyncio.Event().wait()
    finally:
        await server.close()


if __name__ == "__main__":
    sys.exit(main())
