"""The docs site builds without a warning and without a network, and shows every page."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tests.docs.pages import ROOT

_LOADED = re.compile(
    r'<(?:script|img|iframe)\b[^>]*\bsrc="(https?://[^"]+)"'
    r'|<link\b[^>]*\bhref="(https?://[^"]+)"[^>]*>'
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a broken link or a missing anchor fails the build."""
    folder = tmp_path_factory.mktemp("site")
    logging.getLogger("mkdocs").setLevel(logging.WARNING)
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return folder


@pytest.fixture(scope="module")
def home(site: Path) -> str:
    return (site / "index.html").read_text(encoding="utf-8")


def test_the_site_has_every_page_of_the_docs(site: Path, home: str) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    shown = {str(page.with_suffix("")).removesuffix("README").rstrip("/") for page in pages}
    missing = {name for name in shown if not (site / name / "index.html").exists()}
    assert missing == set()
    assert "guides/connectors/kafka/" in home


def test_the_site_has_the_sections_of_the_index(home: str) -> None:
    tabs = re.findall(r'class="md-tabs__link"[^>]*>\s*([\w ]+?)\s*<', home)
    assert tabs == ["Home", "Learn", "Build", "Operate", "Integrate", "Reference", "Explain"]


def test_no_page_loads_an_external_resource(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        assert _LOADED.findall(page.read_text(encoding="utf-8")) == [], page


def test_anchors_are_the_same_as_on_a_git_forge(site: Path) -> None:
    python = (site / "reference/python/index.html").read_text(encoding="utf-8")
    assert 'id="nack"' in python
    assert 'id="nack-1"' in python


def test_links_out_of_the_docs_lead_to_the_git_forge_and_pictures_are_copied(site: Path) -> None:
    guide = (site / "guides/numaflow/index.html").read_text(encoding="utf-8")
    assert "/blob/main/examples/serve_udf/pipeline.yaml" in guide
    assert (site / "elsewhere/benchmarks/results/bench.png").exists()
