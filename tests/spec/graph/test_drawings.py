"""Drawings of pipelines: text, Mermaid, SVG."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given

from ebbflow.domain.records import from_json, to_json
from ebbflow.spec.graph import PipelineShape
from ebbflow.spec.graph.drawings import draw_mermaid, draw_svg, draw_terminal, draw_tree
from tests.spec.graph.shapes import shape_of
from tests.spec.graph.test_layout import graphs

DIAMOND = """\
┌─────┐      ┌─────────┐      ┌─────┐
│ in  │──┬──►│ a       │──┬──►│ out │
│ map │  │   │ steps:a │  │   │ map │
└─────┘  │   └─────────┘  │   └─────┘
         │                │
         │   ┌─────────┐  │
         └──►│ b       │──┘
             │ map     │
             └─────────┘

in → b: tags odd
out → a (back)"""

TREE = """\
in  map
├─► a  steps:a
│   └─► out  map
│       └─► a  (continues above)
└─► b  map  (tags odd)
    └─► out  (continues above)"""

SHAPE = shape_of("in>a", "in>b:tags odd", "a>out", "b>out", "out>a", a="steps:a")


def test_boxes_show_the_flow_and_the_lines_below_show_the_rest():
    assert draw_terminal(SHAPE, 80) == DIAMOND


def test_a_drawing_that_does_not_fit_becomes_a_tree():
    assert draw_terminal(SHAPE, 20) == draw_tree(SHAPE) == TREE


def test_an_edge_that_skips_a_layer_runs_around_its_vertices():
    drawing = draw_terminal(shape_of("in>a", "a>out", "in>out"), 80)
    assert drawing.splitlines()[1] == "│ in  │──┬──►│ a   │──┬──►│ out │"
    assert drawing.splitlines()[-1] == "         └────────────┘"


def test_details_are_cut_before_boxes_are_given_up():
    shape = shape_of("in>out", out="module:" + "x" * 60)
    assert "module:xxxxxxxxxxxxxxxx…" in draw_terminal(shape, 60)


@given(graphs)
def test_every_drawing_names_every_vertex(shape):
    for drawing in (draw_terminal(shape, 10_000), draw_tree(shape), draw_mermaid(shape)):
        assert all(vertex.name in drawing for vertex in shape.vertices)
    ElementTree.fromstring(draw_svg(shape))


@pytest.mark.parametrize("draw", [draw_svg, draw_mermaid], ids=["svg", "mermaid"])
def test_a_detail_cannot_break_out_of_its_drawing(draw):
    shape = shape_of("in>out:tags <a>", out='<script>"x"</script>')
    drawing = draw(shape)
    if draw is draw_svg:
        assert "<script" not in drawing
        assert "&lt;script&gt;" in drawing
        ElementTree.fromstring(drawing)
    else:
        assert "#quot;x#quot;" in drawing


def test_mermaid_shows_kinds_partitions_and_conditions():
    shape = shape_of("in>out:tags a")
    source, sink = shape.vertices
    shape = replace(
        shape, vertices=(replace(source, kind="source"), replace(sink, kind="sink", partitions=3))
    )
    assert draw_mermaid(shape).splitlines() == [
        "flowchart LR",
        '  v0(["in"])',
        '  v1[["out x3"]]',
        '  v0 -->|"tags a"| v1',
    ]


def test_a_shape_survives_a_round_trip():
    assert from_json(PipelineShape, to_json(SHAPE)) == SHAPE
