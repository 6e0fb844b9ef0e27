"""The graph of a pipeline as a drawing: for a terminal, as an SVG picture, in Mermaid's language.

A terminal gets boxes and lines where they fit, else a tree. ``layout`` places the boxes. Between
two layers each vertex has its own column in which its edges change rows, chosen so that lines
cannot be confused. If there is no such order, or if the boxes are too wide, a tree shows the same.

The SVG picture is for light and dark pages. It is self-contained: it needs no script, no font and
no external style.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from xml.sax.saxutils import escape, quoteattr

from ebbflow.spec.graph import PipelineShape, ShapeVertex
from ebbflow.spec.graph.layout import GraphLayout, GridSpot, lay_out

_PITCH = 5
_WHOLE = 1_000
# Details are cut before boxes are replaced with a tree.
_LONGEST_DETAILS = (_WHOLE, 24, 14)
_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES = {
    _UP | _DOWN: "│",
    _LEFT | _RIGHT: "─",
    _DOWN | _RIGHT: "┌",
    _DOWN | _LEFT: "┐",
    _UP | _RIGHT: "└",
    _UP | _LEFT: "┘",
    _UP | _DOWN | _RIGHT: "├",
    _UP | _DOWN | _LEFT: "┤",
    _LEFT | _RIGHT | _DOWN: "┬",
    _LEFT | _RIGHT | _UP: "┴",
    _UP | _DOWN | _LEFT | _RIGHT: "┼",
}


def draw_terminal(shape: PipelineShape, width: int = 80) -> str:
    """Returns the drawing in lines of at most ``width`` columns, as far as names allow."""
    layout = lay_out(shape)
    for longest in _LONGEST_DETAILS:
        boxes = _draw_boxes(shape, layout, longest)
        if boxes is not None and max((len(line) for line in boxes), default=0) <= width:
            return "\n".join([*boxes, *_describe_edges(shape, layout)])
    return draw_tree(shape)


def _describe_edges(shape: PipelineShape, layout: GraphLayout) -> list[str]:
    """Returns a line for each edge that the boxes cannot show completely."""
    lines = []
    for edge in shape.edges:
        backward = (edge.frm, edge.to) in layout.backward
        words = f": {edge.condition}" if edge.condition else ""
        if words or backward:
            lines.append(f"{edge.frm} → {edge.to}{' (back)' if backward else ''}{words}")
    return ["", *lines] if lines else []


# --- boxes --------------------------------------------------------------------------------------


def _words(vertex: ShapeVertex, longest: int = _WHOLE) -> tuple[str, str]:
    detail = vertex.detail or vertex.kind
    return vertex.title, detail if len(detail) <= longest else f"{detail[: longest - 1]}…"


def _draw_boxes(shape: PipelineShape, layout: GraphLayout, longest: int) -> list[str] | None:
    """Returns the lines of the drawing; ``None`` if edges could be confused."""
    widths = [0] * layout.layers
    for vertex in shape.vertices:
        layer = layout.spots[vertex.name].layer
        widths[layer] = max(widths[layer], *(len(word) + 4 for word in _words(vertex, longest)))
    gaps = [_Gap.of(layout, layer) for layer in range(layout.layers)]
    if any(gap is None for gap in gaps):
        return None
    canvas = _Canvas()
    left = 0
    for layer, gap in enumerate(gaps):
        assert gap is not None
        for vertex in shape.vertices:
            if layout.spots[vertex.name].layer == layer:
                top = layout.spots[vertex.name].row * _PITCH
                canvas.box(left, top, widths[layer], _words(vertex, longest))
        canvas.pass_by(layout, layer, left, widths[layer])
        canvas.gap(gap, left + widths[layer])
        left += widths[layer] + gap.width
    return canvas.lines()


@dataclass
class _Gap:
    """The edges between a layer and the next: from which row to which, by the columns they use."""

    edges: list[tuple[int, int]]
    columns: dict[int, int]
    arrive: set[int]

    @property
    def width(self) -> int:
        """The columns between the boxes."""
        return 4 + 2 * len(self.columns) if self.edges else 0

    @classmethod
    def of(cls, layout: GraphLayout, layer: int) -> _Gap | None:
        """Returns the gap after a layer; ``None`` if no order of its columns is unambiguous."""
        edges = []
        for ends, route in layout.routes.items():
            route = route[::-1] if ends in layout.backward else route
            steps = [(a, b) for a, b in pairwise(route) if a.layer == layer]
            edges += [] if ends in layout.backward else [(a.row, b.row) for a, b in steps]
        turning = sorted({frm for frm, to in edges if frm != to})
        order = TopologicalSorter({frm: set[int]() for frm in turning})
        for frm, to in edges:
            if to in turning and frm != to:
                # The line that leaves a row must turn before another line enters that row.
                order.add(frm, to)
        try:
            columns = {row: n for n, row in enumerate(order.static_order())}
        except CycleError:
            return None
        ends_at = {spot for spot in layout.spots.values() if spot.layer == layer + 1}
        return cls(sorted(set(edges)), columns, {spot.row for spot in ends_at})


class _Canvas:
    """Characters by line and column; lines know in which directions they continue."""

    def __init__(self) -> None:
        self._texts: dict[tuple[int, int], str] = {}
        self._bits: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)

    def box(self, left: int, top: int, width: int, words: tuple[str, str]) -> None:
        """Draws a vertex."""
        name, detail = words
        inner = width - 2
        self._write(top, left, f"┌{'─' * inner}┐")
        self._write(top + 1, left, f"│ {name:<{inner - 2}} │")
        self._write(top + 2, left, f"│ {detail:<{inner - 2}} │")
        self._write(top + 3, left, f"└{'─' * inner}┘")

    def _write(self, line: int, column: int, text: str) -> None:
        self._texts |= {(line, column + n): letter for n, letter in enumerate(text)}

    def pass_by(self, layout: GraphLayout, layer: int, left: int, width: int) -> None:
        """Draws the edges that pass a layer without ending there."""
        for ends, route in layout.routes.items():
            for spot in route[1:-1]:
                if spot.layer == layer and ends not in layout.backward:
                    self._across(spot.row * _PITCH + 1, left, left + width - 1, f"{ends}")

    def gap(self, gap: _Gap, left: int) -> None:
        """Draws the edges from one layer to the next, between the boxes."""
        right = left + gap.width - 1
        for frm, to in gap.edges:
            start, end, group = frm * _PITCH + 1, to * _PITCH + 1, f"{left}:{frm}"
            if frm == to:
                self._across(start, left, right, group)
            else:
                column = left + 2 + 2 * gap.columns[frm]
                self._across(start, left, column, group, last=_LEFT)
                self._down(column, start, end, group)
                self._across(end, column, right, group, first=_RIGHT)
            if to in gap.arrive:
                self._texts[end, right] = "►"

    def _across(
        self,
        line: int,
        left: int,
        right: int,
        group: str,
        first: int = _LEFT | _RIGHT,
        last: int = _LEFT | _RIGHT,
    ) -> None:
        for column in range(left, right + 1):
            bits = first if column == left else last if column == right else _LEFT | _RIGHT
            self._add(line, column, bits, group)

    def _down(self, column: int, start: int, end: int, group: str) -> None:
        low, high = sorted((start, end))
        for line in range(low, high + 1):
            bits = _DOWN if line == low else _UP if line == high else _UP | _DOWN
            self._add(line, column, bits, group)

    def _add(self, line: int, column: int, bits: int, group: str) -> None:
        groups = self._bits[line, column]
        groups[group] = groups.get(group, 0) | bits

    def _letter(self, groups: dict[str, int]) -> str:
        # Two lines that only cross: the vertical one is drawn over the other, without a joint.
        if _UP | _DOWN in groups.values() and _LEFT | _RIGHT in groups.values():
            return "│"
        together = 0
        for bits in groups.values():
            together |= bits
        return _LINES.get(together, "─")

    def lines(self) -> list[str]:
        """Returns the drawing."""
        cells = {place: self._letter(groups) for place, groups in self._bits.items()} | self._texts
        by_line: dict[int, dict[int, str]] = defaultdict(dict)
        for (line, column), letter in cells.items():
            by_line[line][column] = letter
        return [_join(by_line[line]) for line in range(max(by_line, default=-1) + 1)]


def _join(letters: dict[int, str]) -> str:
    return "".join(letters.get(n, " ") for n in range(max(letters, default=-1) + 1))


# --- the tree -----------------------------------------------------------------------------------


def draw_tree(shape: PipelineShape) -> str:
    """Returns the graph as a tree, with the next vertices below each vertex.

    A vertex with several incoming edges is drawn in full once, and only named elsewhere.
    """
    nexts = defaultdict(list)
    for edge in shape.edges:
        nexts[edge.frm].append(edge)
    led_to = {edge.to for edge in shape.edges}
    # First the vertices without incoming edges, then those of cycles that no edge enters.
    starts = sorted(shape.vertices, key=lambda vertex: vertex.name in led_to)
    lines: list[str] = []
    seen: set[str] = set()
    # The vertices left to draw, the next one last; without recursion, as graphs may be deep.
    rest = [(vertex.name, "", "", "") for vertex in reversed(starts)]
    while rest:
        name, indent, mark, condition = rest.pop()
        if name in seen and not mark:
            continue
        vertex = shape.vertex(name)
        assert vertex is not None
        again = name in seen and bool(nexts[name])
        words = f"  ({condition})" if condition else ""
        lines.append(f"{indent}{mark}{_tree_words(vertex, again)}{words}")
        if name in seen:
            continue
        seen.add(name)
        below = indent + {"├─► ": "│   ", "└─► ": "    "}.get(mark, "")
        edges = nexts[name]
        for n, edge in reversed(list(enumerate(edges))):
            rest.append((edge.to, below, "└─► " if n == len(edges) - 1 else "├─► ", edge.condition))
    return "\n".join(lines)


def _tree_words(vertex: ShapeVertex, again: bool) -> str:
    name, detail = _words(vertex)
    return f"{name}  (continues above)" if again else f"{name}  {detail}"


# --- an SVG picture, and Mermaid -----------------------------------------------------------------

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
        for (frm, to), route in self._layout.routes.items():
            backward = (frm, to) in self._layout.backward
            path = self._loop(route) if backward else self._curve(route)
            kind = "edge backward" if backward else "edge"
            drawn.append(f'<path class="{kind}" d="{path}" marker-end="url(#head)"/>')
            if condition := self._conditions.get((frm, to)):
                x, y = self._label(route, backward)
                drawn.append(
                    f'<text class="condition" text-anchor="end" x="{x:g}" y="{y:g}">'
                    f"{escape(condition)}</text>"
                )
        return drawn

    def _label(self, route: tuple[GridSpot, ...], backward: bool) -> tuple[float, float]:
        end = route[1] if len(route) > 1 and not backward else route[-1]
        return self._lefts[end.layer] - 14, self._middle(end.row) - 6

    def _curve(self, route: tuple[GridSpot, ...]) -> str:
        path = ""
        for here, there in pairwise(route):
            x1, y1 = self._lefts[here.layer] + self._widths[here.layer], self._middle(here.row)
            x2, y2 = self._lefts[there.layer], self._middle(there.row)
            bend = (x1 + x2) / 2
            passed = f"M{x1:g} {y1:g}" if not path else f" H{x1:g}"
            path += f"{passed} C{bend:g} {y1:g} {bend:g} {y2:g} {x2:g} {y2:g}"
        return path

    def _loop(self, route: tuple[GridSpot, ...]) -> str:
        """Returns the path of an edge that leads back: below everything."""
        first, last = route[0], route[-1]
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
