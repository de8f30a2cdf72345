"""
The patterns of manifests in words, because a bare pattern helps few people.

Rule: every pattern of a kind has words here; a test compares them.
"""

from typing import Final

SIZE: Final = "a size such as 20Gi"
TIME: Final = "a time with a unit, such as 60s, 72h or 500ms"
_FOLDERS: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*"
_LOWER: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_ANY_CASE: Final = "[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?"
_LABEL: Final = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_WORDS: Final = {
    rf"^{_LOWER}$": "lower-case letters, digits and `-`",
    r"^[a-z0-9-]+$": "lower-case letters, digits and `-`",
    rf"^{_LOWER}(\.{_LOWER})*$": "lower-case letters, digits, `-` and `.`",
    rf"^{_ANY_CASE}([.]{_ANY_CASE})*$": "letters, digits, `-` and `.`",
    rf"^(\*|{_LOWER})$": "the name of a namespace, or `*` for all",
    r"^[%a-zA-Z0-9_-]+$": "letters, digits, `_`, `-` and `%`",
    r"^[A-Za-z0-9._@-]+$": "letters, digits, `.`, `_`, `@` and `-`",
    r"^([.]?[-_a-zA-Z0-9][-._a-zA-Z0-9]*)$": "letters, digits, `-`, `_` and `.`",
    r"^[A-Za-z]([A-Za-z0-9_]*)$": "a letter, followed by letters, digits and `_`",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "a letter or `_`, followed by letters, digits and `_`",
    rf"^({_LABEL})?$": "the value of a label: letters, digits, `-`, `_` and `.`",
    rf"^([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_LABEL}$": "the name of a label, such as app or example.com/app",
    r"^([0-9]+-)*[0-9]*[a-z][a-z0-9]*(-[a-z0-9]+)*$": "the name of a port: lower-case letters, digits and single `-`",
    r"^[0-9]{1,6}[smhd]( [0-9]{1,6}[smhd]){0,31}$": "1 to 32 delays with a space between two, such as 1s 30s 10m 2h 1d",
    r"^(availableNow|[0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h))$": "availableNow, or a time such as 10s",
    r"^(@[a-z]+|[^ ]+( [^ ]+){4})$": "a schedule of five fields, such as 0 3 * * *, or one such as @daily",
    r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$": "a time zone such as Europe/Berlin",
    r"^[1-9][0-9]{0,6}[kmgKMG]$": "an amount of memory such as 2g",
    rf"^{_FOLDERS}$": "a relative path such as backups/demo",
    rf"^s3://[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9](/{_FOLDERS})?$": "a place such as s3://BUCKET/PREFIX",
    r"^https?://[A-Za-z0-9.\-\[\]:]+(:[0-9]{1,5})?$": "an address such as https://store.example:9000",
    r"^(latest|[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8})$": "latest, or the id of a backup",
    r"^[^\s]+$": "text without spaces",
    r"^/[^:\s]*$": "an absolute path without spaces and colons",
    r"^[^/:\s][^:\s]*$": "a relative path without spaces and colons",
    r"^(metadata|spec|status)\.[^\s]+$": "the path of a field, such as metadata.name",
}
# Parts of the patterns that are put together from others.
_PARTS: Final = {
    "Ki|": SIZE,
    "(ms|s|": TIME,
    r"{service\}": "a host name in lower case, or an address; {service} stands for the name of the Service",
    "/(3[0-2]|": "a network such as 10.0.0.0/8",
    "{0,6}m?|": "an amount of CPU such as 2, 0.5 or 500m",
}


def described(pattern: str) -> str:
    """Return what a text that matches *pattern* looks like."""
    words = _WORDS.get(pattern)
    if words is None:
        words = next((words for part, words in _PARTS.items() if part in pattern), None)
    return words or f"text that matches {pattern}"
