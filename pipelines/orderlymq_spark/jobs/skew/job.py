"""
Pipeline skew-report: the load by queue, minute and key, and how many queues the topic should have.

Spark counts (`counting`), and `model` computes the advice. The current loads are both counted and simulated. If they
differ, messages are in other queues than their key's hash gives, and the report says how many. The page is one HTML
file with SVG plots; it loads nothing from elsewhere.
"""

from collections.abc import Sequence
from html import escape
from itertools import zip_longest
from typing import Any, Final

from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.errors import OptionError
from orderlymq_spark.frames import read_batch
from orderlymq_spark.jobs.skew.counting import Counted, count
from orderlymq_spark.jobs.skew.model import Advice, advise
from orderlymq_spark.options import parse_source
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.specs import SkewSpec

_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1d2733}
h1{font-size:1.5rem;margin-bottom:0}h2{font-size:1.1rem;margin-top:2rem}
.facts{display:flex;flex-wrap:wrap;gap:.75rem;margin:1rem 0}
.fact{background:#f2f5f8;border-radius:.5rem;padding:.5rem .9rem}.fact b{display:block;font-size:1.3rem}
.advice{background:#e4f3ea;border-left:.3rem solid #2f9e62;padding:.7rem 1rem;border-radius:.3rem}
.advice.none{background:#fdeceb;border-color:#c93c37}
table{border-collapse:collapse;width:100%}td,th{padding:.25rem .6rem;text-align:right}
td:first-child,th:first-child{text-align:left}tr:nth-child(even){background:#f7f9fb}
.fit{color:#2f9e62}.no{color:#c93c37}svg{width:100%;height:auto}text{font:11px system-ui,sans-serif}
@media(prefers-color-scheme:dark){body{background:#12181f;color:#dde5ec}.fact{background:#1d2733}
.advice{background:#17352a}.advice.none{background:#3d1d1c}tr:nth-child(even){background:#182029}text{fill:#dde5ec}}
"""
_WIDTH: Final = 720
_HEIGHT: Final = 180
_BARS_MAX: Final = 240  # more bars would be thinner than a pixel, so neighbours are added up


def run(name: str, spec: SkewSpec, spark: SparkStarter) -> Outcome:
    """Measure the load and recommend a queue count."""
    queues = len(
        access_to(parse_source(spec.source.all_options()).connect).route(spec.source.topic).publish
    )
    if not queues:
        raise OptionError(
            f"topic {spec.source.topic} is read-only, so no key has a queue there now"
        )
    columns = {"columns": "broker,queue_id,sharding_key,store_ts"}
    rows = read_batch(spark(), **spec.source.all_options(**columns))
    sizes = sorted({*spec.candidates, queues})
    found = count(rows, sizes, present=queues, top=spec.top)
    advice = advise(found.loads, capacity=spec.capacity_per_queue, target_use=spec.target_use)
    data = _data(spec, advice, found, queues)
    if spec.html is not None:
        spec.html.write(page(name, data))
    return Outcome(_text(data, spec), data)


def _data(spec: SkewSpec, advice: Advice, found: Counted, queues: int) -> dict[str, Any]:
    present = next(each for each in advice.candidates if each.queues == queues)
    total = sum(found.queues.values())
    return {
        "topic": spec.source.topic,
        "messages": total,
        "withoutKey": total - sum(found.loads.per_minute),
        "keys": found.key_count,
        "gini": round(advice.gini, 4),
        "queues": queues,
        "counted": {f"{broker}:{queue}": each for (broker, queue), each in found.queues.items()},
        "simulated": list(present.loads),
        "offHash": _difference([*found.queues.values()], present.loads),
        "maxToMean": round(present.max_to_mean, 3),
        "hottestKey": found.loads.hottest,
        "floor": round(advice.floor, 4),
        "targetUse": spec.target_use,
        "capacityPerQueue": spec.capacity_per_queue,
        "recommended": advice.queues,
        "topKeys": [{"key": key, "messages": each} for key, each in found.top],
        "perMinute": list(found.loads.per_minute),
        "candidates": [
            {
                "queues": each.queues,
                "busyRate": round(each.busy_rate, 3),
                "maxToMean": round(each.max_to_mean, 3),
                "moved": round(each.moved, 4),
                "fits": each.fits,
                "loads": list(each.loads),
            }
            for each in advice.candidates
        ],
    }


def _difference(counted: Sequence[int], simulated: Sequence[int]) -> int:
    """Return the least possible number of messages that are in another queue than the hash gives."""
    largest_first = sorted(counted, reverse=True), sorted(simulated, reverse=True)
    return sum(abs(a - b) for a, b in zip_longest(*largest_first, fillvalue=0)) // 2


def _text(data: dict[str, Any], spec: SkewSpec) -> str:
    lines = [
        f"{data['topic']}: {data['messages']} messages, {data['keys']} keys, Gini {data['gini']}, "
        f"{data['queues']} queues with max/mean {data['maxToMean']}",
        f"hottest key {data['hottestKey']}: by itself {data['floor']:.1%} of one queue's capacity",
    ]
    if data["recommended"] is not None:
        chosen = next(c for c in data["candidates"] if c["queues"] == data["recommended"])
        lines.append(
            f"recommended: {data['recommended']} queues (busy minutes {chosen['busyRate']:g} messages/s a "
            f"queue, target {spec.capacity_per_queue * spec.target_use:g}); changing would move "
            f"{chosen['moved']:.1%} of the messages to another queue: drain the topic first"
        )
    elif data["floor"] > spec.target_use:
        lines.append(
            "no number of queues is enough, because the hottest key alone exceeds the target; split the key"
        )
    else:
        lines.append("no candidate is large enough; add larger ones")
    if spec.html is not None:
        lines.append(f"report: {spec.html}")
    return "\n".join(lines)


# -- the page


def page(name: str, data: dict[str, Any]) -> str:
    """Return the HTML page."""
    recommended = data["recommended"]
    facts = {
        "messages": f"{data['messages']:,}",
        "keys": f"{data['keys']:,}",
        "Gini of keys": data["gini"],
        "queues now": data["queues"],
        "max / mean now": data["maxToMean"],
        "hottest key": f"{data['floor']:.1%} of a queue",
    }
    boxes = "".join(
        f'<div class="fact"><b>{escape(str(value))}</b>{escape(what)}</div>'
        for what, value in facts.items()
    )
    text = (
        f"{recommended} queues are enough."
        if recommended is not None
        else "No candidate is large enough. The messages of one key cannot be spread over queues."
    )
    rows = "".join(
        f"<tr><td>{each['queues']}</td><td>{each['busyRate']:g}</td><td>{each['maxToMean']}</td>"
        f'<td>{each["moved"]:.1%}</td><td class="{"fit" if each["fits"] else "no"}">'
        f"{'fits' if each['fits'] else 'too much'}</td></tr>"
        for each in data["candidates"]
    )
    top = "".join(
        f"<tr><td>{escape(each['key'])}</td><td>{each['messages']:,}</td></tr>"
        for each in data["topKeys"]
    )
    chosen = next((c for c in data["candidates"] if c["queues"] == recommended), None)
    simulated = (
        f"<h2>Load by queue with {recommended} queues (simulated)</h2>{bars(chosen['loads'])}"
        if chosen
        else ""
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>{escape(name)}</title><style>{_STYLE}</style>"
        f"<h1>Load of {escape(data['topic'])}</h1><p>{escape(name)}</p>"
        f'<div class="facts">{boxes}</div>'
        f'<p class="advice{"" if recommended is not None else " none"}">{text}</p>'
        f"<h2>Load by queue, as counted</h2>{bars(list(data['counted'].values()), list(data['counted']))}"
        f"{simulated}<h2>Messages by minute</h2>{bars(data['perMinute'])}"
        "<h2>Candidates</h2><table><tr><th>queues</th><th>busy minute, messages/s a queue</th>"
        f"<th>max / mean</th><th>would move</th><th></th></tr>{rows}</table>"
        f"<h2>Hottest keys</h2>{bars([each['messages'] for each in data['topKeys']])}"
        f"<table><tr><th>key</th><th>messages</th></tr>{top}</table></html>"
    )


def bars(values: Sequence[int], labels: Sequence[str] = ()) -> str:
    """Return a bar chart as SVG; the dashed line is the mean."""
    if not values:
        return "<p>nothing</p>"
    if len(values) > _BARS_MAX:
        size = -(-len(values) // _BARS_MAX)
        values = [sum(values[at : at + size]) for at in range(0, len(values), size)]
        labels = ()
    top = max(*values, 1)
    step = _WIDTH / len(values)
    mean_y = _HEIGHT - _HEIGHT * (sum(values) / len(values)) / top
    shapes = []
    for number, value in enumerate(values):
        height = _HEIGHT * value / top
        label = labels[number] if labels else str(number)
        shapes.append(
            f'<rect x="{number * step:.1f}" y="{_HEIGHT - height:.1f}" width="{max(step * 0.85, 0.5):.1f}" '
            f'height="{height:.1f}" fill="#3b82c4"><title>{escape(label)}: {value:,}</title></rect>'
        )
    return (
        f'<svg viewBox="0 -14 {_WIDTH} {_HEIGHT + 18}" role="img"><text x="0" y="-3">{top:,}</text>'
        f'{"".join(shapes)}<line x1="0" x2="{_WIDTH}" y1="{mean_y:.1f}" y2="{mean_y:.1f}" '
        'stroke="#e07b39" stroke-dasharray="4 3"/></svg>'
    )
