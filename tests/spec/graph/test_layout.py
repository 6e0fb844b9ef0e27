"""The positions of vertices and edges in a drawing."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow.spec.graph.layout import GridSpot, lay_out
from tests.spec.graph.shapes import shape_of
from tests.thorough import examples

names = st.integers(0, 9)
graphs = st.lists(st.tuples(names, names), min_size=1, max_size=25).map(
    lambda edges: shape_of(*dict.fromkeys(f"v{frm}>v{to}" for frm, to in edges))
)


@settings(max_examples=examples(150))
@given(graphs)
def test_edges_point_right_and_nothing_overlaps(shape):
    layout = lay_out(shape)
    assert set(layout.spots) == {vertex.name for vertex in shape.vertices}
    taken = list(layout.spots.values())
    for ends, way in layout.routes.items():
        assert (way[0], way[-1]) == (layout.spots[ends[0]], layout.spots[ends[1]])
        steps = [after.layer - before.layer for before, after in pairwise(way)]
        assert set(steps) <= ({-1} if ends in layout.backward else {1})
        taken += way[1:-1]
    assert len(taken) == len(set(taken))
    assert all(0 <= spot.row < layout.rows and 0 <= spot.layer < layout.layers for spot in taken)


@given(graphs)
def test_only_edges_that_close_a_cycle_point_left(shape):
    layout = lay_out(shape)
    for frm, to in layout.backward:
        assert frm == to or _leads(shape, to, frm)


def _leads(shape, start, end):
    reached, rest = {start}, [start]
    while rest:
        here = rest.pop()
        further = {edge.to for edge in shape.edges if edge.frm == here} - reached
        reached |= further
        rest += further
    return end in reached


def test_a_chain_of_vertices_is_laid_out_in_one_row():
    layout = lay_out(shape_of("in>a", "a>b", "b>out"))
    assert [layout.spots[name] for name in ("in", "a", "b", "out")] == [
        GridSpot(n, 0) for n in range(4)
    ]


def test_branches_that_can_be_drawn_without_crossing_do_not_cross():
    layout = lay_out(shape_of("in>b", "in>a", "a>x", "b>y"))
    above = layout.spots["a"].row < layout.spots["b"].row
    assert above == (layout.spots["x"].row < layout.spots["y"].row)


def test_long_and_wide_pipelines_are_laid_out():
    long = lay_out(shape_of(*(f"v{n}>v{n + 1}" for n in range(1_500))))
    assert (long.layers, long.rows) == (1_501, 1)
    wide = lay_out(shape_of(*(f"in>v{n}" for n in range(60))))
    assert (wide.layers, wide.rows) == (2, 60)
