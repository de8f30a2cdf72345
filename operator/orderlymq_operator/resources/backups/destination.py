"""
Where backups are kept: a folder of a volume claim, or a bucket with S3's protocol.

Rule: a manifest never holds credentials; it names the Secret that does. `orderlymq backup` gets `place`.
"""

from typing import Annotated, Final, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from orderlymq_operator.resources.meta import Model, Name, rule, rules

# The mount path of a claim in the pods of Jobs.
MOUNT: Final = "/backups"
_ONE_FORM: Final = "name either pvc or objectStore"
_FOLDER: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*"


class ClaimDestination(Model):
    """A folder of a PersistentVolumeClaim."""

    claim_name: Name = Field(
        description="PersistentVolumeClaim in the namespace of this object. For a restore, pods on several nodes must be able "
        "to mount it at the same time."
    )
    path: Annotated[str, StringConstraints(pattern=rf"^{_FOLDER}$", max_length=512)] = Field(
        default="orderlymq", description="Folder in the volume."
    )


class CredentialsSecret(Model):
    """The Secret that contains the credentials of an object store."""

    name: Name = Field(
        description="Secret in the namespace of this object with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and optionally "
        "AWS_SESSION_TOKEN."
    )


class ObjectStoreDestination(Model):
    """A bucket, or a part of it."""

    url: Annotated[
        str,
        StringConstraints(
            pattern=rf"^s3://[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9](/{_FOLDER})?$", max_length=512
        ),
    ] = Field(description="s3://BUCKET/PREFIX.")
    endpoint: (
        Annotated[
            str,
            StringConstraints(
                pattern=r"^https?://[A-Za-z0-9.\-\[\]:]+(:[0-9]{1,5})?$", max_length=512
            ),
        ]
        | None
    ) = Field(
        default=None,
        description="Address of an S3-compatible store. Defaults to Amazon S3.",
    )
    region: Annotated[
        str, StringConstraints(pattern=r"^[a-z0-9-]+$", min_length=1, max_length=64)
    ] = Field(default="us-east-1", description="Region of the bucket.")
    credentials_secret_ref: CredentialsSecret | None = Field(
        default=None,
        description="Secret with the credentials. If absent, the pod uses the credentials of its node or platform.",
    )


class Destination(Model):
    """Where backups are stored. Anyone who can write there decides what a restore brings back."""

    model_config = ConfigDict(
        json_schema_extra=rules(rule("has(self.pvc) != has(self.objectStore)", _ONE_FORM))
    )

    pvc: ClaimDestination | None = Field(
        default=None, description="A folder of a PersistentVolumeClaim."
    )
    object_store: ObjectStoreDestination | None = Field(
        default=None, description="A bucket of an S3-compatible store."
    )

    @property
    def place(self) -> str:
        """The address for `orderlymq backup` in a pod."""
        if self.object_store is not None:
            return self.object_store.url
        assert self.pvc is not None, "one of both is there"
        return f"{MOUNT}/{self.pvc.path}"

    @property
    def location(self) -> str:
        """The bucket, or claim and folder, for people."""
        if self.pvc is not None:
            return f"pvc://{self.pvc.claim_name}/{self.pvc.path}"
        return self.place

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.pvc is None) == (self.object_store is None):
            raise ValueError(_ONE_FORM)
        return self
