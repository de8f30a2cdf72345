"""What a run says in the end, and what it takes for a finding."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.hostile.assault import Assault
from tests.hostile.findings import Findings
from tests.hostile.target import Stalls


class Watched:
    """A group that is looked at and never asked: one that loses its leader once."""

    guarded = False

    def __init__(self, wall: int) -> None:
        self.looks = 0
        self.walls = [wall, 0]
        self.group: Any = SimpleNamespace(wait_for_leader=lambda: 1)

    def leadership(self) -> tuple[int, int]:
        self.looks += 1
        return (1, 7) if self.looks == 1 else (2, 8)

    def stalls(self) -> dict[str, Stalls]:
        return {"broker 1": Stalls(wall=self.walls.pop() if len(self.walls) > 1 else self.walls[0])}

    def dead(self) -> list[str]:
        return []

    def memory(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(("wall", "found"), [(0, 1), (1, 0)])
def test_a_change_of_leader_is_a_finding_unless_the_machine_stood_still(
    wall: int, found: int
) -> None:
    """Law: the run for the record has none; one that its cases do not bring about again counts, too."""
    findings = Findings(lambda _: None)
    assault = Assault(Watched(wall), 1, findings, servers=())  # type: ignore[arg-type]

    assault._look(())

    assert len(findings) == found
    assert "0 ends, 1 changes of leader, 0 stalls with CPU time, the worst below 0" in assault.told
