"""The commands of the guides, typed at a running Cluster on Kubernetes; a line that fails fails the scenario."""

import base64

import yaml
from tests.docs.tutorial import HOWTO, blocks

from e2e.installed import Operator
from e2e.manifests import part
from e2e.person import Person
from e2e.space import Json, Space

_BROKERS = "orderlymq.io/cluster=demo,app.kubernetes.io/component=broker"
_SOMETHING_WILL_HAPPEN = 6
_TIME_IS_UP = 124  # exit code of `timeout`
_CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: backups}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
"""
_ACCOUNTS = ("shop-admin", "shop-writer")


def begins(space: Space) -> None:
    """Start the parts of the guides that take time: a canary, a Backup, accounts."""
    space.patch("cluster/demo", {"canary": {"enabled": True}})
    accounts = [part("User", name, "demo", admin=name == "shop-admin") for name in _ACCOUNTS]
    space.apply(_CLAIM, yaml.safe_dump(_backup()), *accounts)
    space.ready(*(f"user/{name}" for name in _ACCOUNTS))


def looks(space: Space, person: Person) -> None:
    """Inspect the Cluster as four pages describe."""
    seen = person.types(
        "howto/lost-majority", "kubectl get pods", "kubectl get pvc", "kubectl describe"
    )
    assert "data-demo-0-2" in seen
    person.types("howto/replace-node", "kubectl get cluster", "kubectl describe cluster")
    assert "cluster.orderlymq.io/demo" in person.types("reference/alerts", "kubectl get mq -A")
    assert "QuorumHealthy" in person.types("reference/alerts", "kubectl describe")

    assert "billing" in person.types("howto/watch", "kubectl exec demo-0-0 -- orderlymq")
    secret = space.must("secret/shop-admin-user")["data"]["secretKey"]
    text = base64.b64decode(secret).decode()
    signed = person.types("howto/watch", "kubectl exec demo-0-0 -- env", SECRET=text)
    assert "billing" in signed
    # Its exit code is that of the command. The output of a pod that ends before kubectl is attached may be lost.
    person.types("howto/watch", "kubectl run mq")


def changes_a_secret(space: Space, person: Person) -> None:
    """Let the operator make another Secret: brokers accept both for a time, and the former one is ended by hand."""
    before = space.must("secret/shop-writer-user")["data"]
    space.kubectl("create", "deployment", "shop", f"--image={space.image}", "--replicas=0")
    person.types(
        "howto/rotate-secrets", "kubectl delete secret", "until kubectl get user", "kubectl wait"
    )
    assert space.must("secret/shop-writer-user")["data"] != before
    person.types("howto/rotate-secrets", "kubectl rollout restart", "kubectl patch user")
    space.until(
        lambda: not space.must("user/shop-writer")["status"].get("formerSecretUntil"),
        "the former secret is accepted no more",
        90,
    )


def tries_changes(space: Space, person: Person) -> None:
    """Plan a change, be warned by the API server, and upgrade; with --dry-run if a change would affect other scenarios."""
    _writes_manifests(space, person)
    plan = person.types("howto/plan", "kubectl orderlymq plan", code=_SOMETHING_WILL_HAPPEN)
    assert "Restarts: demo-0 restarts one replica at a time" in plan
    warned = person.types("howto/plan", "kubectl apply --dry-run=server")
    assert "spec.config.tailCacheSize: a change restarts brokers" in warned
    person.types("howto/plan", "kubectl annotate")

    assert "STATUS: pending-upgrade" in person.types("howto/upgrade", "helm upgrade", TAG="new")
    assert "demo-0-2" in person.types("howto/upgrade", "kubectl delete pods")
    assert "STATUS: pending-upgrade" in person.types("howto/pipelines", "helm upgrade")
    assert "STATUS: pending-install" in person.types("howto/pods", "helm install")

    def watched() -> bool:
        return "demo" in person.types("howto/upgrade", "kubectl get cluster", code=_TIME_IS_UP)

    space.until(watched, "the watch shows the Cluster", 60)
    person.types("howto/upgrade", "sed")
    assert "v1beta1" in (person.folder / "shop.yaml").read_text()
    assert person.types("howto/upgrade", "kubectl diff") == ""
    # The operator may write the status of one of them between the two commands, as the page says.
    space.until(
        lambda: "replaced (server dry run)" in person.types("howto/upgrade", "kubectl get mq"),
        "each object is written once more",
        60,
    )
    assert "patched" in person.types("howto/upgrade", "kubectl patch crd")
    assert "replaced (server dry run)" in person.types("howto/upgrade", "kubectl get secrets")
    assert "(server dry run)" in person.types("howto/replace-node", "kubectl drain")
    assert "tainted" in person.types("howto/replace-node", "kubectl taint")


def ends(space: Space, person: Person) -> None:
    """Check the results of `begins`: the canary has verified the order, the Backup is complete."""
    person.types("howto/backup", "kubectl create secret")
    (person.folder / "backup.yaml").write_text(yaml.safe_dump(_backup()))
    assert "unchanged" in person.types("howto/backup", "kubectl apply")
    person.types("howto/backup", "kubectl wait")
    assert "before-upgrade" in person.types("howto/backup", "kubectl get backups")

    def verdict() -> str:
        return person.types("howto/canary", "kubectl get cluster")

    space.until(lambda: '"status":"True"' in verdict(), "the canary has verified the order", 120)
    space.patch("cluster/demo", {"canary": None})


def loses(space: Space, person: Person) -> None:
    """Lose a volume, whose replica fills it again; then pause the operator and examine the files of a stopped replica."""
    before = space.uids(_BROKERS)
    person.types("howto/replace-node", "kubectl delete pvc", "kubectl delete pod")
    space.until(
        lambda: space.is_replaced("demo-0-2", before["demo-0-2"]), "the replica is made again", 240
    )
    space.says("cluster/demo", "AllReplicasHealthy", "QuorumHealthy", timeout_s=240)

    person.types("howto/lost-majority", "kubectl annotate", "kubectl scale", "kubectl wait pod -l")
    assert not space.items("pods", _BROKERS)
    (pod,) = [each for each in manifests_of("lost-majority") if each["kind"] == "Pod"]
    text = yaml.safe_dump(pod).replace("orderlymq:dev", space.image)
    (person.folder / "examine.yaml").write_text(text)
    person.types(
        "howto/lost-majority", "kubectl apply", "kubectl wait pod/examine", "kubectl exec examine"
    )


def instead(space: Space, operator: Operator, node: str) -> dict[str, str]:
    """Return replacements of the pages' words: names of this cluster, and --dry-run if a line would affect other scenarios."""
    upgrade = f"helm upgrade {operator.release} charts/orderlymq -n {operator.name}"
    watch = "kubectl get cluster.orderlymq.io demo --watch"
    return {
        "helm upgrade orderlymq charts/orderlymq": f"{upgrade} --dry-run=server",
        "helm install orderlymq charts/orderlymq": (
            f"helm install orderlymq charts/orderlymq -n {space.name} --dry-run=server --take-ownership"
        ),
        "kubectl drain": "kubectl drain --dry-run=server",
        "kubectl delete pods": "kubectl delete pods --dry-run=server",
        "kubectl taint": "kubectl taint --dry-run=server",
        "kubectl replace": "kubectl replace --dry-run=server",
        "kubectl patch crd": "kubectl patch --dry-run=server crd",
        watch: f"timeout 3 {watch}",
        # The Cluster has TLS, which the page describes after this line.
        "--env=ORDERLYMQ_NAME_SERVER": "--env=ORDERLYMQ_TLS=true --env=ORDERLYMQ_NAME_SERVER",
        " NODE": f" {node}",
        " NAME": " demo",
    }


def _backup() -> Json:
    """Return the Backup of the page, with a claim in place of the bucket."""
    (backup,) = [each for each in manifests_of("backup") if each["kind"] == "Backup"]
    backup["spec"]["destination"] = {"pvc": {"claimName": "backups", "path": "demo"}}
    return backup


def _writes_manifests(space: Space, person: Person) -> None:
    """Write the present manifests, and copies with a setting that restarts brokers in place of the page's example."""
    found = [space.must(name) for name in ("cluster/demo", "topic/orders", "consumergroup/billing")]
    made = [
        {
            **{key: each[key] for key in ("apiVersion", "kind", "spec")},
            "metadata": {"name": each["metadata"]["name"], "namespace": space.name},
        }
        for each in found
    ]
    (person.folder / "shop.yaml").write_text(yaml.safe_dump_all(made))
    made[0]["spec"].setdefault("config", {})["tailCacheSize"] = "8Mi"
    file = person.folder / "examples" / "quickstart.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump_all(made))


def manifests_of(page: str) -> list[Json]:
    """Return the manifests on the page of a guide."""
    texts = [each.text for each in blocks(HOWTO / f"{page}.md") if each.language == "yaml"]
    return [each for text in texts for each in yaml.safe_load_all(text)]
