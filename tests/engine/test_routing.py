import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.engine.routing import Edge, route


@pytest.mark.parametrize(
    ("operator", "values", "tags", "expected"),
    [
        # No condition, or one without values, forwards to all.
        ("or", [], [], True),
        ("or", [], ["a"], True),
        ("and", [], [], True),
        ("and", [], ["a"], True),
        ("not", [], [], True),
        ("not", [], ["a"], True),
        # or: any of the values among the tags
        ("or", ["a", "b"], ["b"], True),
        ("or", ["a", "b"], ["a", "b", "c"], True),
        ("or", ["a", "b"], ["c"], False),
        ("or", ["a", "b"], [], False),
        # and: all of the values among the tags
        ("and", ["a", "b"], ["a", "b"], True),
        ("and", ["a", "b"], ["c", "b", "a"], True),
        ("and", ["a", "b"], ["a"], False),
        ("and", ["a", "b"], ["c", "d"], False),
        ("and", ["a", "b"], [], False),
        # not: none of the values among the tags
        ("not", ["a", "b"], ["c"], True),
        ("not", ["a", "b"], [], True),
        ("not", ["a", "b"], ["a"], False),
        ("not", ["a", "b"], ["a", "c"], False),
        ("not", ["a", "b"], ["a", "b"], False),
        # A tag is a whole word, and the same word twice is one.
        ("or", ["ab"], ["a", "b"], False),
        ("and", ["a"], ["a", "a"], True),
        ("or", ["a"], ["A"], False),
    ],
)
def test_an_edge_accepts_by_the_tags_of_a_message(operator, values, tags, expected):
    assert Edge("to", operator=operator, values=frozenset(values)).accepts(tags) is expected


tags = st.lists(st.sampled_from("abcd"), max_size=3)
edges = st.builds(
    Edge,
    to=st.sampled_from(["x", "y"]),
    operator=st.sampled_from(["and", "or", "not"]),
    values=st.frozensets(st.sampled_from("abcd"), max_size=3),
)


@given(st.lists(edges, max_size=4), st.lists(tags, max_size=6))
def test_each_edge_receives_exactly_the_outputs_it_accepts_in_order(given_edges, outputs):
    routed = route(given_edges, outputs)
    assert [list(followed) for followed in routed] == [
        [index for index, these in enumerate(outputs) if edge.accepts(these)]
        for edge in given_edges
    ]


@given(st.frozensets(st.sampled_from("abcd"), min_size=1), tags)
def test_not_is_the_opposite_of_or_and_and_implies_or(values, these):
    accepts = {op: Edge("to", 1, op, values).accepts(these) for op in ("and", "or", "not")}
    assert accepts["not"] is not accepts["or"]
    assert accepts["or"] or not accepts["and"]
