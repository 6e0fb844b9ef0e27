"""Which images Ebbflow replaces, and how they are recognised."""

import pytest

from ebbflow.spec.bindings import BUILT_IN, find_built_in
from ebbflow.usercode.targets import resolve


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_entry_resolves_to_code(name: str) -> None:
    assert callable(resolve(BUILT_IN[name].target))


@pytest.mark.parametrize(
    "image",
    [
        "quay.io/numaio/numaflow-go/map-cat:stable",
        "quay.io/numaio/numaflow-rs/map-cat",
        "registry.example:5000/mirror/numaflow-go/map-cat:v0.11.0",
        "numaflow-java-examples/map-forward-message:test",
        "quay.io/numaproj/numaflow-python/map-forward-message@sha256:0123",
    ],
)
def test_registry_and_tag_do_not_matter(image: str) -> None:
    entry = find_built_in(image)
    assert entry is not None
    assert entry.target == "ebbflow.numaflow.image_functions:cat"


def test_the_folder_of_an_image_decides_where_sdks_differ() -> None:
    targets = {
        image: entry.target.partition(":")[2]
        for image in ("numaflow-go/map-even-odd", "numaflow-rs/map-even-odd:stable",
                      "numaflow-python/even-odd:stable", "numaflow-java/even-odd")
        if (entry := find_built_in(f"quay.io/numaio/{image}"))
    }  # fmt: skip
    assert targets == {
        "numaflow-go/map-even-odd": "even_odd",
        "numaflow-rs/map-even-odd:stable": "even_odd_keys",
        "numaflow-python/even-odd:stable": "even_odd_bytes",
        "numaflow-java/even-odd": "even_odd",
    }


@pytest.mark.parametrize(
    "image",
    [
        "map-cat",
        "my-team/map-cat:stable",
        "quay.io/numaio/numaflow-go/redis-sink:stable",
        "quay.io/numaio/numaflow-go/reduce-sum:stable",
        "quay.io/numaio/numaflow-go/map-cat/extra",
        "",
    ],
)
def test_other_images_are_not_replaced(image: str) -> None:
    assert find_built_in(image) is None
