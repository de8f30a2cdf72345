"""How a run of a pipeline ended, and how it starts Spark."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SparkStarter: TypeAlias = "Callable[[], SparkSession]"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        text: for people.
        data: the same for programs.
        passed: false makes the command end with 1: an audit that found something.
    """

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    passed: bool = True
