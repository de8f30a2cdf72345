"""The mutated modules and their tests: those of the package first, then those that use it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Area:
    """Modules that are judged by the same tests.

    Attributes:
        modules: patterns of files, from the root of the repository.
        tests: files and folders of tests.
        random: those of them that play random histories; they are slow, and run only together with seeds.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    random: tuple[str, ...] = ()

    def paths(self, root: Path) -> list[Path]:
        """Return the modules in the order of their names."""
        return sorted(path for pattern in self.modules for path in root.glob(pattern))


AREAS: Final = (
    Area(
        ("broker/orderlymq_raft/*.py",),
        ("tests/raft",),
        ("tests/raft/rules/test_chaos.py", "tests/raft/rules/test_partitions.py"),
    ),
    Area(
        ("broker/orderlymq_broker/state/lanes/*.py",),
        ("tests/broker/state/lanes", "tests/broker/processors/lanes"),
        ("tests/broker/state/lanes/test_twin.py",),
    ),
    Area(
        ("broker/orderlymq_broker/state/*.py", "broker/orderlymq_broker/state/[!l]*/*.py"),
        (
            "tests/broker/state",
            *(
                f"tests/broker/processors/{name}.py"
                for name in (
                    "groups/test_assignment",
                    "topics/test_expansionrequests",
                    "schedule/test_timers",
                    "transactions/test_halves",
                )
            ),
        ),
        ("tests/broker/state/test_twin.py", "tests/broker/state/lanes/test_twin.py"),
    ),
    # The source of offsets: the messages of an entry, and their layout.
    Area(
        (
            "broker/orderlymq_broker/core/messagedraft.py",
            "broker/orderlymq_broker/core/entrybuilder.py",
            "broker/orderlymq_broker/core/uncommitted.py",
        ),
        (
            "tests/broker/core/test_messagedraft.py",
            "tests/broker/core/test_entrybuilder.py",
            "tests/broker/core/test_sizes.py",
            "tests/broker/core/test_uncommitted.py",
            *(
                f"tests/broker/processors/{name}.py"
                for name in (
                    "schedule/test_delays",
                    "send/test_sends",
                    "send/test_batches",
                    "transactions/test_halves",
                    "schedule/test_timers",
                )
            ),
        ),
    ),
)
