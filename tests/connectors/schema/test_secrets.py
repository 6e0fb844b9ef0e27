"""Values of Secrets and ConfigMaps: where they are looked for, and the error for a missing one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbflow.connectors.schema.secrets import (
    ClusterValues,
    ConfigMapKeyRef,
    SecretKeyRef,
    SecretRef,
    variable_of,
)
from ebbflow.domain.errors import SetupError
from ebbflow.domain.secrets import Secret

DOCUMENTS = {("Secret", "kafka-login"): {"password": Secret("of-the-document")}}


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """A folder as Kubernetes mounts a Secret: the key is a link into a folder with a date."""
    dated = tmp_path / "kafka-login" / "..2026_11_16"
    dated.mkdir(parents=True)
    (dated / "password").write_text("of-the-folder\n")
    (tmp_path / "kafka-login" / "..data").symlink_to(dated.name)
    (tmp_path / "kafka-login" / "password").symlink_to("..data/password")
    return tmp_path


def test_a_variable_has_priority_over_the_folder_and_the_folder_over_a_document(
    mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = ClusterValues(mounted, DOCUMENTS)
    variable = "EBBFLOW_SECRET_KAFKA_LOGIN__PASSWORD"
    assert variable_of("Secret", "kafka-login", "password") == variable
    monkeypatch.setenv(variable, "of-the-variable")
    read = [values.read("Secret", "kafka-login", "password", "it").reveal()]
    monkeypatch.delenv(variable)
    read.append(values.read("Secret", "kafka-login", "password", "it").reveal())
    (mounted / "kafka-login" / "password").unlink()
    read.append(values.read("Secret", "kafka-login", "password", "it").reveal())
    assert read == ["of-the-variable", "of-the-folder", "of-the-document"]


def test_a_file_may_be_named_after_both_the_secret_and_the_key(tmp_path: Path) -> None:
    (tmp_path / "web.tls.crt").write_text("certificate")
    assert ClusterValues(tmp_path).read("Secret", "web", "tls.crt", "it") == Secret("certificate")
    assert variable_of("ConfigMap", "web", "tls.crt") == "EBBFLOW_CONFIGMAP_WEB__TLS_CRT"


def test_all_values_of_a_mounted_secret_are_listed_without_the_links_of_kubernetes(
    mounted: Path,
) -> None:
    values = ClusterValues(mounted, {("ConfigMap", "rates"): {"eur": Secret("1.1")}})
    assert values.find_all("Secret", "kafka-login") == {"password": Secret("of-the-folder")}
    assert values.find_all("ConfigMap", "rates") == {"eur": Secret("1.1")}
    assert values.find_all("Secret", "none") is None


@pytest.mark.guarantee("secrets-are-in-no-text")
def test_a_missing_value_is_reported_with_every_place_that_was_tried(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "empty").write_text("\n")
    places = (
        "the variable EBBFLOW_SECRET_A__KEY, "
        f"the files {tmp_path}/a/key and {tmp_path}/a.key, "
        "the Secret documents of the pipeline's file"
    )
    with pytest.raises(SetupError) as caught:
        ClusterValues(tmp_path, DOCUMENTS).read("Secret", "a", "key", "the token of in")
    assert str(caught.value) == (
        f"The Secret a with the key key is not here; it must hold the token of in. "
        f"Looked at {places}."
    )
    with pytest.raises(SetupError, match="with the key empty is empty; it must hold it"):
        ClusterValues(tmp_path).read("Secret", "a", "empty", "it")
    with pytest.raises(SetupError, match=r"no folder \(name one with --secrets DIR\)"):
        ClusterValues().read("Secret", "a", "key", "it")
    assert "of-the-document" not in repr(ClusterValues(tmp_path, DOCUMENTS))


def test_an_unreadable_file_is_reported_and_not_skipped(tmp_path: Path) -> None:
    (tmp_path / "a" / "key").mkdir(parents=True)
    with pytest.raises(SetupError, match=r"a/key cannot be read: Is a directory\. Correct"):
        ClusterValues(tmp_path).find("Secret", "a", "key")


def test_references_read_from_the_places_they_were_created_with(
    mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = {"name": "kafka-login", "key": "password"}
    place = ClusterValues(mounted)
    assert SecretRef.model_validate(reference, context=place).read("it").reveal() == "of-the-folder"
    key = SecretKeyRef.model_validate(reference, context=place)
    assert key.read("it").reveal() == "of-the-folder"
    monkeypatch.setenv("EBBFLOW_SECRETS", str(mounted))
    assert SecretRef(**reference).read("it").reveal() == "of-the-folder"


def test_an_optional_value_may_be_missing(tmp_path: Path) -> None:
    values = ClusterValues(tmp_path)
    reference = {"name": "a", "key": "b"}
    optional = ConfigMapKeyRef.model_validate({**reference, "optional": True}, context=values)
    assert optional.find("the variable RATE") is None
    with pytest.raises(SetupError, match="The ConfigMap a with the key b is not here; it must"):
        ConfigMapKeyRef.model_validate(reference, context=values).find("the variable RATE")


@pytest.mark.parametrize("name", ["../a", "A", "", "a/b", "-a", "."])
def test_a_name_cannot_lead_out_of_the_folder(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a resource"):
        SecretKeyRef(name=name, key="k")


@pytest.mark.parametrize("key", ["..", "..data", "a/b", "", "a b"])
def test_a_key_cannot_lead_out_of_the_folder(key: str) -> None:
    with pytest.raises(ValueError, match="is not a key"):
        SecretKeyRef(name="a", key=key)
