"""Random specs by the schema of a kind: allowed ones, and some that rules between fields refuse."""

import re
from random import Random
from typing import Any, Final

Json = dict[str, Any]
# Texts for every pattern of a schema (amounts, times, names, paths, addresses), and some that only look like one.
_TEXTS: Final = (
    *("1", "2", "500m", "64Mi", "1Gi", "2Gi", "1G", "1s", "90s", "5m", "24h", "100ms"),
    *("a", "one", "a-b", "A_B", "key.pem", "..", "a/b", "/", "//", "/data/x", "../x", "s3a://b/x"),
    *("example.com", "example.com/x", "*.example.com", "{service}.example.com", "10.0.0.0/8"),
    *("kubernetes.io/hostname", "secrets-store.csi.k8s.io", "registry.example.com/x:1", "http"),
    *("", "ä", "a b", "%x", "{x}", "0 3 * * *", "availableNow", "catalog", "ns.table", "x" * 64),
)


def random_value(node: Json, chance: Random, depth: int = 0) -> Any:
    """Return a random value for a part of a schema."""
    if "enum" in node:
        return chance.choice(node["enum"])
    if "x-kubernetes-int-or-string" in node:
        return chance.choice([1, 2, "500m", "64Mi", "1Gi"])
    match node.get("type"):
        case "boolean":
            return chance.random() < 0.5
        case "integer" | "number":
            least, most = node.get("minimum", 0), node.get("maximum", 1_000)
            return chance.choice([least, min(least + 1, most), node.get("default", most), most])
        case "string":
            most, pattern = node.get("maxLength", 1 << 20), re.compile(node.get("pattern", ""))
            fit = [each for each in _TEXTS if pattern.search(each) and len(each) <= most]
            return chance.choice(fit or [node.get("default", "one")])
        case "array":
            count = min(chance.choice([0, 1, 1, 2]), node.get("maxItems", 2))
            return [random_value(node["items"], chance, depth + 1) for _ in range(count)]
    if "properties" not in node:
        values = node.get("additionalProperties", {"type": "string"})
        return {"one": random_value(values, chance, depth + 1)} if chance.random() < 0.7 else {}
    required = node.get("required", ())
    return {
        name: random_value(part, chance, depth + 1)
        for name, part in node["properties"].items()
        if name in required or chance.random() < 0.4 / (depth + 1)
    }


def change_somewhere(spec: Json, schema: Json, chance: Random) -> None:
    """Set one field of a spec, at any depth, to a random value."""
    name = chance.choice(list(schema["properties"]))
    part = schema["properties"][name]
    if "properties" in part and chance.random() < 0.8:
        change_somewhere(spec.setdefault(name, {}), part, chance)
        for each in part.get("required", ()):
            spec[name].setdefault(each, random_value(part["properties"][each], chance))
    else:
        spec[name] = random_value(part, chance)
