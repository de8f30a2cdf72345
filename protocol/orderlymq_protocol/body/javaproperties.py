"""Settings of brokers and name servers as text, in the form of Java's properties."""


def java_properties(text: str) -> dict[str, str]:
    """Parse ``key=value`` lines; brokers and tools write no other form."""
    pairs = (line.strip().partition("=") for line in text.splitlines())
    return {
        key.strip(): value.strip()
        for key, found, value in pairs
        if found and not key.startswith(("#", "!"))
    }
