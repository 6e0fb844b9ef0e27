"""A model that scores applications for credit, as a columnar map.

A call gets all requests that have arrived together, and the model is asked once about all of them:
the more callers there are, the less each of them costs.
"""

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

FEATURES = ("income", "debt", "years")


@dataclass(frozen=True)
class Model:
    """A logistic regression with the interface of scikit-learn's, which may stand in its place."""

    coef: npt.NDArray[np.float64]
    intercept: float

    def predict_proba(self, features: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        good = 1 / (1 + np.exp(-(features @ self.coef + self.intercept)))
        return np.stack([1 - good, good], axis=1)


def load_model() -> Model:
    """In place of reading one that was trained elsewhere, say with ``joblib.load``."""
    return Model(np.array([0.04, -0.09, 0.2]), -1.0)


class Score:
    """Answers ``{"income": 60, "debt": 5, "years": 4}`` with a score and a decision."""

    def open(self) -> None:
        """Runs once in each worker, before its first call: the place to load a model."""
        self.model = load_model()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        asked = [read(value) for value in batch.column("value").to_pylist()]
        features = [numbers for numbers in asked if isinstance(numbers, list)]
        scores = iter(self.model.predict_proba(np.array(features))[:, 1] if features else ())
        answers = [
            decide(float(next(scores)), len(asked))
            if isinstance(numbers, list)
            else {"error": numbers}
            for numbers in asked
        ]
        values = [json.dumps(answer).encode() for answer in answers]
        return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


def read(value: bytes) -> list[float] | str:
    """Returns the features of one application, or what is wrong with it."""
    try:
        application = json.loads(value)
        return [float(application[name]) for name in FEATURES]
    except KeyError as missing:
        return f"{missing.args[0]} is missing"
    except (TypeError, ValueError):
        return f"write a JSON object with {', '.join(FEATURES)}, all of them numbers"


def decide(score: float, together: int) -> dict[str, object]:
    """Returns the answer; ``together`` is how many requests the model was asked about at once."""
    return {"score": round(score, 3), "approved": score >= 0.5, "together": together}
