"""
The Secret that the operator makes for a User that names none: access key and secret, in the User's own namespace.

Pure. Rules: the User owns the Secret. A Secret of that name with another owner is never used for the account.
"""

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.ownership import owned, owners
from orderlymq_operator.kube.objects.pods import SECRET_KEY
from orderlymq_operator.kube.resources import SECRETS, Json
from orderlymq_operator.resources.kinds import Cluster, User


def account_secret(user: User, namespace: str, name: str, text: str) -> Json:
    """Return the Secret with the access key of *user* and the secret *text*; the User object has the name *name*."""
    meta = user.metadata.model_copy(update={"name": name, "namespace": namespace})
    labels = {
        "app.kubernetes.io/name": "orderlymq",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": "orderlymq-operator",
    }
    secret = names.user_secret(name)
    texts = {"accessKey": user.access_key, SECRET_KEY: text}
    return owned("User", meta, SECRETS, secret, labels, type="Opaque", stringData=texts)


def is_of(owner: User | Cluster, secret: Json) -> bool:
    """Return whether a Secret was made for *owner*."""
    return owner.metadata.uid in owners(secret, owner.kind)
