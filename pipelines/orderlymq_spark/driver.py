"""
`python -m orderlymq_spark.driver`: the driver of a pipeline in a pod; it reports its state, and how it ended.

Rules: it has no rights in the API server and needs none. While it lives the operator asks `/status`; what it has to say
at its end goes into the termination message, which Kubernetes keeps with the pod. Exit codes: 0 done, 1 failed or stopped (try
again), 2 the manifest cannot be used, 3 an audit has found something; the last two would only be repeated.
"""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orderlymq.errors import OrderlyMQError, SettingError
from orderlymq_spark.jobs.catalogue import CATALOGUE, run
from orderlymq_spark.run.report import DriverReport, serve
from orderlymq_spark.specs import Pipeline, SparkSettings, parse_pipeline, read_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DONE: Final = 0
FAILED: Final = 1
UNUSABLE: Final = 2
FOUND: Final = 3
# Executors connect to these two ports. Any numbers would work, but a NetworkPolicy needs fixed ones.
_DRIVER_PORT: Final = "7078"
_BLOCK_PORT: Final = "7079"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a pipeline until it ends; return the exit code."""
    given = _parse(sys.argv[1:] if arguments is None else arguments)
    if given.directory is not None:
        os.chdir(given.directory)
    report = DriverReport()
    server = serve(report, given.http_port)
    code = _run(given, report)
    if given.termination_log is not None:
        report.write_end(given.termination_log)
    server.shutdown()
    server.server_close()
    return code


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="orderlymq_spark.driver", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--manifest", type=Path, help="file that contains the manifest")
    source.add_argument("--manifest-json", help="the manifest itself, as JSON")
    parser.add_argument("--http-port", type=int, default=0, help="of /healthz, /readyz, /status")
    parser.add_argument(
        "--termination-log", type=Path, help="file to which the last report is written"
    )
    parser.add_argument("--directory", type=Path, help="folder that relative paths start from")
    return parser.parse_args(arguments)


def _run(given: argparse.Namespace, report: DriverReport) -> int:
    try:
        found = (
            read_pipeline(given.manifest)
            if given.manifest is not None
            else parse_pipeline(json.loads(given.manifest_json), "--manifest-json")
        )
        report.begin(found)
        report.ready = not CATALOGUE[found.spec.type].begins_with_spark
        outcome = run(found, lambda: _session(found, report))
    except SettingError as error:
        return _failed(report, error, UNUSABLE)
    except (OrderlyMQError, OSError, ValueError) as error:
        return _failed(report, error, FAILED)
    except KeyboardInterrupt:
        return _failed(report, OrderlyMQError("stopped by a signal; run it again"), FAILED)
    except Exception as error:
        # Spark raises many kinds of errors; the log needs the full traceback.
        traceback.print_exc()
        return _failed(report, error, FAILED)
    report.end(outcome)
    sys.stdout.write(outcome.text + "\n")
    return DONE if outcome.passed else FOUND


def _failed(report: DriverReport, error: Exception, code: int) -> int:
    report.fail(str(error) or repr(error))
    sys.stderr.write(f"Error: {error}\n")
    return code


def _session(found: Pipeline, report: DriverReport) -> "SparkSession":
    from orderlymq_spark.run.session import start_session  # noqa: PLC0415 - imports pyspark, which takes seconds

    wanted = found.spec.spark
    settings = {**in_pod(wanted), **wanted.settings}
    session = start_session(
        found.name, master=wanted.master, memory=wanted.memory, settings=settings
    )
    report.ready = True
    return session


def in_pod(wanted: SparkSettings) -> dict[str, str]:
    """Return the settings by which executors in their own pods reach this pod; empty if the master is not Kubernetes."""
    if not wanted.master.startswith("k8s://"):
        return {}
    address = os.environ["POD_IP"]
    return {
        # Spark appends a port, so an IPv6 address needs brackets.
        "spark.driver.host": f"[{address}]" if ":" in address else address,
        # Executors connect to it (spark.kubernetes.executor.useDriverPodIP), so only this pod may have this address.
        "spark.driver.bindAddress": address,
        "spark.driver.port": _DRIVER_PORT,
        "spark.driver.blockManager.port": _BLOCK_PORT,
        # This pod owns the executors' pods, so they are deleted with it.
        "spark.kubernetes.driver.pod.name": os.environ["POD_NAME"],
    }


if __name__ == "__main__":
    sys.exit(main())
