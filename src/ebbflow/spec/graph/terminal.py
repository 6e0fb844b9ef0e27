"""The graph of a pipeline as text: boxes and lines where they fit, else a tree.

Boxes stand as ``layout`` has placed them. Between two layers each vertex has a column of its own in
which its edges change rows, chosen so that no line can be taken for another one's. Where there is
no such order, and where the boxes are too wide, the tree shows the same.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from ebbflow.spec.graph import PipelineShape, ShapeVertex
from ebbflow.spec.graph.layout import GraphLayout, lay_out

_PITCH = 5
_WHOLE = 1_000
# Details are cut before the boxes are given up.
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
    """Returns a line for each edge of which the boxes cannot show everything."""
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
    """Returns the lines of the drawing; ``None`` if lines would be taken for one another's."""
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
        """Returns the gap behind a layer; ``None`` if its columns have no order that is clear."""
        edges = []
        for ends, way in layout.routes.items():
            way = way[::-1] if ends in layout.backward else way
            steps = [(a, b) for a, b in pairwise(way) if a.layer == layer]
            edges += [] if ends in layout.backward else [(a.row, b.row) for a, b in steps]
        turning = sorted({frm for frm, to in edges if frm != to})
        order = TopologicalSorter({frm: set[int]() for frm in turning})
        for frm, to in edges:
            if to in turning and frm != to:
                # Whoever leaves from a row turns off it before another one's line comes in there.
                order.add(frm, to)
        try:
            columns = {row: n for n, row in enumerate(order.static_order())}
        except CycleError:
            return None
        ends_at = {spot for spot in layout.spots.values() if spot.layer == layer + 1}
        return cls(sorted(set(edges)), columns, {spot.row for spot in ends_at})


class _Canvas:
    """Characters by line and column; lines know in which directions they go on."""

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
        for ends, way in layout.routes.items():
            for spot in way[1:-1]:
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
        # Two lines that only cross: the upright one passes over the other, and nothing joins.
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
    """Returns the graph as a tree: what a vertex leads to stands below it.

    What several vertices lead to stands in full once, and by its name elsewhere.
    """
    nexts = defaultdict(list)
    for edge in shape.edges:
        nexts[edge.frm].append(edge)
    led_to = {edge.to for edge in shape.edges}
    # Those that nothing leads to, then those of circles that nothing leads into.
    starts = sorted(shape.vertices, key=lambda vertex: vertex.name in led_to)
    lines: list[str] = []
    seen: set[str] = set()
    # What is left to draw, the next one last; without recursion, as graphs may be deep.
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
    return f"{name}  (goes on above)" if again else f"{name}  {detail}"
