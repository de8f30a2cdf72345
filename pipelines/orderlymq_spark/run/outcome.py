"""The outcome of a pipeline's run, and the type of the function that starts Spark."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SparkStarter: TypeAlias = "Callable[[], SparkSession]"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        text: for people.
        data: the same for programs.
        passed: false makes the command exit with 1: an audit found something.
    """

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    passed: bool = True
