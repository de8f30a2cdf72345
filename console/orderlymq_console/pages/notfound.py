"""The error of a page whose object does not exist."""


class NotThere(LookupError):  # noqa: N818 - says what it is
    """The topic, group, queue or other object does not exist; the text names it."""
