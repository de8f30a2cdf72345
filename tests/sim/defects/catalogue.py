"""All planted defects."""

from typing import Final

from tests.sim.defects.broker import PROCESSORS, STATE
from tests.sim.defects.client import CONSUMER, PRODUCER
from tests.sim.defects.defect import Defect
from tests.sim.defects.lanes import LANES
from tests.sim.defects.raft import LOOP, RAFT
from tests.sim.defects.services import DISKS, NAMES, SERVICES

DEFECTS: Final[tuple[Defect, ...]] = tuple(
    defect
    for catalogue in (
        *(RAFT, LOOP, STATE, PROCESSORS, SERVICES, LANES),
        *(DISKS, NAMES, CONSUMER, PRODUCER),
    )
    for defect in catalogue.defects
)
