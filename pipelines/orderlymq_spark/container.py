"""
The entry point of the Spark image: the argument `executor` starts an executor, `driver` starts a driver.

Spark creates the pods of its executors and gives them the argument `executor` and environment variables. An operator
for SparkApplications creates a pod with the argument `driver`. `python -m orderlymq_spark.container executor` replaces
itself with the executor's process, so that signals reach it.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_EXECUTOR: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION: Final = "SPARK_JAVA_OPT_"


def main(arguments: Sequence[str] | None = None) -> int:
    """Replace this process with the program that the first argument names; return 2 if the argument is unknown."""
    match list(sys.argv[1:] if arguments is None else arguments):
        case ["executor", *_]:
            command = executor_command(os.environ, spark_home())
        case ["driver", *further]:
            command = driver_command(os.environ, spark_home(), further)
        case _:
            command = []
    if command:
        os.environ.setdefault("SPARK_HOME", str(spark_home()))
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.execvp(command[0], command)  # noqa: S606 - Spark's own variables are what it is made of
    sys.stderr.write("the first argument must be executor or driver, as Spark passes it\n")
    return 2


def spark_home() -> Path:
    """Return the folder of the installed pyspark, which contains a complete Spark."""
    import pyspark  # noqa: PLC0415 - takes a second; importers of this module need not have it

    assert pyspark.__file__ is not None
    return Path(pyspark.__file__).parent


def executor_command(environment: Mapping[str, str], home: Path) -> list[str]:
    """Return the command of an executor, built from the variables that Spark sets in its pod."""
    numbered = {
        int(name.removeprefix(_OPTION)): value
        for name, value in environment.items()
        if name.startswith(_OPTION) and name.removeprefix(_OPTION).isdigit()
    }
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    extra = environment.get("SPARK_EXTRA_CLASSPATH")
    path = [*([extra] if extra else []), environment.get("SPARK_CONF_DIR") or f"{home}/conf"]
    return [
        "java",
        *(numbered[number] for number in sorted(numbered)),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        *("-cp", ":".join([*path, f"{home}/jars/*"])),
        _EXECUTOR,
        *("--driver-url", environment["SPARK_DRIVER_URL"]),
        *("--executor-id", environment["SPARK_EXECUTOR_ID"]),
        *("--cores", environment["SPARK_EXECUTOR_CORES"]),
        *("--app-id", environment["SPARK_APPLICATION_ID"]),
        *("--hostname", environment["SPARK_EXECUTOR_POD_IP"]),
        *("--resourceProfileId", environment.get("SPARK_RESOURCE_PROFILE_ID", "0")),
        *("--podName", environment["SPARK_EXECUTOR_POD_NAME"]),
    ]


def driver_command(
    environment: Mapping[str, str], home: Path, arguments: Sequence[str]
) -> list[str]:
    """Return the command of a driver in a pod that another spark-submit has created."""
    address = environment.get("SPARK_DRIVER_BIND_ADDRESS", "0.0.0.0")  # noqa: S104 - it is a pod
    bound = ("--conf", f"spark.driver.bindAddress={address}")
    return [f"{home}/bin/spark-submit", *bound, "--deploy-mode", "client", *arguments]


if __name__ == "__main__":
    sys.exit(main())
