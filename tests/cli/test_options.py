"""Options that may stand alone: what follows them is an address, or something else."""

import pytest

from ebbflow.cli.options import complete_addresses, read_listening


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--ui spec.yaml", "--ui= spec.yaml"),
        ("--ui 9000 spec.yaml", "--ui 9000 spec.yaml"),
        ("spec.yaml --ui", "spec.yaml --ui="),
        ("spec.yaml --ui --metrics :0", "spec.yaml --ui= --metrics :0"),
        ("spec.yaml --ui 0.0.0.0:80", "spec.yaml --ui 0.0.0.0:80"),
        ("spec.yaml --ui [::1]:80", "spec.yaml --ui [::1]:80"),
        ("spec.yaml --ui=host", "spec.yaml --ui=host"),
        ("--ui ./a:b.yaml", "--ui= ./a:b.yaml"),
    ],
)
def test_only_an_address_is_read_as_the_value_of_an_option(typed, read):
    assert [*complete_addresses(typed.split())] == read.split()


def test_a_listening_option_is_off_at_the_default_or_at_an_address():
    assert [read_listening(text) for text in (None, "", "9000")] == [False, True, "9000"]
