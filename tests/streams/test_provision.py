"""The lists of permissions: everything of one pipeline, nothing of any other."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.streams.catalogue import PipelineStreams, list_configs
from ebbflow.streams.names import Names
from ebbflow.streams.provision import (
    Groups,
    Permissions,
    VertexStreams,
    derive_permissions,
    explain_unknown,
)

LABEL = st.from_regex(r"[a-z]([-a-z0-9]{0,4}[a-z0-9])?", fullmatch=True)
VERTICES = st.lists(
    st.builds(VertexStreams, LABEL, st.integers(1, 3), *([st.booleans()] * 5)),
    min_size=1,
    max_size=4,
    unique_by=lambda vertex: vertex.vertex,
)


def matches(pattern: str, subject: str) -> bool:
    """Matches as a NATS server does."""
    wanted, found = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        return len(found) >= len(wanted) and matches(
            ".".join(wanted[:-1]), ".".join(found[: len(wanted) - 1])
        )
    return len(wanted) == len(found) and all(
        one in ("*", other) for one, other in zip(wanted, found, strict=True)
    )


def subjects(groups: Groups) -> list[str]:
    return list(chain.from_iterable(groups.values()))


def concrete(allowed: Permissions) -> set[str]:
    """Subjects that a pipeline with these permissions may use, without wildcards."""
    patterns = subjects(allowed.publish) + subjects(allowed.subscribe)
    return {pattern.replace("*", "made-up").replace(">", "made.up") for pattern in patterns}


@pytest.mark.guarantee("printed-permissions-are-enough")
@given(LABEL, LABEL, VERTICES, VERTICES)
def test_no_pipeline_may_access_anything_of_another(one, other, its, others):
    if one == other:
        return
    mine = derive_permissions(Names(one), its, f"answers-{one}")
    theirs = derive_permissions(Names(other), others, f"answers-{other}")
    patterns = subjects(mine.publish) + subjects(mine.subscribe)
    common = {"$JS.API.STREAM.NAMES"}
    for subject in concrete(theirs) - common:
        assert not [pattern for pattern in patterns if matches(pattern, subject)]


@given(LABEL, VERTICES)
def test_wildcards_appear_only_after_the_name_of_the_pipeline(name, vertices):
    allowed = derive_permissions(Names(name), vertices, "answers")
    for pattern in subjects(allowed.publish) + subjects(allowed.subscribe):
        fixed = pattern.split("*")[0].split(">")[0]
        assert (
            pattern == fixed
            or f"ebb_{name}" in fixed
            or f"ebb.{name}." in fixed
            or pattern == "$KV.answers.>"
            or "KV_answers" in fixed
        )


@given(LABEL, VERTICES, st.sampled_from([None, "answers"]), st.booleans())
def test_the_streams_that_are_created_are_those_that_may_be_created(name, vertices, bucket, audit):
    table = "{}" if audit else None
    configs = list_configs(PipelineStreams(Names(name), vertices, bucket, 1, audit_table=table))
    allowed = subjects(derive_permissions(Names(name), vertices, bucket, audit).publish)
    made = {subject for subject in allowed if subject.startswith("$JS.API.STREAM.CREATE.")}
    assert made == {f"$JS.API.STREAM.CREATE.{config['name']}" for config in configs}
    assert len(made) == len(configs)


@given(LABEL, VERTICES)
def test_nothing_is_listed_twice(name, vertices):
    allowed = derive_permissions(Names(name), vertices, "answers")
    for groups in (allowed.publish, allowed.subscribe):
        assert len(subjects(groups)) == len(set(subjects(groups)))
        assert all(groups.values())


def test_a_pipeline_may_not_access_one_whose_name_begins_with_its_own():
    allowed = derive_permissions(
        Names("a"), [VertexStreams("b", 1, True), VertexStreams("b-c", 1, True)]
    )
    patterns = subjects(allowed.publish) + subjects(allowed.subscribe)
    for subject in (
        "ebb.a-b.vertex.b.0.in",
        "ebb.b.control",
        "$JS.API.STREAM.INFO.ebb_a-b_b_0",
        "$JS.API.STREAM.DELETE.ebb_a_b_1",
        "$JS.API.STREAM.PURGE.KV_ebb_a_positions",
        "$JS.API.CONSUMER.CREATE.ebb_a-b_c_0.x",
        "$JS.API.CONSUMER.CREATE.ebb_a-b_deadletters.x",
        "ebb.a-b.status.now",
        "_INBOX.x",
        "_INBOX_ebb_a-b.x",
        "$KV.ebb_a-b_positions.b.0",
        "$JS.ACK.ebb_a_b_0.x.1.1.1.1.0",
        "$SYS.REQ.SERVER.PING",
    ):
        assert not [pattern for pattern in patterns if matches(pattern, subject)], subject


def test_permissions_for_parts_that_a_pipeline_lacks_are_not_listed():
    plain = subjects(derive_permissions(Names("p"), [VertexStreams("in", 1, False)]).publish)
    assert not [subject for subject in plain if "returned" in subject]
    assert not [subject for subject in plain if "ebb_p_in_0." in subject or ".0.in" in subject]
    assert [subject for subject in plain if subject.startswith("$KV.")] == [
        "$KV.ebb_p_positions.in.0",
        "$KV.ebb_p_positions.paused",
        "$KV.ebb_p_positions.spec",
    ]
    vertices = [VertexStreams("in", 1, False, returns=True), VertexStreams("out", 1, False)]
    whole = subjects(derive_permissions(Names("p"), vertices[:1], "answers").publish)
    assert set(whole) - set(plain) == {
        "$JS.API.CONSUMER.CREATE.KV_answers.*",
        "$JS.API.CONSUMER.DELETE.KV_answers.*",
        "$JS.API.CONSUMER.MSG.NEXT.KV_answers.*",
        "$JS.API.DIRECT.GET.KV_answers",
        "$JS.API.DIRECT.GET.ebb_p_returned",
        "$JS.API.STREAM.CREATE.KV_answers",
        "$JS.API.STREAM.CREATE.ebb_p_returned",
        "$JS.API.STREAM.DELETE.ebb_p_returned",
        "$JS.API.STREAM.INFO.KV_answers",
        "$JS.API.STREAM.INFO.ebb_p_returned",
        "$JS.API.STREAM.MSG.GET.KV_answers",
        "$JS.API.STREAM.MSG.GET.ebb_p_returned",
        "$JS.API.STREAM.PURGE.ebb_p_returned",
        "$JS.API.STREAM.UPDATE.KV_answers",
        "$JS.API.STREAM.UPDATE.ebb_p_returned",
        "$KV.answers.>",
        "ebb.p.returned.in.0",
    }
    both = subjects(derive_permissions(Names("p"), vertices, "answers").publish)
    assert [subject for subject in both if subject.startswith("ebb.p.returned")] == [
        "ebb.p.returned.in.0"
    ]


def test_every_vertex_of_a_serving_pipeline_may_publish_its_trail():
    serving = [VertexStreams("in", 1, True, serves=True), VertexStreams("out", 2, True)]
    silent = [VertexStreams("in", 1, True), VertexStreams("out", 2, True)]
    more, less = (
        subjects(derive_permissions(Names("p"), each).publish) for each in (serving, silent)
    )
    assert set(less) < set(more)
    assert set(more) - set(less) == {
        "$JS.API.CONSUMER.CREATE.ebb_p_trail.*",
        "$JS.API.CONSUMER.DELETE.ebb_p_trail.*",
        "$JS.API.CONSUMER.MSG.NEXT.ebb_p_trail.*",
        "$JS.API.STREAM.CREATE.ebb_p_trail",
        "$JS.API.STREAM.DELETE.ebb_p_trail",
        "$JS.API.STREAM.INFO.ebb_p_trail",
        "$JS.API.STREAM.UPDATE.ebb_p_trail",
        "ebb.p.trail.in",
        "ebb.p.trail.out",
    }


def test_a_batched_vertex_may_also_read_its_streams_directly():
    batched = derive_permissions(Names("p"), [VertexStreams("out", 1, True, batched=True)]).publish
    followed = derive_permissions(Names("p"), [VertexStreams("out", 1, True)]).publish
    purpose = "read its buffers and redeliveries, and purge finished messages"
    assert sorted(subject for subject in batched[purpose] if "CONSUMER" not in subject) == [
        "$JS.API.DIRECT.GET.ebb_p_out_0",
        "$JS.API.DIRECT.GET.ebb_p_out_0_redelivery",
        "$JS.API.STREAM.MSG.GET.ebb_p_out_0",
        "$JS.API.STREAM.MSG.GET.ebb_p_out_0_redelivery",
        "$JS.API.STREAM.PURGE.ebb_p_out_0",
        "$JS.API.STREAM.PURGE.ebb_p_out_0_redelivery",
    ]
    letters = "read, replay and purge its dead letters"
    assert set(followed[letters]) - set(batched[letters]) == {
        "$JS.API.STREAM.MSG.GET.ebb_p_out_0_redelivery"
    }
    assert {k: v for k, v in batched.items() if k not in (purpose, letters)} == {
        k: v for k, v in followed.items() if k not in (purpose, letters)
    }


def test_a_pipeline_that_has_only_begun_to_start_is_not_called_unknown():
    begun = Names("shop").dead_letters
    assert "has not started here completely" in explain_unknown("shop", [begun]).what
    assert explain_unknown("shpo", [begun]).what == "No pipeline 'shpo' has run here."
