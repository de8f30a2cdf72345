"""
One reason that a condition may give, and the kinds whose conditions give reasons.

Rule: the code writes only reasons of `table`, and a reason is removed with its cause.
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
        kinds: kinds of the objects whose conditions give it.
        conditions: types of the conditions that give it.
        status: the status of such a condition.
        meaning: what the reason says about the object.
        cure: what a person can do; empty if there is nothing to do.
    """

    name: str
    kinds: tuple[str, ...]
    conditions: tuple[str, ...]
    status: str
    meaning: str
    cure: str = ""
