"""A run that Python code starts shows nothing unless it is asked to."""

from __future__ import annotations

import pytest

from ebbflow import Pipeline


@pytest.mark.parametrize("quiet", [True, False])
def test_a_run_shows_itself_only_when_it_is_not_to_be_quiet(spark, tmp_path, capsys, quiet):
    pipeline = Pipeline("orders").source("in", generator={"messages": 3}).sink("out", log=True)

    summary = pipeline.run(quiet=quiet, drain=True, timeout="150s", state=tmp_path / "state")

    shown = capsys.readouterr()
    assert summary.vertices["out"].done == 3
    assert ("running" in shown.err) is not quiet
    end = "Adds up: 3 read by in; 3 done by out.\ndrained after"
    assert (end in shown.err) is not quiet
    assert end in repr(summary)
    assert shown.out.count("(out) id=in-") + shown.err.count("(out) id=in-") == 3
    if quiet:
        pipeline.run(drain=True, timeout="150s", state=tmp_path / "state")
        nothing = "ebbflow: Nothing was read: the sources gave all they have in an earlier run."
        assert nothing in capsys.readouterr().err
