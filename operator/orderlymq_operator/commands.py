"""
The commands `orderlymq up`, `down`, `plan`, `apply` and `demo`.

Exit codes: 0 done, 1 failed, 2 wrong usage or manifests, 3 refused (nothing was changed), 4 no answer, 130
interrupted. Of `plan`: 0 nothing to do, 3 something is refused or not confirmed, 6 something will happen. With
`--output json`, or `--json`, the result or the error is one JSON object on standard output. `local` and `demo` do the
work; this module parses the options and shows the result.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, ParamSpec, TypeAlias

import click

from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.session import (
    CommandFailed,
    Span,
    Told,
    print_json,
    print_outcome,
    reporting_as,
)
from orderlymq.connection.administrator import DATA_DIRECTORY, DATA_DIRECTORY_VARIABLE
from orderlymq_operator.demo.options import DemoOptions
from orderlymq_operator.demo.run import run_demo
from orderlymq_operator.local import session
from orderlymq_operator.local.console import console_beside, is_installed
from orderlymq_operator.local.control import ControlClient
from orderlymq_operator.local.directory import DataDirectory
from orderlymq_operator.local.errors import (
    BusyError,
    FailedError,
    InterruptedWaitError,
    LocalError,
    RefusedError,
    UnreachableError,
    in_words,
)
from orderlymq_operator.local.progress import Progress, last_event, refused, summary
from orderlymq_operator.local.restoration import BackupSource
from orderlymq_operator.local.supervisor import BESIDE_S, CLOSE_MAX_S, Supervisor
from orderlymq_operator.plan.forecast.effects import Forecast
from orderlymq_operator.plan.forecast.report import report_of, text_of
from orderlymq_operator.resources.manifests.combination import OtherClusterError
from orderlymq_operator.resources.manifests.problems import ManifestError
from orderlymq_operator.resources.manifests.reader import Manifest, read, read_with_texts
from orderlymq_runtime.process import loop

Output: TypeAlias = Literal["text", "json"]
P = ParamSpec("P")

EXIT_REFUSED: Final = 3
EXIT_CHANGES: Final = (
    6  # other tools use 2, which is wrong usage here; 5 is an unknown outcome of a send
)

_POLL_S: Final = 0.1

_data_dir = click.option(
    "--data-dir",
    envvar=DATA_DIRECTORY_VARIABLE,
    show_envvar=True,
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(DATA_DIRECTORY),
    show_default=True,
    help="Directory with the cluster's data, logs and settings.",
)
_timeout = click.option(
    "--timeout",
    "timeout_s",
    type=Span(1),
    default="60s",
    show_default=True,
    help="How long to wait until every change has taken effect.",
)
_prune = click.option(
    "--prune",
    is_flag=True,
    help="Remove topics, consumer groups and users that the files do not mention.",
)


def _files(*, required: bool) -> Callable[[Callable[P, None]], Callable[P, None]]:
    return click.option(
        "-f",
        "--file",
        "files",
        type=click.Path(path_type=Path, dir_okay=False),
        multiple=True,
        required=required,
        help="YAML file with manifests; may be given several times.",
    )


def _reporting(command: Callable[P, None]) -> Callable[P, None]:
    """Give a command `--output` and `--json`, and turn its errors into one message and an exit code."""
    return reporting_as(command, (LocalError, ManifestError, CommandFailed, OSError), _told)


def _told(error: Exception) -> Told:
    if isinstance(error, CommandFailed):
        return error, error.code, error.docs
    if isinstance(error, OSError):
        error = FailedError(in_words(error))
    return error, next(code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), ""


# The first kind that matches the error decides.
_EXIT_CODES: Final[Mapping[type[Exception], int]] = {
    RefusedError: EXIT_REFUSED,
    OtherClusterError: EXIT_REFUSED,
    ManifestError: ExitCode.USAGE,
    UnreachableError: ExitCode.UNREACHABLE,
    InterruptedWaitError: ExitCode.INTERRUPTED,
    Exception: ExitCode.FAILED,
}


@click.command()
@_files(required=False)
@_data_dir
@click.option(
    "--detach", is_flag=True, help="Return when the cluster is ready; the cluster keeps running."
)
@click.option(
    "--demo", "with_demo", is_flag=True, help="Run the order demo when the cluster is ready."
)
@click.option("--console", "with_console", is_flag=True, help="Serve the console, too.")
@click.option(
    "--from-backup",
    "source",
    metavar="PLACE[@ID]",
    help="Start from a backup in a folder or s3://BUCKET/PREFIX: the newest, or the one with this id.",
)
@_timeout
@_reporting
def up(
    files: Sequence[Path],
    data_dir: Path,
    detach: bool,
    with_demo: bool,
    with_console: bool,
    source: str | None,
    timeout_s: float,
    output: Output,
) -> None:
    """Start the cluster that manifests describe, on this machine.

    Without --file, the cluster of the data directory starts again unchanged. It runs until Ctrl-C, or with
    --detach until `orderlymq down`.
    """
    given = click.get_current_context().get_parameter_source("timeout_s")
    if given is not click.core.ParameterSource.DEFAULT and not detach:
        raise click.UsageError(
            "--timeout needs --detach; without --detach the command waits as long as it takes"
        )
    if with_console and detach:
        raise click.UsageError(
            "--console does not work with --detach, because the console ends with this command; run `orderlymq console`"
        )
    if with_console and not is_installed():
        raise click.UsageError("--console needs the package orderlymq-console; install it")
    directory = DataDirectory(data_dir)
    manifests = read(files)
    backup = None if source is None else BackupSource.parse(source)
    if detach:
        _detach(directory, manifests, backup, timeout_s, output)
        if with_demo:
            raise click.exceptions.Exit(loop.run(_play_alone(directory, DemoOptions(), output)))
        return
    with session.prepared(directory, manifests, backup) as state:
        supervisor = Supervisor(directory, state)
        code = loop.run(
            _stay_up(
                supervisor,
                directory,
                with_demo=with_demo,
                with_console=with_console,
                output=output,
            ),
            close_max_s=CLOSE_MAX_S,
        )
    raise click.exceptions.Exit(code)


def _detach(
    directory: DataDirectory,
    manifests: Sequence[Manifest],
    source: BackupSource | None,
    timeout_s: float,
    output: Output,
) -> None:
    """Start a supervisor process and wait until everything is effective."""
    with session.prepared(directory, manifests, source):
        process = session.spawn(directory)  # all checks have passed
    begun_s = time.monotonic()
    with _going_on(
        f"the cluster of {directory} continues to start (process {process.pid}); `orderlymq down` stops it"
    ):
        session.wait_for_contact(directory, process, timeout_s)
        settled = _wait_until_settled(directory, timeout_s, output, begun_s=begun_s)
    print_outcome(output, settled, summary(settled))


@contextlib.contextmanager
def _going_on(what: str) -> Iterator[None]:
    """Say that *what* continues if the user interrupts a command that only waits.

    Raises:
        InterruptedWaitError: for Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedWaitError(f"interrupted; {what}") from None


async def _stay_up(
    supervisor: Supervisor,
    directory: DataDirectory,
    *,
    with_demo: bool,
    with_console: bool,
    output: Output,
) -> int:
    """Supervise in the foreground; return the exit code.

    Raises:
        LocalError: the demo or the console failed; the cluster is stopped then.
    """
    work = asyncio.create_task(session.supervise(supervisor, directory), name="supervise")
    shows = asyncio.create_task(
        _accompany(
            supervisor, directory, with_demo=with_demo, with_console=with_console, output=output
        ),
        name="accompany",
    )
    try:
        await asyncio.wait({work, shows}, return_when=asyncio.FIRST_COMPLETED)
        if shows.done() and shows.exception() is None and shows.result() == 0:
            await asyncio.wait({work})  # nothing more to show; a failure would stop the cluster
    finally:
        # End the demo's processes first: otherwise they report errors about a cluster that is ending.
        shows.cancel()
        await asyncio.wait({shows}, timeout=BESIDE_S)
        if not supervisor.stop_requested.is_set():
            work.cancel()  # there is no time to finish the running action
        await asyncio.wait({work, shows})
        if not work.cancelled():
            work.result()
    return 0 if shows.cancelled() else shows.result()


async def _accompany(
    supervisor: Supervisor,
    directory: DataDirectory,
    *,
    with_demo: bool,
    with_console: bool,
    output: Output,
) -> int:
    """Show the start, run the demo, then show events; return the exit code of the demo."""
    with Progress(quiet=output == "json") as progress:
        while not supervisor.settled:
            progress.show(supervisor.snapshot())
            await asyncio.sleep(_POLL_S)
        progress.show(supervisor.snapshot())
    snapshot = supervisor.snapshot()
    print_outcome(output, snapshot, summary(snapshot))
    if supervisor.desired.cluster.spec.canary.enabled and output == "text":
        click.echo("spec.canary is for Kubernetes; here, run `orderlymq canary`.")
    async with contextlib.AsyncExitStack() as beside:
        if with_console:
            servers = [each["address"] for each in supervisor.snapshot()["nameServers"]]
            await beside.enter_async_context(console_beside(directory, servers))
        if with_demo:
            code = await _play(directory, DemoOptions(), output)
            if code != 0:
                return code
        if output == "text":
            click.echo("The cluster stays up; Ctrl-C stops it.")
            await _follow(supervisor)
        elif with_console:
            await asyncio.Event().wait()
    return 0


async def _follow(supervisor: Supervisor) -> None:
    """Print the events from now on."""
    # Read the events directly: a snapshot contains every resource.
    seen = max((event.number for event in supervisor.events), default=0)
    while True:
        for event in supervisor.events:
            if event.number > seen:
                seen = event.number
                click.echo(f"  {event.text}")
        await asyncio.sleep(_POLL_S)


@click.command()
@_data_dir
@_reporting
def down(data_dir: Path, output: Output) -> None:
    """Stop the cluster of a data directory; its data is kept."""
    directory = DataDirectory(data_dir)
    ended = session.stop(directory)
    if output == "json":
        print_json(ended)
    elif ended["supervisor"] or ended["orphans"]:
        click.echo(f"Stopped. The data stays in {directory}; `orderlymq up` continues with it.")
    elif directory.is_ours():
        click.echo(f"Nothing runs on {directory}.")
    else:
        click.echo(f"{directory} has no cluster of `orderlymq up`; nothing was touched.")


@click.command()
@_files(required=True)
@_data_dir
@_prune
@_timeout
@_reporting
def apply(
    files: Sequence[Path],
    data_dir: Path,
    prune: bool,
    timeout_s: float,
    output: Output,
) -> None:
    """Change a running cluster to match manifests; either every change is accepted or none."""
    texts = read_with_texts(files)[1]
    directory = DataDirectory(data_dir)
    client = ControlClient(directory)
    before = last_event(client.status())
    with _going_on("the change may still happen; `orderlymq plan` shows what is left"):
        steps = client.apply(texts, prune=prune)
    with _going_on("the change is accepted, and the supervisor continues to apply it"):
        settled = _wait_until_settled(directory, timeout_s, output, after=before)
    text = "Applied." if steps else "Nothing to change."
    sentence = "\n".join([text, *refused(settled)])
    print_outcome(output, {"applied": True, "actions": steps}, sentence)


@click.command()
@_files(required=True)
@_data_dir
@_prune
@click.option("--kubernetes", is_flag=True, help="Plan for the Kubernetes cluster of KUBECONFIG.")
@click.option("--context", help="Context of KUBECONFIG; default: the current one.")
@click.option("-n", "--namespace", help="Namespace of the manifests that do not name one.")
@_reporting
def plan(
    files: Sequence[Path],
    data_dir: Path,
    prune: bool,
    kubernetes: bool,
    context: str | None,
    namespace: str | None,
    output: Output,
) -> None:
    """Show what applying manifests would do, without doing it.

    For each resource it shows what restarts, what moves, how long writes pause, what is deleted, and what is refused.
    Exit code 0: nothing to do; 6: something would change; 3: something is refused or not confirmed.
    """
    if not kubernetes and (context is not None or namespace is not None):
        raise click.UsageError("--context and --namespace need --kubernetes")
    if kubernetes and prune:
        raise click.UsageError(
            "--prune is only for clusters of this machine; on Kubernetes, delete resources with kubectl"
        )
    if kubernetes:
        report = report_of(_forecast_in_kubernetes(files, context, namespace))
    else:
        report = ControlClient(DataDirectory(data_dir)).plan(read_with_texts(files)[1], prune=prune)
    print_outcome(output, report, text_of(report))
    refused = report["refusals"] or report["confirmations"]
    raise click.exceptions.Exit(
        EXIT_REFUSED if refused else EXIT_CHANGES if report["changes"] else 0
    )


def _forecast_in_kubernetes(
    files: Sequence[Path], context: str | None, namespace: str | None
) -> Forecast:
    """Forecast from the answers of the API server of KUBECONFIG; the packages of its client are optional."""
    try:
        from orderlymq_operator.kube.errors import ApiError  # noqa: PLC0415
        from orderlymq_operator.kube.forecast.reader import forecast_files  # noqa: PLC0415
    except ImportError as error:
        text = (
            f"--kubernetes needs more packages ({error}); install orderlymq-operator, "
            "or in a checkout: pip install '.[kubernetes]'"
        )
        raise FailedError(text) from error
    try:
        return asyncio.run(forecast_files(read(files), namespace=namespace, context=context))
    except (ApiError, OSError) as error:
        raise UnreachableError(f"the API server cannot be read: {error}") from error


@click.group(context_settings={"default_map": {"plan": {"kubernetes": True}}})
def kubectl_plugin() -> None:
    """Inspect OrderlyMQ on Kubernetes."""


kubectl_plugin.add_command(plan)


def kubectl() -> None:
    """Run `kubectl orderlymq`; the entry point of the `kubectl-orderlymq` script."""
    kubectl_plugin.main(prog_name="kubectl orderlymq")


@click.command()
@_data_dir
@click.option(
    "--seconds",
    type=Span(3, 3600),
    default="12s",
    show_default=True,
    help="How long to run the demo.",
)
@click.option("--no-kill", is_flag=True, help="Do not kill the leader.")
@click.option("--topic", default="orders", show_default=True)
@click.option("--group", default="billing", show_default=True)
@_reporting
def demo(
    data_dir: Path, seconds: float, no_kill: bool, topic: str, group: str, output: Output
) -> None:
    """Send the steps of many orders to the running cluster, kill the leader, and check the order."""
    options = DemoOptions(seconds=seconds, kill=not no_kill, topic=topic, group=group)
    raise click.exceptions.Exit(loop.run(_play_alone(DataDirectory(data_dir), options, output)))


async def _play_alone(directory: DataDirectory, options: DemoOptions, output: Output) -> int:
    """Run the demo as `_play` does; a signal lets its processes end first."""
    try:
        return await _play(directory, options, output)
    except asyncio.CancelledError:
        return ExitCode.INTERRUPTED


async def _play(directory: DataDirectory, options: DemoOptions, output: Output) -> int:
    result = await run_demo(directory, options, quiet=output == "json")
    if output == "json":
        print_json(result.to_json())
    return 0 if result.kept else ExitCode.FAILED


def _wait_until_settled(
    directory: DataDirectory,
    timeout_s: float,
    output: Output,
    *,
    after: int = 0,
    begun_s: float | None = None,
) -> dict[str, Any]:
    """Show progress until everything is effective; return the last snapshot.

    The time-out runs from now, or from *begun_s* of the monotonic clock.
    """
    client = ControlClient(directory)
    deadline = (time.monotonic() if begun_s is None else begun_s) + timeout_s
    with Progress(quiet=output == "json", after=after) as progress:
        while True:
            try:
                snapshot = client.status()
            except BusyError:
                if time.monotonic() > deadline:
                    raise
                continue
            progress.show(snapshot)
            if snapshot["settled"]:
                return snapshot
            if time.monotonic() > deadline:
                raise FailedError(_unsettled(snapshot, directory, timeout_s))
            time.sleep(_POLL_S)


def _unsettled(snapshot: dict[str, Any], directory: DataDirectory, timeout_s: float) -> str:
    waiting = [
        f"{item['kind']} {item['name']}: {item['message']}"
        for item in snapshot["resources"]
        if item["ready"] != "True"
    ]
    reason = snapshot["problem"] or "; ".join(waiting) or "the supervisor has not checked yet"
    return (
        f"not everything is effective after {timeout_s:g} s ({reason}); the supervisor keeps trying, its logs are in "
        f"{directory.path / 'logs'}"
    )
