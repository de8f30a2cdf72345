"""
Drivers, executors and workers killed where it matters: the archive, the audit and the copy are as if nobody had been.

Set ORDERLYMQ_KILLS to kill more often than the few times that a usual test run can afford; `kills` is the program for
hundreds, with a line for each.
"""

import os
from pathlib import Path

import pytest

from tests.spark.faults.kills import MASTERS, Campaign
from tests.spark.topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("ORDERLYMQ_KILLS", "4"))


@pytest.mark.parametrize("master", MASTERS)
def test_kills_neither_lose_nor_repeat_nor_change_anything(
    topics: Topics, tmp_path: Path, master: str
) -> None:
    """Every offset once in the archive, no published file changed, no message twice in the copy, no false finding."""
    campaign = Campaign(topics, tmp_path, masters=[master])
    try:
        while campaign.kills < KILLS:
            campaign.live()
        campaign.close()
    finally:
        campaign.stop()

    assert campaign.faults == [], campaign.log.read_text()[-3000:]
