"""`orderlymq console`: serve the console until Ctrl-C or SIGTERM."""

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from orderlymq.cli.session import name_server_option, print_json_line, reporting

if TYPE_CHECKING:
    from orderlymq_console.app import Console


@click.command()
@name_server_option
@click.option(
    "--listen",
    envvar="ORDERLYMQ_CONSOLE_LISTEN",
    show_envvar=True,
    default="127.0.0.1:9870",
    show_default=True,
    metavar="HOST:PORT",
)
@click.option("--read-only", is_flag=True, help="Refuse every change.")
@click.option(
    "--accounts",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file with the accounts that may sign in; needed to listen for other machines.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Host name under which browsers open the console; may be given several times.",
)
@click.option(
    "--https-host",
    "https_hosts",
    multiple=True,
    envvar="ORDERLYMQ_CONSOLE_HTTPS_HOSTS",
    show_envvar=True,
    metavar="NAME",
    help="Like --host, if a proxy terminates TLS: session cookies are sent over TLS only. May be given several times.",
)
@click.option(
    "--audit-log",
    type=click.File("a", lazy=False),
    help="File to which each change is appended as a line of JSON; default: standard error.",
)
@click.option(
    "--pipelines",
    multiple=True,
    type=click.Path(path_type=Path),
    envvar="ORDERLYMQ_CONSOLE_PIPELINES",
    metavar="PATH",
    help="Manifest of Spark pipelines, or a folder with manifests; may be given several times.",
)
@click.option(
    "--pipelines-of",
    metavar="NAMESPACE/CLUSTER",
    help="In a pod: show the Pipelines of this Cluster, which the console reads from the API server.",
)
@click.option("--tls-certificate", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--tls-key", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--end-with-input", is_flag=True, hidden=True)
@reporting
def console(  # noqa: PLR0913 - what a user may say
    *,
    name_server: str,
    listen: str,
    read_only: bool,
    accounts: Path | None,
    hosts: tuple[str, ...],
    https_hosts: tuple[str, ...],
    audit_log: IO[str] | None,
    pipelines: tuple[Path, ...],
    pipelines_of: str | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    end_with_input: bool,
    output: str,
) -> None:
    """Serve web pages that show what is blocked, who holds it, and what to do.

    By default the console listens on this machine only, and every local user can view it. The link that it prints signs
    you in. It needs accounts to listen for other machines.
    """
    try:
        from orderlymq_console.app import serve  # noqa: PLC0415 - help and completion cost nothing of it
        from orderlymq_console.settings import (  # noqa: PLC0415 - the same
            ConsoleSettings,
            parse_cluster,
            parse_listen,
            read_accounts,
        )
        from orderlymq_runtime.process import ending, logs  # noqa: PLC0415 - the same
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"the console needs {error.name}; install orderlymq-console"
        ) from error

    host, port = parse_listen(listen)
    settings = ConsoleSettings(
        name_servers=name_server,
        host=host,
        port=port,
        hosts=hosts,
        https_hosts=https_hosts,
        accounts=() if accounts is None else read_accounts(accounts),
        read_only=read_only,
        certificate=tls_certificate,
        key=tls_key,
        pipelines=pipelines,
        pipelines_of=None if pipelines_of is None else parse_cluster(pipelines_of),
    )
    started = _started_json if output == "json" else _started
    parent = sys.stdin.buffer if end_with_input else None
    # The audit log may be standard error, too, so nothing else may write lines that look like audit lines.
    logs.configure("WARNING", "text", "console")
    ending.run(serve(settings, started, audit_log or sys.stderr, parent))


def _started(running: "Console") -> None:
    if running.local is None:
        click.echo(
            f"The console is at {running.url}; sign in with a token of the accounts. Ctrl-C stops it."
        )
        return
    click.echo(f"The console is at {running.url}. Ctrl-C stops it.")
    click.echo(f"Sign in to change something: {running.url}/sign-in?token={running.local.token}")


def _started_json(running: "Console") -> None:
    sign_in = (
        None if running.local is None else f"{running.url}/sign-in?token={running.local.token}"
    )
    print_json_line({"url": running.url, "signIn": sign_in})
