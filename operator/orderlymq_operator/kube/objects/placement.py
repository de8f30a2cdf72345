"""
The placement of pods on nodes, from `spec.placement` and the additions of `spec.podTemplate`.

Pure. Rules: the replicas of a broker group are spread, and so are the name servers. A constraint of the template
replaces the constraint with the same topologyKey. The template's values override those of placement. Affinities and
tolerations of both apply.
"""

from typing import Any, Final

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.podtemplate import plain
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.kinds import Cluster
from orderlymq_operator.resources.pod.affinity import PREFERRED, REQUIRED, Affinity
from orderlymq_operator.resources.pod.template import PodTemplate
from orderlymq_operator.resources.workload import Placement

HOSTNAME: Final = "kubernetes.io/hostname"


def placement(cluster: Cluster, component: str, group: str | None) -> Json:
    """Return the fields that place a pod; the pods of *component* and *group* are spread."""
    given, template = cluster.spec.placement, cluster.spec.pod_template or PodTemplate()
    chosen = {"matchLabels": names.selector(cluster, component, group)}
    required = given.anti_affinity == "Required"
    found: Json = {}
    affinity = _affinity(template.affinity, chosen)
    if required:
        own = {"labelSelector": chosen, "topologyKey": given.topology_key}
        apart = affinity.setdefault("podAntiAffinity", {})
        apart[REQUIRED] = [own, *apart.get(REQUIRED, [])]
    if affinity:
        found["affinity"] = affinity
    spread = {key: _constraint(key, strict=strict) for key, strict in _domains(given).items()}
    spread |= {
        each.topology_key: each.model_dump(mode="json", by_alias=True, exclude_none=True)
        for each in template.topology_spread_constraints
    }
    if spread:
        found["topologySpreadConstraints"] = [
            {**each, "labelSelector": chosen} for each in spread.values()
        ]
    return found | _node_choice(given, template)


def node_choice(placement: Placement) -> Json:
    """Return the node selector, tolerations and priority class of a pod; they contain no spreading."""
    return _node_choice(placement, PodTemplate())


def _domains(given: Placement) -> dict[str, bool]:
    """Return the topology keys over which placement spreads pods, and whether each is strict."""
    if given.anti_affinity == "None":
        return {}
    required = given.anti_affinity == "Required"
    domains = {given.zone_key: required} if given.zone_key else {}
    if not required:
        domains[given.topology_key] = False
    if given.topology_key != HOSTNAME:
        domains[HOSTNAME] = False  # two pods of a zone on one node would fail together
    return domains


def _constraint(key: str, *, strict: bool) -> Json:
    made = {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule" if strict else "ScheduleAnyway",
    }
    # A zone whose taints exclude these pods must not limit the other zones.
    return {**made, "nodeTaintsPolicy": "Honor"} if strict else made


def _affinity(given: Affinity | None, chosen: Json) -> dict[str, Any]:
    """Return an affinity in which anti-affinity terms without a selector get the selector *chosen*."""
    made = {} if given is None else plain(given)
    apart = made.get("podAntiAffinity", {})
    weighted = [each["podAffinityTerm"] for each in apart.get(PREFERRED, [])]
    for term in (*apart.get(REQUIRED, []), *weighted):
        term.setdefault("labelSelector", chosen)
    return made


def _node_choice(given: Placement, template: PodTemplate) -> Json:
    found: Json = {}
    if labels := {**given.node_selector, **template.node_selector}:
        found["nodeSelector"] = labels
    # Remove duplicates.
    if tolerations := list(dict.fromkeys([*given.tolerations, *template.tolerations])):
        found["tolerations"] = [
            each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in tolerations
        ]
    if name := template.priority_class_name or given.priority_class_name:
        found["priorityClassName"] = name
    return found
