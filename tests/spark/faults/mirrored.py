"""
A mirror that is killed: it runs MANIFEST with few messages at a time, so that kills hit it at work.

`python -m tests.spark.faults.mirrored MANIFEST`
"""

import sys
from typing import Final

from orderlymq_spark import driver
from orderlymq_spark.cluster import access

_MESSAGES: Final = 5

if __name__ == "__main__":
    access.PULL_COUNT_MAX = _MESSAGES  # type: ignore[misc]  # of this process alone
    sys.exit(driver.main(["--manifest", sys.argv[1]]))
