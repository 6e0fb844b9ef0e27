"""Every snippet in README and docs works: Python runs, YAML lints, commands exist."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack

import pytest
from typer.main import get_command

from ebbflow import MonoVertex, Pipeline
from ebbflow.cli.main import app
from ebbflow.connectors.registry import SINKS, SOURCES
from ebbflow.domain.outcome import Counts
from ebbflow.runtime.run_setup import RunOptionNames, RunOptions
from ebbflow.spec.lint import EXAMPLES, lint
from ebbflow.status.run_report import Summary, Watcher
from ebbflow.testing.examples import check_example, read_examples
from tests.docs.pages import BLOCKS, PAGES, ROOT, Block, Page, commands

LANGUAGES = {"python", "yaml", "toml", "console", "text", "sql", "ini", "dockerfile"}
# Programs that every machine has, in addition to ebbflow and make.
OTHERS = {"mkdir", "cd", ".", "pip", "python", "python3", "curl"}


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def test_every_block_names_a_known_language() -> None:
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []


@pytest.fixture(autouse=True)
def _remove_connectors_of_snippets() -> Iterator[None]:
    kinds = dict(SOURCES), dict(SINKS)
    yield
    for table, before in zip((SOURCES, SINKS), kinds, strict=True):
        for name in table.keys() - before.keys():
            del table[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to run in; modules imported from it are removed afterwards."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def checked_run(
    self: Pipeline | MonoVertex,
    *,
    quiet: bool | None = None,
    watcher: Watcher | None = None,
    **options: Unpack[RunOptionNames],
) -> Summary:
    """Replaces run: everything is checked and nothing is started."""
    names = [self.spec.name]
    if isinstance(self, Pipeline):
        names = [vertex.name for vertex in self.spec.vertices]
    vertices = dict.fromkeys(names, Counts())
    RunOptions.of(options)
    return Summary(self.spec.name, "drained", 0.0, vertices, vertices)


@pytest.mark.parametrize("block", [b for b in of("python") if b.name is None], ids=str)
def test_python_snippets_run(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for builder in (Pipeline, MonoVertex):
        monkeypatch.setattr(builder, "run", checked_run)
    exec(compile(block.text, str(block), "exec"), {"__name__": "snippet"})


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.name for b in p.blocks)], ids=str)
def test_files_of_a_page_fit_together(page: Page, folder: Path) -> None:
    for block in page.blocks:
        if block.name is not None:
            (folder / block.name).write_text(block.text, encoding="utf-8")
    for path in sorted(folder.iterdir()):
        if path.name.endswith(EXAMPLES):
            examples = read_examples(path)
            results = [check_example(examples, *each) for each in examples.examples]
            assert [result.differences for result in results if not result.passed] == []
        elif path.suffix == ".yaml":
            assert [str(problem) for problem in lint(path)] == []
        elif path.suffix == ".py":
            code = compile(path.read_text(encoding="utf-8"), path.name, "exec", dont_inherit=True)
            names: dict[str, Any] = {"__name__": path.stem}
            exec(code, names)
            for test in (v for n, v in names.items() if n.startswith("test_")):
                test()


@pytest.mark.parametrize("block", [b for b in of("yaml") if b.name is None], ids=str)
def test_yaml_snippets_lint(block: Block, folder: Path) -> None:
    (folder / "snippet.yaml").write_text(block.text, encoding="utf-8")
    assert [str(problem) for problem in lint(folder / "snippet.yaml")] == []


@pytest.mark.parametrize("block", of("console"), ids=str)
def test_commands_exist_with_their_options(block: Block) -> None:
    found = commands(block.text)
    assert found, "a console block has lines that begin with $"
    for command, _ in found:
        words = [w for w in shlex.split(command) if not re.fullmatch(r"[A-Z_]+=.*", w)]
        if words[0] == "ebbflow":
            parse(words[1:])
        elif words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        else:
            assert words[0] in OTHERS, command


def parse(words: list[str]) -> None:
    """Parses the words as the command line would, without running anything."""
    command = get_command(app)
    while inside := getattr(command, "commands", None):
        command = inside[words.pop(0)]
    command.make_context("ebbflow", words)


def test_the_tutorial_shows_what_lint_prints(folder: Path) -> None:
    """The tutorial shows one problem with its line and column."""
    tutorial = next(page for page in PAGES if page.path.name == "tutorial.md")
    files = {block.name: block.text for block in tutorial.blocks if block.name}
    (folder / "steps.py").write_text(files["steps.py"], encoding="utf-8")
    broken = files["pipeline.yaml"].replace("to: greet", "to: gret")
    (folder / "pipeline.yaml").write_text(broken, encoding="utf-8")
    problem = str(lint(Path("pipeline.yaml"))[0])
    assert f"```text\n{problem}\n```" in tutorial.text


def test_the_example_in_the_package_docstring_is_python() -> None:
    import ebbflow

    assert ebbflow.__doc__ is not None
    _, _, text = ebbflow.__doc__.partition("\n\n")
    example, _, _ = text.partition("\n\nThe public names")
    compile(example, "ebbflow", "exec")


def test_the_guide_lists_the_exit_codes_of_the_command() -> None:
    from ebbflow.cli.options import EXIT_CODES

    guide = (ROOT / "docs/guides/running.md").read_text(encoding="utf-8")
    section = guide.partition("## Exit codes")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (\d+) \|", section, re.MULTILINE) == [str(int(c)) for c in EXIT_CODES]
