"""The parts of a forecast: for each resource the effects of a change, in the order in which they begin."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from orderlymq_operator.plan.actions import Action, Refuse, Subject

EffectKind: TypeAlias = Literal[
    "Creates",
    "Changes",
    "Adds",
    "Removes",
    "Restarts",
    "MovesLeadership",
    "MovesKeys",
    "PausesWrites",
    "DeletesData",
    "Waits",
    "NeedsConfirmation",
]
# Effects that a reader must not miss; `orderlymq plan` marks them.
SERIOUS: Final[frozenset[EffectKind]] = frozenset(
    {"MovesKeys", "PausesWrites", "DeletesData", "NeedsConfirmation"}
)


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that will happen to a resource.

    Attributes:
        text: a sentence for people.
        targets: what it affects, in order: replicas as `demo-0/1`, raft groups, queue lists, volumes.
    """

    kind: EffectKind
    text: str
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceForecast:
    """Effects on one resource; empty if nothing changes, and then *note* may say why."""

    subject: Subject
    effects: tuple[Effect, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of a change.

    Attributes:
        steps: what the planner will ask for, in order; steps of different raft groups and topics overlap.
        refusals: what is not allowed; if the whole change is refused, there are no steps.
        complete: whether the forecast reaches the end of the change.
    """

    resources: tuple[ResourceForecast, ...] = ()
    steps: tuple[Action, ...] = ()
    refusals: tuple[Refuse, ...] = ()
    complete: bool = True

    @property
    def effects(self) -> tuple[Effect, ...]:
        """All effects of all resources."""
        return tuple(effect for resource in self.resources for effect in resource.effects)

    def targets(self, kind: EffectKind) -> tuple[str, ...]:
        """Return the targets of all effects of *kind*, over all resources."""
        return tuple(
            target for effect in self.effects if effect.kind == kind for target in effect.targets
        )
