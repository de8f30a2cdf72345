"""
A Spark session for pipelines: small by default, in this process, with the settings our sources need.

Rule: our settings stand in only for what nobody else has set: an argument, `--conf`, spark-defaults.conf, a session that runs.
"""

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from orderlymq_spark.frames import FILTER_PUSHDOWN, register
from orderlymq_spark.tables.archive import ArchiveDataSource

_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Names and offsets are compared as texts; a plan that Spark re-partitions by itself loses the order.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    FILTER_PUSHDOWN: "true",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.stopTimeout": "60s",
    # A Python that starts on a busy machine takes longer than Spark's 15 s, and the query would end for it.
    "spark.python.authenticate.socketTimeout": "60s",
}
_LOCAL: Final = dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), "127.0.0.1")
CONNECT: Final = "sc://"
_STATIC: Final = ("spark.sql.streaming.stopTimeout",)  # read when the server starts


def start_session(
    name: str,
    *,
    master: str = "local[*]",
    memory: str = "1g",
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """Start Spark, or return the one that runs, with our sources registered.

    Args:
        name: of the application.
        master: where Spark runs: local[N], local-cluster[N,cores,MiB], k8s://..., sc://host:15002 (Spark Connect);
            empty where spark-submit has said so.
        memory: of the driver, which does all the work in local mode.
        settings: more of Spark's own; they win over all others.
    """
    if master.startswith(CONNECT):
        return _connect(name, master, settings or {})
    # Workers must be this Python: whatever `python3` is on the path may not have our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf(loadDefaults=False).setAppName(name)
    ours = dict(_SETTINGS)
    if master:
        conf.setMaster(master).set("spark.driver.memory", memory)
    if master.startswith("local"):
        ours |= _LOCAL
    conf.setAll(list((settings or {}).items()))
    # Spark knows what it was given by others once its JVM runs, which is started with what is given here.
    SparkContext._ensure_initialized(conf=conf)
    running = SparkSession.getActiveSession()
    given = SparkConf()
    for key, value in ours.items():
        if not (given.contains(key) or (running is not None and running.conf.get(key, None))):
            conf.setIfMissing(key, value)
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return _with_sources(session)


def _connect(name: str, address: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session of a Spark Connect server, which must have our package and its own settings for all but SQL."""
    builder = SparkSession.builder.remote(address).appName(name)
    of_sql = {key: value for key, value in _SETTINGS.items() if key.startswith("spark.sql.")}
    for key, value in {**of_sql, **settings}.items():
        if key not in _STATIC:
            builder = builder.config(key, value)
    return _with_sources(builder.getOrCreate())


def _with_sources(session: SparkSession) -> SparkSession:
    register(session)
    session.dataSource.register(ArchiveDataSource)
    return session
