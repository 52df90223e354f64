"""The pages of the commands: their options are the parser's, their examples say what the tool says."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from types import ModuleType

import pytest
from tools import ForkedTool, Tool
from toys import FAILS, script

from bisect_cfg.cli import cli

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = DOCS / "commands"
EVERY_PAGE = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "golden" / "README.md"]
COLUMNS = "100"
"""Of the terminal in which the examples were made."""

BLOCK = re.compile(
    r"(?P<before>[^\n]*)\n*^(?P<fence>```+)(?P<kind>\S+)(?: (?P<name>\S+))?\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
RECORDED = "<!-- recorded -->"
ENVIRONMENTS = "<!-- prepare: environments -->"
SIZES = {"9f31c04be7a2": 4.9, "27d80f6b11ce": 5.2}
"""Of environments in GiB, the one that was used last first."""


@dataclass(frozen=True)
class Example:
    """A command of a page, what it prints there, and whether it was recorded on a larger run than a test can make."""

    command: str
    printed: str
    recorded: bool


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text("utf-8")


def examples(text: str) -> list[Example]:
    found = []
    for block in BLOCK.finditer(text):
        if block["kind"] == "console":
            for part in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
                command, _, printed = part.partition("\n")
                found.append(Example(command, printed, block["before"] == RECORDED))
    return found


def files(text: str) -> dict[str, str]:
    """Files that a page shows: the name stands behind the kind of the block."""
    return {block["name"]: block["text"] for block in BLOCK.finditer(text) if block["name"]}


def steady(printed: str) -> list[str]:
    """What is the same each time: durations and the first empty lines are not."""
    text = re.sub(r"\d+(\.\d+)? s\b|\d+ min \d+ s\b", "TIME", printed).replace(sys.executable, "python")
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def program(name: str) -> ModuleType:
    """A program in docs/."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def options() -> ModuleType:
    return program("options")


def test_the_map_shows_the_phases_that_there_are():
    drawn = program("map")
    assert list(drawn.FINDS) == [phase.__name__ for phase in drawn.PHASES]
    assert drawn.PICTURE.read_text("utf-8") == drawn.picture(), "python docs/map.py draws it anew"


def test_the_map_has_each_room_in_a_phrase():
    text = (DOCS / "how-it-works.md").read_text("utf-8")
    rooms = {path.parent.name for path in (ROOT / "bisect_cfg").glob("*/__init__.py")}
    assert set(re.findall(r"^  (\w+)/ +\w", text, re.MULTILINE)) == rooms


def test_each_command_has_a_page_and_the_overview_lists_it():
    assert {path.stem for path in PAGES.glob("*.md")} - {"README"} == set(cli.commands)
    assert re.findall(r"\]\((\w+)\.md\)", page("README")) == list(cli.commands)


@pytest.mark.parametrize("name", cli.commands)
def test_a_page_lists_the_options_of_the_parser(options, name):
    text = page(name)
    assert options.with_table(text, cli.commands[name]) == text, "python docs/options.py writes it anew"
    assert all(f"## {title}" in text for title in ("Examples", "Exit status", "Options"))


@pytest.mark.parametrize("name", ["explain", "doctor", "report", "recommend", "apply", "envs", "completion"])
def test_examples_say_what_the_tool_says(tmp_path, name):
    shown = page(name)
    before, prepared, after = shown.partition(ENVIRONMENTS)
    tool = ForkedTool(tmp_path, None)
    tool.environment |= {"COLUMNS": COLUMNS, "NO_COLOR": "1"}
    for file, text in files(shown).items():
        (tmp_path / file).write_text(text)
    compare(tool, examples(before))
    if prepared:
        prepare_environments(tmp_path)
        compare(tool, examples(after))


def prepare_environments(folder: Path) -> None:
    """Two that were built once, as far as their names and their age go."""
    for age, name in enumerate(SIZES):
        environment = folder / "bisect-cfg-studies" / "environments" / name
        environment.mkdir(parents=True)
        (environment / "complete").touch()
        os.utime(environment / "complete", (1e9 - age, 1e9 - age))


def give_them_their_sizes() -> None:
    """In the process of the command: nobody wants ten GiB of a test."""
    from bisect_cfg.runner import environments

    environments.size_of = lambda folder: int(SIZES[folder.name] * 2**30)


def compare(tool: Tool, every: list[Example]) -> None:
    status = 0
    for one in every:
        if one.recorded:
            continue
        if one.command == "echo $?":
            assert one.printed == f"{status}\n"
            continue
        said = tool(*shlex.split(one.command)[1:], prepare=give_them_their_sizes)
        status = said.status
        assert steady(said.out + said.err) == steady(one.printed), one.command


@pytest.mark.training
def test_any_command_is_bisected_as_the_page_has_it(tmp_path):
    """The cause, and what is to be changed; which runs lead there is decided by how long each takes, too."""
    text = page("bisect")
    tool = ForkedTool(tmp_path, None)
    tool.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "render.py").write_text(files(text)["render.py"])
    _, example = [one for one in examples(text) if one.recorded]
    said = tool(*shlex.split(example.command)[1:])
    assert said.status == 0, said.all
    assert kinds(example.printed) - kinds(said.out) <= OF_OTHERS  # a busy machine has more to say
    told = steady(said.out)
    for line in steady(example.printed):
        if line.startswith(("3 settings", "CAUSE", "        and ", "        Your run", "FIX", "          --")):
            assert line in told, line


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, library: Path) -> ForkedTool:
    """A study of the stand-in library's, of the same story as the recorded one: bf16 dies of SIGFPE."""
    tool = ForkedTool(tmp_path_factory.mktemp("recorded") / "trl_2906", library)  # a study is called as its folder
    tool.folder.mkdir()
    script(tool.folder, f"\n    print('loading', flush=True){FAILS}")
    (tool.folder / "good.yaml").write_text("bf16: false\n")
    return tool


@pytest.mark.parametrize("name", ["bisect", "recommend", "report"])  # in this order: the others read its study
def test_recorded_examples_are_of_the_shape_that_the_tool_prints(study, name):
    """A line of another kind on the page, or one that is missing there, is seen; numbers and names are others."""
    example = next(one for one in examples(page(name)) if one.recorded)
    said = study(*shlex.split(example.command)[1:])
    assert said.status == 0, said.all
    assert kinds(said.out) - OF_OTHERS == kinds(example.printed) - OF_OTHERS


OF_OTHERS = {"Known", "Note", "Or", "Published", "This", "N  unresolved"}
"""How lines begin that only one of two runs may have: other remedies, what is simulated or known of
real settings, and that a busy machine was slow."""


def kinds(printed: str) -> set[str]:
    """How the lines begin that are no explanation of another one; headings of Markdown whole."""
    found = set()
    for line in printed.splitlines():
        if line.startswith(("**", "#", "<details>")):
            found.add(re.sub(r"\d+ trials?", "N trials", line))
        elif word := re.match(r" {0,4}(\d+  \w+|[A-Z][\w-]*)", line):
            found.add(re.sub(r"\d+", "N", word[1]))
    return found


@pytest.mark.parametrize("readme", ["README.md", "README.zh.md"])
def test_the_examples_of_a_readme_are_those_of_the_pages(readme):
    text = (ROOT / readme).read_text("utf-8")
    every = "\n".join(path.read_text("utf-8") for path in PAGES.glob("*.md"))
    for one in examples(text):
        for line in one.printed.splitlines():
            assert line.strip("\n.") in every, line


def test_the_chinese_readme_has_the_same_examples_and_links():
    ours, chinese = (ROOT / name for name in ("README.md", "README.zh.md"))
    of = {path: path.read_text("utf-8") for path in (ours, chinese)}
    assert [one["text"] for one in BLOCK.finditer(of[ours])] == [one["text"] for one in BLOCK.finditer(of[chinese])]
    links = {path: re.findall(r"\]\(([^)\s]+)\)", without_code(text)) for path, text in of.items()}
    assert links[ours][1:] == links[chinese][1:]  # each begins with a link to the other


def words(text: str) -> int:
    """Of prose: without code, and without what a program writes."""
    text = re.sub(r"<!-- options.*?<!-- end of options -->", "", text, flags=re.DOTALL)
    return len(re.sub(r"<!--.*?-->", "", without_code(text), flags=re.DOTALL).split())


def without_code(text: str) -> str:
    return re.sub(r"^(```+).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Of the headings of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", without_code(path.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", EVERY_PAGE, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(path):
    for place in re.findall(r"\]\(((?!https?:)[^)\s]+)\)", without_code(path.read_text("utf-8"))):
        name, _, heading = place.partition("#")
        other = path.parent / name if name else path
        assert other.exists(), place
        assert not heading or heading in anchors(other), place


@pytest.mark.parametrize("path", EVERY_PAGE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_can_be_read_at_once(path):
    most = {"README.md": 900, "how-it-works.md": 1500}.get(path.name, 1200)
    assert words(path.read_text("utf-8")) <= most


def test_the_pages_for_contributors_name_files_that_there_are():
    for path in DOCS.glob("*.md"):
        for name in re.findall(r"`((?:[a-z_]+/)+\w+\.(?:py|yaml)|tests/[\w/]*)`", path.read_text("utf-8")):
            assert (ROOT / name).exists() or (ROOT / "bisect_cfg" / name).exists(), f"{path.name}: {name}"


def test_the_numbers_of_the_comparison_are_those_of_its_study():
    """Of each tool its trials are rows of the study's table, rounded."""
    rows = (ROOT / "studies" / "search_cost" / "table.md").read_text("utf-8").splitlines()
    known: dict[str, set[str]] = {}
    for row in rows[2:]:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        trials = Decimal(cells[3].split()[0]).quantize(Decimal("0.1"), ROUND_HALF_UP)
        known.setdefault(cells[1].split()[0], set()).add(str(trials))
    names = {"bisect-cfg": "ours", "Optuna's TPE": "optuna"}
    page = (DOCS / "comparison.md").read_text("utf-8")
    table = [row for row in page.splitlines() if re.match(r"\| .*\d\.\d \|", row)]
    assert len(table) >= 10
    for row in table:
        name, *cells = [cell.strip(" *") for cell in row.strip("|").split("|")]
        numbers = {number for cell in cells for number in re.findall(r"(?<![\d.])\d+\.\d(?!\d| %)", cell)}
        assert numbers and numbers <= known[names.get(name, name)], row


SLOW = re.compile(r"mark\.slow|\bslow\(|map\(slow")


def test_each_slow_test_is_run_after_a_change_of_some_room():
    """By the table in CONTRIBUTING, which has every room and no place that is not there."""
    rows = re.findall(r"^\| `?([^`|]+?)`? \| `(tests/[^`|]+)` \|$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.M)
    rooms = {path.parent.name for path in (ROOT / "bisect_cfg").glob("*/__init__.py")}
    assert {room for room, _ in rows} - {"a file beside them"} == rooms
    places = {ROOT / place for _, paths in rows for place in paths.split()}
    assert all(place.exists() for place in places)
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if SLOW.search(path.read_text("utf-8"))]
    assert [path for path in files if not places & {path, *path.parents}] == []
