"""Every page can be reached from the README, and what pages and code point to is there."""

import re
import tomllib
from pathlib import Path

import pytest

from hdvpd.config import Config
from hdvpd.config.experiments import load_config

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGE_IN_CODE = re.compile(r"docs/[\w./-]+\.md")


def links(page: Path) -> list[tuple[Path, str]]:
    """Return file and anchor of every link that stays in the repository."""
    found = []
    for target in LINK.findall(page.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            file, _, anchor = target.partition("#")
            found.append(((page.parent / file).resolve() if file else page, anchor))
    return found


def anchors(page: Path) -> set[str]:
    """Return the anchors that the headings of a page have on the usual hosts."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for file, anchor in links(page):
        assert file.exists(), file
        assert not anchor or anchor in anchors(file), f"{file.name} has no heading '#{anchor}'"


def test_every_page_is_reached_from_the_readme():
    reached, todo = set(), [PAGES[0]]
    while todo:
        page = todo.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            todo += [file for file, _ in links(page)]
    assert set(PAGES) <= reached


def test_pages_named_in_the_code_exist():
    files = [file for folder in ("hdvpd", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
    files += (ROOT / "configs").glob("*.toml")
    named = {(file, page) for file in files for page in PAGE_IN_CODE.findall(file.read_text())}
    assert len(named) > 10
    assert [pair for pair in named if not (ROOT / pair[1]).exists()] == []


def test_tests_named_in_pages_exist():
    files = [*(ROOT / "tests").glob("*.py")]
    defined = {name for f in files for name in re.findall(r"def (test_\w+)", f.read_text())}
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    assert len(named) > 60
    assert named - defined - {file.stem for file in files} == set()


def test_additions_to_the_papers_are_off_unless_an_experiment_says_so():
    page = (ROOT / "docs" / "concepts.md").read_text()
    rows = re.findall(r"^\| `(\w+)\.(\w+) = (\S+)` \|", page, re.MULTILINE)
    assert len(rows) >= 3
    experiments = {path.stem: load_config(path.stem) for path in (ROOT / "configs").glob("*.toml")}
    for section, key, value in rows:
        on = tomllib.loads(f"value = {value}")["value"]
        default = getattr(getattr(Config(), section), key)
        assert default != on, key
        for name, config in experiments.items():
            expected = default if name in ("paper", "debug") else on
            assert getattr(getattr(config, section), key) == expected, (name, key)
