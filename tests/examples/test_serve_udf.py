"""The example of functions inside Numaflow: its files are consistent."""

from pathlib import Path

from ebbflow import Datum, Response
from ebbflow.domain.outcome import DONE, Dropped, FellBack, Redeliver
from ebbflow.spec.lint import lint
from ebbflow.testing import run_map, run_sink
from examples.serve_udf import orders

FOLDER = Path(orders.__file__).parent


def test_the_pipeline_lints() -> None:
    assert [str(problem) for problem in lint(FOLDER / "pipeline.yaml")] == []


def test_every_function_of_the_pipeline_is_in_the_image() -> None:
    image = (FOLDER / "Containerfile").read_text()
    pipeline = (FOLDER / "pipeline.yaml").read_text()
    assert 'ENTRYPOINT ["ebbflow", "serve-udf"]' in image
    assert "COPY orders.py" in image
    for name in ("enrich", "Store"):
        assert f'args: ["orders:{name}"]' in pipeline
        assert hasattr(orders, name)


def test_the_functions_decide_the_outcomes() -> None:
    values = [b'{"value": %d}' % number for number in (10, 7, 8)]
    dropped, nacked, done = run_map(orders.enrich, *values)
    assert isinstance(dropped.outcome, Dropped)
    assert nacked.outcome == Redeliver(1_000, "customer not known yet", 0)
    assert (done.outcome, done.messages[0].value) == (DONE, b"order 8")
    taken, fell = run_sink(orders.Store, b"order 8", b"order 3", fallback=take_all)
    assert (taken.outcome, fell.outcome) == (DONE, FellBack())


def take_all(data: list[Datum]) -> list[Response]:
    return [Response.ok(datum.id) for datum in data]
