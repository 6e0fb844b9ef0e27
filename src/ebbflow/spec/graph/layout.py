"""The place of each vertex in a drawing: its layer and its row.

No edge connects vertices of one layer; edges lead from left to right. Within a layer vertices are
ordered so that few edges cross, and placed near the vertices they are connected to. An edge that
passes a layer has its own place there, so that it runs around vertices. Edges that close a cycle
are reversed for all this. The layout depends on the shape alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from ebbflow.domain.records import to_plain
from ebbflow.spec.graph import PipelineShape

_SWEEPS = 8

Ends = tuple[str, str]
"""The vertices that an edge joins, as the spec names them."""


@dataclass(frozen=True, slots=True)
class GridSpot:
    """A place in the drawing: layers count from the left, rows from above, both from 0."""

    layer: int
    row: int


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """The place of every vertex, and of every edge the spots that it runs through.

    ``routes`` run from one end to the other; those in ``backward`` run against the direction of all
    others, because they close a cycle.
    """

    spots: dict[str, GridSpot]
    routes: dict[Ends, tuple[GridSpot, ...]]
    backward: frozenset[Ends]

    @property
    def layers(self) -> int:
        """The number of layers."""
        return 1 + max((spot.layer for spot in self.spots.values()), default=-1)

    @property
    def rows(self) -> int:
        """The number of rows."""
        everything = [*self.spots.values(), *(s for route in self.routes.values() for s in route)]
        return 1 + max((spot.row for spot in everything), default=-1)

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON has it."""
        return {
            "layers": self.layers,
            "rows": self.rows,
            "vertices": {name: to_plain(spot) for name, spot in self.spots.items()},
            "edges": [
                {
                    "from": frm,
                    "to": to,
                    "backward": (frm, to) in self.backward,
                    "through": [*map(to_plain, route)],
                }
                for (frm, to), route in self.routes.items()
            ],
        }


def lay_out(shape: PipelineShape) -> GraphLayout:
    """Returns the layout of a pipeline."""
    names = [vertex.name for vertex in shape.vertices]
    edges = list(dict.fromkeys((e.frm, e.to) for e in shape.edges if e.frm != e.to))
    backward = _find_backward(names, edges)
    forward = {ends: ends[::-1] if ends in backward else ends for ends in edges}
    layers = _assign_layers(names, forward.values())
    grid = _Grid.of(names, layers, forward)
    grid.order()
    rows = grid.assign_rows()
    spots = {name: GridSpot(layers[name], rows[name]) for name in names}
    routes = {ends: _route(ends, backward, grid, rows) for ends in edges}
    loops = {(e.frm, e.to): (spots[e.frm],) for e in shape.edges if e.frm == e.to}
    return GraphLayout(spots, routes | loops, frozenset(backward) | frozenset(loops))


def _find_backward(names: Sequence[str], edges: Iterable[Ends]) -> set[Ends]:
    """Returns the edges that close cycles, searching from the vertices that are named first."""
    nexts: dict[str, list[str]] = defaultdict(list)
    for frm, to in edges:
        nexts[frm].append(to)
    backward: set[Ends] = set()
    done: set[str] = set()
    for start in names:
        # Without recursion: a pipeline may be longer than Python's stack is deep.
        path, unvisited = [start], [iter(nexts[start])]
        while path and start not in done:
            following = next(unvisited[-1], None)
            if following is None:
                done.add(path.pop())
                unvisited.pop()
            elif following in path:
                backward.add((path[-1], following))
            elif following not in done:
                path.append(following)
                unvisited.append(iter(nexts[following]))
    return backward


def _assign_layers(names: Sequence[str], edges: Iterable[Ends]) -> dict[str, int]:
    """Returns for each vertex the length of the longest path to it."""
    nexts: dict[str, list[str]] = defaultdict(list)
    missing = dict.fromkeys(names, 0)
    for frm, to in edges:
        nexts[frm].append(to)
        missing[to] += 1
    layers = dict.fromkeys(names, 0)
    ready = [name for name in names if not missing[name]]
    for name in ready:  # grows while it is read
        for to in nexts[name]:
            layers[to] = max(layers[to], layers[name] + 1)
            missing[to] -= 1
            if not missing[to]:
                ready.append(to)
    return layers


def _route(
    ends: Ends, backward: set[Ends], grid: _Grid, rows: dict[str, int]
) -> tuple[GridSpot, ...]:
    route = tuple(GridSpot(grid.layer_of[cell], rows[cell]) for cell in grid.paths[ends])
    return route[::-1] if ends in backward else route


@dataclass
class _Grid:
    """Cells by layer: vertices, and the places of edges that pass. ``paths`` connect them."""

    layers: list[list[str]]
    layer_of: dict[str, int]
    paths: dict[Ends, list[str]]
    before: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    after: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, names: Sequence[str], layers: dict[str, int], edges: dict[Ends, Ends]) -> _Grid:
        """Returns the vertices in the order of the spec, with places for edges that pass."""
        grid = cls([[] for _ in range(1 + max(layers.values(), default=-1))], dict(layers), {})
        for name in names:
            grid.layers[layers[name]].append(name)
        for written, (frm, to) in edges.items():
            passed = ["\0".join((*written, str(n))) for n in range(layers[frm] + 1, layers[to])]
            for layer, cell in enumerate(passed, layers[frm] + 1):
                grid.layers[layer].append(cell)
                grid.layer_of[cell] = layer
            path = grid.paths[written] = [frm, *passed, to]
            for left, right in pairwise(path):
                grid.after[left].append(right)
                grid.before[right].append(left)
        return grid

    def order(self) -> None:
        """Orders cells by the middle of their neighbours, back and forth; keeps the best order."""
        best, fewest = [list(layer) for layer in self.layers], self._count_crossings()
        for sweep in range(_SWEEPS):
            rightward = sweep % 2 == 0
            neighbours = self.before if rightward else self.after
            place = self._number_cells()
            for layer in self.layers if rightward else reversed(self.layers):
                layer.sort(key=partial(_rank, neighbours, place))
                place |= {cell: number for number, cell in enumerate(layer)}
            crossings = self._count_crossings()
            if crossings < fewest:
                best, fewest = [list(layer) for layer in self.layers], crossings
        self.layers = best

    def _number_cells(self) -> dict[str, int]:
        """Returns the place of every cell in its layer."""
        return {cell: number for cells in self.layers for number, cell in enumerate(cells)}

    def _count_crossings(self) -> int:
        place = self._number_cells()
        crossings = 0
        for layer in self.layers:
            ends = sorted((place[a], place[b]) for a in layer for b in self.after[a])
            crossings += sum(
                low[0] < high[0] and low[1] > high[1]
                for n, low in enumerate(ends)
                for high in ends[n + 1 :]
            )
        return crossings

    def assign_rows(self) -> dict[str, int]:
        """Returns rows that keep the order and bring connected cells to the same height."""
        heights = {c: float(n) for layer in self.layers for n, c in enumerate(layer)}
        for sweep in range(_SWEEPS):
            rightward = sweep % 2 == 0
            neighbours = self.before if rightward else self.after
            for layer in self.layers if rightward else reversed(self.layers):
                wishes = [
                    median(heights[o] for o in neighbours[cell]) if neighbours[cell] else None
                    for cell in layer
                ]
                placed = _spread(
                    [w if w is not None else heights[c] for c, w in zip(layer, wishes, strict=True)]
                )
                heights |= dict(zip(layer, placed, strict=True))
        lowest = min(heights.values(), default=0.0)
        rows: dict[str, int] = {}
        for layer in self.layers:
            last = -1
            for cell in layer:
                last = rows[cell] = max(last + 1, round(heights[cell] - lowest))
        numbers = {row: number for number, row in enumerate(sorted(set(rows.values())))}
        return {cell: numbers[row] for cell, row in rows.items()}  # without empty rows


def _rank(neighbours: dict[str, list[str]], place: dict[str, int], cell: str) -> tuple[float, int]:
    """Returns the sort key of a cell: the middle of its neighbours, else its own place."""
    near = [place[other] for other in neighbours[cell]]
    return (sum(near) / len(near) if near else place[cell]), place[cell]


def _spread(wishes: Sequence[float]) -> list[float]:
    """Returns heights near the wishes, in the same order and at least one apart."""
    down: list[float] = []
    for wish in wishes:
        down.append(max(wish, down[-1] + 1) if down else wish)
    up: list[float] = []
    for wish in reversed(wishes):
        up.append(min(wish, up[-1] - 1) if up else wish)
    return [(a + b) / 2 for a, b in zip(down, reversed(up), strict=True)]
