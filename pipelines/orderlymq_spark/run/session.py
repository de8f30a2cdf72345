"""
A Spark session for pipelines: small by default, in this process, with the settings that our sources need.

Rule: our settings apply only where nothing else set a value: arguments, `--conf`, spark-defaults.conf, a running
session.
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
    # Names and offsets are compared as texts. If Spark re-partitions a plan by itself, the order is lost.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    FILTER_PUSHDOWN: "true",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.stopTimeout": "60s",
    # On a busy machine Python may start more slowly than Spark's 15 s, and the query would fail.
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
    """Start Spark, or return the running session, with our sources registered.

    Args:
        name: of the application.
        master: where Spark runs: local[N], local-cluster[N,cores,MiB], k8s://..., sc://host:15002 (Spark Connect);
            empty if spark-submit sets it.
        memory: of the driver, which does all the work in local mode.
        settings: further Spark settings; they override all others.
    """
    if master.startswith(CONNECT):
        return _connect(name, master, settings or {})
    # Workers must use this Python, because another `python3` on the path may lack our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf(loadDefaults=False).setAppName(name)
    ours = dict(_SETTINGS)
    if master:
        conf.setMaster(master).set("spark.driver.memory", memory)
    if master.startswith("local"):
        ours |= _LOCAL
    conf.setAll(list((settings or {}).items()))
    # Settings from other places are visible only after the JVM has started, and it starts with this configuration.
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
    """Return a session of a Spark Connect server, which must have our package and its own non-SQL settings."""
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
