"""Which files a worker takes next."""

from tests.sharing import next_for, workers_with_spark

WAITING = ["tests/cli/test_a.py", "tests/spark/test_b.py", "sql", "tests/cli/test_c.py"]


def test_a_worker_with_a_session_takes_files_that_need_one_first():
    assert next_for(WAITING, prefers_spark=True) == "tests/spark/test_b.py"


def test_a_worker_without_a_session_takes_the_other_files_first():
    assert next_for(WAITING[1:], prefers_spark=False) == "tests/cli/test_c.py"


def test_a_worker_takes_the_first_file_when_none_suits_it():
    assert next_for(WAITING[1:3], prefers_spark=False) == "tests/spark/test_b.py"
    assert next_for(["tests/cli/test_a.py"], prefers_spark=True) == "tests/cli/test_a.py"


def test_two_thirds_of_the_workers_rounded_up_have_a_session():
    assert [workers_with_spark(workers) for workers in (1, 2, 3, 6)] == [1, 2, 2, 4]
