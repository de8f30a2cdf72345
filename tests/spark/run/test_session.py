"""The sources of a session's settings: ours count only where nobody else has set a value."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.spark.faults.kills import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_TIMEOUT: Final = "spark.python.authenticate.socketTimeout"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_ZONE: Final = "spark.sql.session.timeZone"
_ASKED: Final = (_TIMEOUT, _PARTITIONS, _ZONE, "spark.sql.streaming.stopTimeout")
_PROGRAM: Final = f"""
import json
from pyspark.sql import SparkSession
from orderlymq_spark.run.session import start_session

def told(session):
    print(json.dumps([session.conf.get(name) for name in {_ASKED}]))

session = start_session("first", master="local[1]", memory="500m", settings={{"{_TIMEOUT}": "88s"}})
told(session)
session.stop()
session = start_session("second", master="local[1]", memory="500m")
session.conf.set("{_PARTITIONS}", "11")
told(start_session("third", master="local[1]"))
"""


def test_what_a_user_has_set_is_not_overridden(tmp_path: Path) -> None:
    """`--conf`, spark-defaults.conf and a running session beat our settings; an argument beats them all."""
    (tmp_path / "spark-defaults.conf").write_text("spark.sql.streaming.stopTimeout 7s\n")
    given = f"--conf {_TIMEOUT}=77s --conf {_PARTITIONS}=9 pyspark-shell"
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": given, "SPARK_CONF_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr[-4000:]
    first, third = map(json.loads, run.stdout.splitlines())
    assert first == ["88s", "9", "UTC", "7s"]
    assert third == ["77s", "11", "UTC", "7s"]
