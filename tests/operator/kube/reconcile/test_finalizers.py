"""An operator that is uninstalled lets every object go."""

from orderlymq_operator.kube.objects.names import BACKUP_FINALIZER, FINALIZER
from orderlymq_operator.kube.reconcile.finalizers import release_everything
from orderlymq_operator.kube.resources import BACKUPS, PARTS
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.rights import needed, of_file
from tests.operator.kube.samples import custom


async def test_the_last_job_lets_every_kind_go_and_has_the_rights_for_it() -> None:
    """Its rights are those that it uses: a job without one fails, and so does the uninstallation."""
    server = ObjectServer()
    for resource in (*PARTS, BACKUPS):
        finalizer = BACKUP_FINALIZER if resource == BACKUPS else FINALIZER
        server.put(resource, custom(resource.kind, "held", finalizers=["other", finalizer]))

    async with server.serving() as api:
        count = await release_everything(api, ())

    left = {tuple(each["metadata"]["finalizers"]) for each in server.objects.values()}
    assert (count, left) == (len(PARTS) + 1, {("other",)})
    assert {needed(method, path) for method, path, *_ in server.asked} == of_file("release")
