"""
Drivers, executors and workers are killed at critical places: archive, audit and copy are as without kills.

Set ORDERLYMQ_KILLS to kill more often than the few times that a usual test run can afford; `kills` is the program for
hundreds of kills, and prints a line for each.
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
    """Every offset is once in the archive, no published file changes, the copy has no message twice, no finding is false."""
    campaign = Campaign(topics, tmp_path, masters=[master])
    try:
        while campaign.kills < KILLS:
            campaign.live()
        campaign.close()
    finally:
        campaign.stop()

    assert campaign.faults == [], campaign.log.read_text()[-3000:]
