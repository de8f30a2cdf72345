"""
One reason that a condition may give, and the kinds whose conditions give reasons.

Rule: no other reason is written than those of `table`, and a reason goes when its cause goes.
"""

from dataclasses import dataclass
from typing import Final

CLUSTER: Final = "Cluster"
TOPIC: Final = "Topic"
CONSUMER_GROUP: Final = "ConsumerGroup"
USER: Final = "User"
PIPELINE: Final = "Pipeline"
BACKUP: Final = "Backup"
SCHEDULED_BACKUP: Final = "ScheduledBackup"

READY: Final = ("Ready",)


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason.

    Attributes:
        kinds: of objects whose conditions give it.
        conditions: types of the conditions that give it.
        status: the status that such a condition has.
        meaning: what the reason says of the object.
        cure: what a person can do; empty when there is nothing to do.
    """

    name: str
    kinds: tuple[str, ...]
    conditions: tuple[str, ...]
    status: str
    meaning: str
    cure: str = ""
