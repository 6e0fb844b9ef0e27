"""What PySpark does when it talks to its JVM, and does not do needlessly."""

from __future__ import annotations

import numpy as np
import pytest

from ebbflow.spark.jvm import OnlyNumpy


class Asked:
    def __init__(self):
        self.about = []

    def can_convert(self, value):
        self.about.append(value)
        return True


class Table(np.ndarray):
    pass


@pytest.mark.parametrize("value", [np.int64(1), np.zeros(2), np.zeros(2).view(Table)])
def test_the_converters_of_numpy_are_asked_about_its_values(value):
    assert OnlyNumpy(Asked()).can_convert(value)


def test_they_are_asked_about_nothing_else():
    asked = Asked()
    for value in (1, "text", [1], {"a": 1}, object()):
        assert not OnlyNumpy(asked).can_convert(value)
    assert asked.about == []


def test_numpy_values_reach_queries(spark):
    from pyspark.sql import functions

    row = spark.range(1).select(functions.lit(np.int64(7)), functions.lit(np.array([1, 2]))).first()
    assert tuple(row) == (7, [1, 2])
