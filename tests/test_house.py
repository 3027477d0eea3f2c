"""The plan of the package in docs/concepts.md, and what keeps the house easy to read.

Imports count wherever they stand, also inside functions and under TYPE_CHECKING. The exceptions
below are what is still to be mended: a test fails when one of them is, so that the lists shrink.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
# Beyond these a file usually tells two stories, and a function hides a name.
MAX_LINES = 400
MAX_FUNCTION_LINES = 60

CYCLES: list[set[str]] = []
UPWARD: set[tuple[str, str]] = set()
LONG_FILES: set[str] = set()
LONG_FUNCTIONS: set[str] = set()


def plan() -> dict[str, int]:
    """Return the line of every name in the plan of docs/concepts.md."""
    page = (ROOT / "docs" / "concepts.md").read_text()
    (block,) = re.findall(r"## The house\n.*?```\n(.*?)```", page, re.DOTALL)
    level, levels = 0, {}
    for line in block.splitlines():
        number, names = re.fullmatch(r"([ \d]{2})  (.+?)(?:  .*)?", line).groups()  # type: ignore[union-attr]
        level = int(number) if number.strip() else level
        assert not levels.keys() & set(names.split()), line
        levels |= dict.fromkeys(names.split(), level)
    return levels


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(file): file for file in sorted((ROOT / "hdvpd").rglob("*.py"))}


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text())


def imported(module: str) -> Iterator[str]:
    """Yield every module that a file imports; for `from package import name` the nearest file."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: write imports from the root, as elsewhere"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in FILES else str(node.module)


@pytest.fixture(scope="module")
def graph() -> nx.DiGraph:
    """Return the files of the package, with an edge to each that one imports."""
    graph = nx.DiGraph()
    graph.add_nodes_from(FILES)
    edges = ((file, other) for file in FILES for other in imported(file) if other in FILES)
    graph.add_edges_from(edges)
    return graph


def place(module: str) -> str:
    """Return the name in the plan, that at the package's top level; `hdvpd` holds the version."""
    return module.split(".")[1] if "." in module else "version"


def test_every_module_has_its_place():
    there = {place(module) for module in FILES}
    assert there == plan().keys(), "docs/concepts.md draws what lies at the package's top level"


def test_imports_go_down(graph):
    level = plan()
    pairs = {(place(file), place(other)) for file, other in graph.edges}
    upward = {(a, b) for a, b in pairs if a != b and level[a] <= level[b]}
    assert upward == UPWARD, "(importing, imported)"


def test_no_file_imports_itself_in_a_circle(graph):
    circles = [circle for circle in nx.strongly_connected_components(graph) if len(circle) > 1]
    assert sorted(map(sorted, circles)) == sorted(map(sorted, CYCLES))


def test_the_package_does_not_know_what_stands_beside_it():
    beside = {path.stem for path in ROOT.glob("*.py")} | {"benchmarks", "studies", "tests"}
    for file in FILES:
        assert not beside & {name.split(".")[0] for name in imported(file)}, file


def test_no_file_is_too_long():
    long = {name for name, file in FILES.items() if file.read_text().count("\n") > MAX_LINES}
    assert long == LONG_FILES


def functions(module: str) -> Iterator[tuple[str, int]]:
    """Yield name and length of every function of a file, decorators and docstring included."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield f"{module}.{node.name}", node.end_lineno - first + 1  # type: ignore[operator]


def test_no_function_is_too_long():
    all_ = [pair for module in FILES for pair in functions(module)]
    assert len(all_) > 1000
    assert {name for name, length in all_ if length > MAX_FUNCTION_LINES} == LONG_FUNCTIONS


def public(module: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield a file and the public classes, methods and functions in it."""
    yield module, tree(module)
    todo = [(module, tree(module).body)]
    while todo:
        prefix, body = todo.pop()
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name.startswith("_"):
                    continue
                yield f"{prefix}.{node.name}", node
                if isinstance(node, ast.ClassDef):
                    todo.append((f"{prefix}.{node.name}", node.body))


def test_everything_public_is_documented():
    names = [pair for module in FILES for pair in public(module)]
    assert len(names) > 800
    assert [name for name, node in names if not ast.get_docstring(node)] == []  # type: ignore[arg-type]
