"""Where pods run: affinity and topologySpreadConstraints, with Kubernetes' names and forms."""

from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from orderlymq_operator.resources.meta import Model, Name, rule, rules
from orderlymq_operator.resources.workload import LabelKey, LabelValue

TERMS_MAX: Final = 16
_VALUES_MAX: Final = 64


class SelectorRequirement(Model):
    """A condition on one label."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "(self.operator in ['In', 'NotIn']) == (self.values.size() > 0)",
                "In and NotIn need values; Exists and DoesNotExist must have none",
                field=".values",
            )
        )
    )

    key: LabelKey = Field(description="Key of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        description="How the label is compared with values."
    )
    values: Annotated[list[LabelValue], Field(max_length=_VALUES_MAX)] = Field(
        default=[], description="Values for In and NotIn; empty for the others."
    )

    @model_validator(mode="after")
    def _has_values_where_they_count(self) -> Self:
        _check_values(self.operator in ("In", "NotIn"), self.operator, self.values)
        return self


class NodeRequirement(Model):
    """A condition on one label of nodes."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "(self.operator in ['Exists', 'DoesNotExist']) == (self.values.size() == 0)",
                "In, NotIn, Gt and Lt need values; Exists and DoesNotExist must have none",
                field=".values",
            ),
            rule(
                "!(self.operator in ['Gt', 'Lt']) || "
                "(self.values.size() == 1 && self.values[0].matches('^[0-9]+$'))",
                "Gt and Lt compare with one whole number; write exactly one value",
                field=".values",
            ),
        )
    )

    key: LabelKey = Field(description="Key of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(
        description="How the label is compared with values."
    )
    values: Annotated[list[LabelValue], Field(max_length=_VALUES_MAX)] = Field(
        default=[], description="Values for In and NotIn; one number for Gt and Lt."
    )

    @model_validator(mode="after")
    def _has_values_where_they_count(self) -> Self:
        _check_values(self.operator not in ("Exists", "DoesNotExist"), self.operator, self.values)
        if self.operator in ("Gt", "Lt") and not (
            len(self.values) == 1 and self.values[0].isdecimal()
        ):
            raise ValueError(
                f"{self.operator} compares with one whole number; write exactly one value"
            )
        return self


def _check_values(wanted: bool, operator: str, values: list[str]) -> None:
    if wanted and not values:
        raise ValueError(f"{operator} needs values")
    if values and not wanted:
        raise ValueError(f"{operator} takes no values; remove them")


class LabelSelector(Model):
    """Selects pods by their labels."""

    match_labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=16)] = Field(
        default={}, description="Labels that a pod must have."
    )
    match_expressions: Annotated[list[SelectorRequirement], Field(max_length=TERMS_MAX)] = Field(
        default=[], description="Further conditions on its labels."
    )


class NodeSelectorTerm(Model):
    """Conditions that a node must meet, all of them."""

    match_expressions: Annotated[
        list[NodeRequirement], Field(min_length=1, max_length=TERMS_MAX)
    ] = Field(description="Conditions on the node's labels.")


class RequiredNodes(Model):
    """Nodes on which the pods may run."""

    node_selector_terms: Annotated[
        list[NodeSelectorTerm], Field(min_length=1, max_length=TERMS_MAX)
    ] = Field(description="A node must meet at least one of these terms.")


Weight = Annotated[int, Field(ge=1, le=100)]


class PreferredNodes(Model):
    """Nodes that are preferred."""

    weight: Weight = Field(description="Weight of the preference.")
    preference: NodeSelectorTerm = Field(description="Conditions on the node.")


class NodeAffinity(Model):
    """On which nodes the pods run."""

    required_during_scheduling_ignored_during_execution: RequiredNodes | None = Field(
        default=None, description="Nodes on which the pods may run. Defaults to all."
    )
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredNodes], Field(max_length=TERMS_MAX)
    ] = Field(default=[], description="Nodes that are preferred.")


class PodAffinityTerm(Model):
    """Other pods, and the failure domain to share with them or to keep apart from them."""

    topology_key: LabelKey = Field(description="Label of nodes whose value is the failure domain.")
    label_selector: LabelSelector | None = Field(
        default=None,
        description="Selects the other pods. In podAntiAffinity, defaults to the replicas of the same group.",
    )
    namespaces: Annotated[list[Name], Field(max_length=16)] = Field(
        default=[], description="Namespaces of those pods. Defaults to the Cluster's own."
    )


class WeightedPodAffinityTerm(Model):
    """A term that is preferred, not required."""

    weight: Weight = Field(description="Weight of the preference.")
    pod_affinity_term: PodAffinityTerm = Field(description="Pods and failure domain.")


class PodAffinity(Model):
    """Pods near which, or away from which, the pods run."""

    required_during_scheduling_ignored_during_execution: Annotated[
        list[PodAffinityTerm], Field(max_length=TERMS_MAX)
    ] = Field(default=[], description="Required terms; a pod stays pending if they cannot be met.")
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[WeightedPodAffinityTerm], Field(max_length=TERMS_MAX)
    ] = Field(default=[], description="Preferred terms.")

    def terms(self) -> list[PodAffinityTerm]:
        """Return all terms, required and preferred."""
        weighted = self.preferred_during_scheduling_ignored_during_execution
        return [
            *self.required_during_scheduling_ignored_during_execution,
            *(each.pod_affinity_term for each in weighted),
        ]


REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_NEEDS_SELECTOR: Final = (
    "podAffinity needs labelSelector: without it, the replicas of a group would be put together"
)


class Affinity(Model):
    """Kubernetes' affinity, in addition to what placement requires."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"!has(self.podAffinity) || (self.podAffinity.{REQUIRED}.all(term, has(term.labelSelector)) && "
                f"self.podAffinity.{PREFERRED}.all(each, has(each.podAffinityTerm.labelSelector)))",
                _NEEDS_SELECTOR,
                field=".podAffinity",
            )
        )
    )

    node_affinity: NodeAffinity | None = Field(default=None, description="Which nodes.")
    pod_affinity: PodAffinity | None = Field(
        default=None, description="Pods near which the pods run."
    )
    pod_anti_affinity: PodAffinity | None = Field(
        default=None, description="Pods away from which the pods run."
    )

    @model_validator(mode="after")
    def _draws_no_group_together(self) -> Self:
        if self.pod_affinity is not None and any(
            term.label_selector is None for term in self.pod_affinity.terms()
        ):
            raise ValueError(_NEEDS_SELECTOR)
        return self


_DOMAINS: Final = "minDomains needs whenUnsatisfiable DoNotSchedule"


class TopologySpreadConstraint(Model):
    """How evenly the replicas of a group, and the name servers, are spread over failure domains."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'", _DOMAINS)
        )
    )

    topology_key: LabelKey = Field(description="Label of nodes whose value is the failure domain.")
    max_skew: Annotated[int, Field(ge=1, le=16)] = Field(
        default=1, description="Largest allowed difference in pods between two failure domains."
    )
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        default="ScheduleAnyway",
        description="DoNotSchedule leaves a pod pending if the constraint cannot be met; "
        "ScheduleAnyway does not.",
    )
    min_domains: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None,
        description="Least number of eligible failure domains; only with DoNotSchedule.",
    )
    node_affinity_policy: Literal["Honor", "Ignore"] | None = Field(
        default=None,
        description="Honor (the default) counts only nodes that the pods' node affinity and node selector allow; Ignore "
        "counts all.",
    )
    node_taints_policy: Literal["Honor", "Ignore"] | None = Field(
        default=None,
        description="Honor leaves out nodes with taints that the pods do not tolerate.",
    )

    @model_validator(mode="after")
    def _counts_domains_where_it_can(self) -> Self:
        if self.min_domains is not None and self.when_unsatisfiable != "DoNotSchedule":
            raise ValueError(_DOMAINS)
        return self
