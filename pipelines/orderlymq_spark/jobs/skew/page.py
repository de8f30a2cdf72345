"""The skew report as one HTML page, with plots drawn as SVG: nothing is loaded from anywhere."""

from collections.abc import Sequence
from html import escape
from typing import Any, Final

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
_BARS_MAX: Final = 240  # more are thinner than a pixel; neighbours are then added up


def page(name: str, data: dict[str, Any]) -> str:
    """Return the page."""
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
        else "No candidate is enough. What one key brings cannot be spread."
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
    """Return a bar chart; the dashed line is the mean."""
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
