"""The example of the guide, run on a real server, prints what the guide says."""

from __future__ import annotations

import re

from ebbflow.nats import api
from tests.docs.pages import ROOT, Page

GUIDE = Page(ROOT / "docs" / "guides" / "publishing.md")


def test_the_example_prints_what_the_guide_says(link, url, ensure, capsys):
    ensure({"name": "ORDERS", "subjects": ["orders.*"], "storage": "memory"})
    example = next(block.text for block in GUIDE.blocks if block.name == "publish.py")
    names = {"__name__": "publish"}
    exec(compile(example, "publish.py", "exec"), names)

    names["main"](url)

    expected = next(block.text for block in GUIDE.blocks if block.language == "text")
    seconds = re.compile(r"\d\.\d\d s")
    assert seconds.sub("… s", capsys.readouterr().out) == seconds.sub("… s", expected)
    link.run(api.delete(link.client, ["ORDERS"]))
