"""The graph of a pipeline for pages and documents: an SVG picture, or text in Mermaid's language.

The picture is for light and dark pages. It needs nothing else: no script, no font, no style from
elsewhere.
"""

from __future__ import annotations

from itertools import pairwise
from xml.sax.saxutils import escape, quoteattr

from ebbflow.spec.graph import PipelineShape, ShapeVertex
from ebbflow.spec.graph.layout import GraphLayout, GridSpot, lay_out

_HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 48, 72, 26, 16
_LETTER, _PADDING, _NARROWEST = 7.4, 28, 96

_SHAPES = {"source": ("([", "])"), "sink": ("[[", "]]")}

_STYLE = """
 text { font: 12px system-ui, sans-serif; fill: #1c2530 }
 .name { font-weight: 600 }
 .detail, .condition { fill: #5b6b7b; font-size: 11px }
 .box { fill: #f4f7fa; stroke: #7b8a9a }
 .source { fill: #e6f2ea; stroke: #3f8f5b }
 .sink { fill: #e8eefb; stroke: #4a6fc0 }
 .edge { fill: none; stroke: #7b8a9a; stroke-width: 1.5 }
 .backward { stroke-dasharray: 5 4 }
 .head { fill: #7b8a9a }
 @media (prefers-color-scheme: dark) {
  text { fill: #e8edf2 } .detail, .condition { fill: #a6b3c0 }
  .box { fill: #222c36 } .source { fill: #1d3326 } .sink { fill: #1e2a44 }
 }
""".strip("\n")


def draw_svg(shape: PipelineShape) -> str:
    """Returns the picture as the text of an SVG file."""
    layout = lay_out(shape)
    page = _Page(shape, layout)
    title = f"{shape.kind} {shape.pipeline}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{page.width:g}" '
            f'height="{page.height:g}" viewBox="0 0 {page.width:g} {page.height:g}" role="img" '
            f"aria-label={quoteattr(title)}>",
            f"<title>{escape(title)}</title>",
            f"<style>\n{_STYLE}\n</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path class="head" d="M0 0 8 4 0 8z"/></marker></defs>',
            *page.draw_edges(),
            *(page.draw_vertex(vertex) for vertex in shape.vertices),
            "</svg>",
            "",
        ]
    )


class _Page:
    """The measures of one picture."""

    def __init__(self, shape: PipelineShape, layout: GraphLayout) -> None:
        self._layout = layout
        self._conditions = {(e.frm, e.to): e.condition for e in shape.edges}
        widths = [float(_NARROWEST)] * layout.layers
        for vertex in shape.vertices:
            layer = layout.spots[vertex.name].layer
            widths[layer] = max(widths[layer], _width(vertex))
        gaps = [float(_GAP_X)] * layout.layers
        for (frm, _), condition in self._conditions.items():
            layer = layout.spots[frm].layer
            gaps[layer] = max(gaps[layer], 40 + len(condition) * _LETTER)
        self._widths = widths
        self._lefts = [
            _MARGIN + sum(widths[:layer]) + sum(gaps[:layer]) for layer in range(layout.layers)
        ]
        self.width = (self._lefts[-1] + widths[-1] if widths else 0) + _MARGIN
        loops = bool(layout.backward)
        self.height = 2 * _MARGIN + layout.rows * (_HEIGHT + _GAP_Y) - _GAP_Y + 24 * loops

    def _middle(self, row: int) -> float:
        return _MARGIN + row * (_HEIGHT + _GAP_Y) + _HEIGHT / 2

    def draw_vertex(self, vertex: ShapeVertex) -> str:
        """Returns the box of a vertex with its words."""
        spot = self._layout.spots[vertex.name]
        left, width, middle = (
            self._lefts[spot.layer],
            self._widths[spot.layer],
            self._middle(spot.row),
        )
        x = left + width / 2
        words = escape(vertex.detail or vertex.kind)
        lower = f'<text class="detail" x="{x:g}" y="{middle + 13:g}">{words}</text>'
        return (
            f'<g text-anchor="middle"><rect class="box {vertex.kind}" x="{left:g}" '
            f'y="{middle - _HEIGHT / 2:g}" width="{width:g}" height="{_HEIGHT}" rx="7"/>'
            f'<text class="name" x="{x:g}" y="{middle - 3:g}">{escape(vertex.title)}</text>'
            f"{lower}</g>"
        )

    def draw_edges(self) -> list[str]:
        """Returns the edges, each as a curve through its spots, with their conditions."""
        drawn = []
        for (frm, to), way in self._layout.routes.items():
            backward = (frm, to) in self._layout.backward
            path = self._loop(way) if backward else self._curve(way)
            kind = "edge backward" if backward else "edge"
            drawn.append(f'<path class="{kind}" d="{path}" marker-end="url(#head)"/>')
            if condition := self._conditions.get((frm, to)):
                x, y = self._label(way, backward)
                drawn.append(
                    f'<text class="condition" text-anchor="end" x="{x:g}" y="{y:g}">'
                    f"{escape(condition)}</text>"
                )
        return drawn

    def _label(self, way: tuple[GridSpot, ...], backward: bool) -> tuple[float, float]:
        end = way[1] if len(way) > 1 and not backward else way[-1]
        return self._lefts[end.layer] - 14, self._middle(end.row) - 6

    def _curve(self, way: tuple[GridSpot, ...]) -> str:
        path = ""
        for here, there in pairwise(way):
            x1, y1 = self._lefts[here.layer] + self._widths[here.layer], self._middle(here.row)
            x2, y2 = self._lefts[there.layer], self._middle(there.row)
            bend = (x1 + x2) / 2
            passed = f"M{x1:g} {y1:g}" if not path else f" H{x1:g}"
            path += f"{passed} C{bend:g} {y1:g} {bend:g} {y2:g} {x2:g} {y2:g}"
        return path

    def _loop(self, way: tuple[GridSpot, ...]) -> str:
        """Returns the way of an edge that leads back: below everything."""
        first, last = way[0], way[-1]
        x1 = self._lefts[first.layer] + self._widths[first.layer] * 0.6
        x2 = self._lefts[last.layer] + self._widths[last.layer] * 0.4
        low = self.height - 8
        y1, y2 = (self._middle(spot.row) + _HEIGHT / 2 for spot in (first, last))
        down = f"M{x1:g} {y1:g} C{x1:g} {low:g} {x1:g} {low:g} {(x1 + x2) / 2:g} {low:g}"
        return f"{down} S{x2:g} {low:g} {x2:g} {y2:g}"


def _width(vertex: ShapeVertex) -> float:
    longest = max(len(vertex.name) + 4, len(vertex.detail))
    return max(_NARROWEST, longest * _LETTER + _PADDING)


def draw_mermaid(shape: PipelineShape) -> str:
    """Returns the text of a Mermaid flowchart, from left to right."""
    numbers = {vertex.name: f"v{n}" for n, vertex in enumerate(shape.vertices)}
    lines = ["flowchart LR", *(f"  {numbers[v.name]}{_box(v)}" for v in shape.vertices)]
    for edge in shape.edges:
        label = f"|{_quote(edge.condition)}|" if edge.condition else ""
        lines.append(f"  {numbers[edge.frm]} -->{label} {numbers[edge.to]}")
    return "\n".join(lines)


def _box(vertex: ShapeVertex) -> str:
    left, right = _SHAPES.get(vertex.kind, ("[", "]"))
    text = vertex.title + (f"<br/>{vertex.detail}" if vertex.detail else "")
    return f"{left}{_quote(text)}{right}"


def _quote(text: str) -> str:
    """Returns a text of Mermaid's; a quotation mark in it is written as its entity."""
    return '"' + text.replace('"', "#quot;") + '"'
