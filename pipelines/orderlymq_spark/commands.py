"""
The commands `orderlymq pipeline run`, `explain` and `list`.

The exit codes are those of all commands; 1 also means that an audit found something. Rule: nothing here imports
pyspark before it is needed. If it is missing, the error says in one sentence what to install.
"""

from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

import click

from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.session import CommandFailed, print_outcome, print_rows, reporting
from orderlymq.cli.table import Subcommands
from orderlymq_spark.jobs.catalogue import CATALOGUE, run
from orderlymq_spark.run.outcome import SparkStarter
from orderlymq_spark.specs import Pipeline, read_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEEDED = ("pyspark", "pyarrow", "numpy", "pandas", "deltalake")


@click.group(cls=Subcommands)
def pipeline() -> None:
    """Run data pipelines on Spark: archive, audit, reports, redrive, replay, mirror."""


@pipeline.command("list")
@reporting
def list_pipelines(output: str) -> None:
    """List the types of pipelines and what each one does."""
    data = [
        {"type": name, "about": entry.about, "invariant": entry.invariant}
        for name, entry in CATALOGUE.items()
    ]
    columns = ["TYPE", "WHAT IT DOES", "WHAT ITS TEST PROVES"]
    print_rows(output, data, columns, (list(each.values()) for each in data))


@pipeline.command("run")
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Only read and check the manifest; do not run it.")
@reporting
def run_pipeline(manifest: Path, check: bool, output: str) -> None:
    """Run the pipeline of MANIFEST to its end, or until Ctrl-C.

    The same file works as a Pipeline resource on Kubernetes.
    """
    check_installed()
    found = read_pipeline(manifest)
    if check:
        click.echo(f"{manifest}: the {found.spec.type} pipeline {found.name} is well formed")
        return
    outcome = run(found, _starter(found))
    data = {"pipeline": found.name, "passed": outcome.passed, **outcome.data}
    print_outcome(output, data, outcome.text)
    if not outcome.passed:
        raise click.exceptions.Exit(ExitCode.FAILED)


@pipeline.command("explain")
@click.option(
    "-f",
    "--file",
    "manifest",
    required=True,
    type=click.Path(path_type=Path),
    help="The manifest of the pipeline.",
)
@reporting
def explain_pipeline(manifest: Path, output: str) -> None:
    """Show the plan, the cost and the guarantees of a pipeline, without running it.

    It asks the cluster for the current backlog; the times are estimates from measured rates.
    """
    check_installed()
    from orderlymq_spark.explain.explanation import explain  # noqa: PLC0415 - needs numpy and pyarrow

    found = explain(read_pipeline(manifest))
    print_outcome(output, found.data(), found.text())


def check_installed() -> None:
    """Check that the packages that Spark needs are installed.

    Raises:
        CommandFailed: A package is missing; the text says how to install it.
    """
    absent = [name for name in _NEEDED if find_spec(name) is None]
    if absent:
        raise CommandFailed(
            ExitCode.FAILED,
            f"pipelines need {', '.join(absent)}; install orderlymq-spark, "
            "or in a checkout: pip install '.[spark]'",
        )


def _starter(found: Pipeline) -> SparkStarter:
    def start() -> "SparkSession":
        if which("java") is None:
            raise CommandFailed(
                ExitCode.FAILED,
                "Spark needs Java 17 or newer on the path; on Debian: apt-get install "
                "openjdk-17-jre-headless",
            )
        from orderlymq_spark.run.session import start_session  # noqa: PLC0415 - imports pyspark

        spark = found.spec.spark
        return start_session(
            found.name, master=spark.master, memory=spark.memory, settings=spark.settings
        )

    return start
