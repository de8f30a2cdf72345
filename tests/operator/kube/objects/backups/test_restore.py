"""The pods that restore: placed like brokers, but with no broker in them."""

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.backups.restore import RESTORING, Restore, is_restoring
from orderlymq_operator.kube.objects.cluster import group_set
from orderlymq_operator.resources.backups.destination import Destination
from tests.operator.kube.samples import cluster, environment

ID = "20260101T000000000Z-00000000"
CLAIM = Destination.model_validate({"pvc": {"claimName": "backups", "path": "demo"}})
STORE = Destination.model_validate(
    {"objectStore": {"url": "s3://backups/demo", "region": "eu-central-1"}}
)
PLACED = ("affinity", "topologySpreadConstraints", "tolerations", "nodeSelector", "securityContext")


def test_they_stand_where_brokers_will_and_run_none() -> None:
    """Law: they have the brokers' volumes, nodes and labels, and each restores its own replica from the same backup."""
    shop = cluster(groups=2, placement={"antiAffinity": "Required"})
    serving = group_set(shop, "demo-1", environment(shop))
    restore = Restore(CLAIM, ID, shop.group_names)
    made = group_set(shop, "demo-1", environment(shop, restoring=restore))
    pod, broker = made["spec"]["template"], serving["spec"]["template"]
    (init,) = pod["spec"]["initContainers"]
    (own,) = pod["spec"]["containers"]

    assert made["spec"]["volumeClaimTemplates"] == serving["spec"]["volumeClaimTemplates"]
    assert pod["metadata"]["labels"] == broker["metadata"]["labels"]
    assert [pod["spec"].get(name) for name in PLACED] == [
        broker["spec"].get(name) for name in PLACED
    ]
    assert "orderlymq_broker" not in [*init["command"], *own["command"]]
    assert not own.keys() & {"readinessProbe", "livenessProbe", "startupProbe", "ports"}
    form = broker["metadata"]["annotations"][names.ANNOTATION_SETTINGS]
    assert init["command"][3:] == [
        *("restore", "--from", "/backups/demo", "--id", ID),
        *("--settings", f"/etc/orderlymq/$(POD_NAME).{form}.json", "--groups", "demo-0,demo-1"),
        *("--resume", "--report", "/dev/termination-log"),
    ]
    # A restored replica keeps the backup for those that are not restored yet.
    assert own["command"][3:] == ["hold", "--from", "/backups/demo", "--id", ID]
    assert (own["env"], own["volumeMounts"]) == (init["env"], init["volumeMounts"])
    assert "/backups" in {each["mountPath"] for each in own["volumeMounts"]}
    assert (is_restoring(made), is_restoring(serving)) == (True, False)
    assert pod["metadata"]["annotations"][names.ANNOTATION_REVISION] == RESTORING


def test_a_variable_of_the_template_gives_way_to_that_of_the_backups() -> None:
    """Law: a variable of the pod template gives way to the backup's;
    the API server refuses a variable that is there twice.
    """
    shop = cluster(podTemplate={"env": [{"name": "AWS_REGION", "value": "mine"}, {"name": "TZ"}]})
    restore = Restore(STORE, ID, shop.group_names)
    made = group_set(shop, "demo-0", environment(shop, restoring=restore))

    (init,) = made["spec"]["template"]["spec"]["initContainers"]

    said = [(each["name"], each.get("value")) for each in init["env"]]
    assert len(dict(said)) == len(said)
    assert ("AWS_REGION", "eu-central-1") in said
    assert ("TZ", None) in said
