"""Pictures of the docs that tests draw: with EBBFLOW_PICTURES=1 they write them to docs/images."""

from __future__ import annotations

import io
import os
import re

from rich.console import Console
from rich.text import Text

from tests.docs.pages import ROOT

IMAGES = ROOT / "docs" / "images"
WANTED = bool(os.environ.get("EBBFLOW_PICTURES"))
_COLUMNS = 100
# A viewer would download the font.
_FONT_FACES = re.compile(r"@font-face\s*{.*?}\s*", re.DOTALL)
_COMMENT = re.compile(r" *<!--.*?-->\n?")
_LINE = re.compile(r'(<text class="\S+-r\d+")( [^>]*-line-(\d+)\)")')
_APPEAR = """    @keyframes appear { from { opacity: 0 } }
    .recorded text { animation: appear 0.2s both }
    @media (prefers-reduced-motion) { .recorded text { animation: none } }
    </style>"""


def draw_recording(title: str, text: str, pauses: dict[str, float]) -> str:
    """Returns what a terminal showed as an SVG in which the lines appear one after another.

    A line appears a moment after the one before, or after its pause if it has a text of ``pauses``.
    """
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text))
    drawn = _FONT_FACES.sub("", console.export_svg(title=title, unique_id="terminal"))
    drawn = drawn.replace("Fira Code", "DejaVu Sans Mono")
    delays, now = [], 0.0
    for line in text.splitlines():
        now += next((wait for words, wait in pauses.items() if words in line), 0.15)
        delays.append(now)

    def delayed(found: re.Match[str]) -> str:
        when = delays[min(int(found[3]), len(delays) - 1)]
        return f'{found[1]} style="animation-delay: {when:.2f}s"{found[2]}'

    drawn = _LINE.sub(delayed, drawn).replace("</style>", _APPEAR, 1)
    drawn = _COMMENT.sub("", drawn)
    return drawn.replace('class="rich-terminal"', 'class="rich-terminal recorded"', 1)


def keep(name: str, drawing: str) -> None:
    """Writes a picture of the docs, if pictures are wanted."""
    if WANTED:
        lines = [line.rstrip() for line in drawing.rstrip().splitlines()]
        (IMAGES / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
