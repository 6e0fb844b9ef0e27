"""The pictures that are drawn from text: well-formed, current, and without external resources."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ebbflow.cli.main import app
from tests.docs.pages import PAGES
from tests.docs.pictures import IMAGES, draw_recording, keep


@pytest.mark.parametrize("picture", sorted(IMAGES.glob("*.svg")), ids=lambda path: path.name)
def test_a_drawing_is_well_formed_and_loads_no_external_resource(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    ET.fromstring(text)
    assert [url for url in re.findall(r"https?://[^\s\"')]+", text) if "w3.org" not in url] == []
    assert "<script" not in text


def test_the_graph_of_the_tutorial_is_what_the_command_draws(tmp_path: Path) -> None:
    tutorial = next(page for page in PAGES if page.path.name == "tutorial.md")
    for block in tutorial.blocks:
        if block.name is not None:
            (tmp_path / block.name).write_text(block.text, encoding="utf-8")
    arguments = ["graph", str(tmp_path / "pipeline.yaml"), "--format", "svg"]
    drawn = CliRunner().invoke(app, arguments).stdout
    keep("tutorial.svg", drawn)
    assert (IMAGES / "tutorial.svg").read_text(encoding="utf-8").strip() == drawn.strip()


def test_a_recording_shows_the_lines_one_after_another() -> None:
    drawn = draw_recording("shell", "$ first\n\nsecond", {"second": 2.0})
    shown = re.findall(r'animation-delay: ([\d.]+)s".*?>(.*?)</text>', drawn)
    shown = [(float(when), text.replace("&#160;", " ")) for when, text in shown if text.strip()]
    assert (0.15, "$ first") in shown
    assert (2.3, "second") in shown
    assert "http" not in drawn.replace("http://www.w3.org", "").replace("https://www.w3.org", "")
