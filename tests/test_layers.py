"""Who may import whom, read from the imports."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    "sim": {"streamlit", "altair", "torch", "pynvml", "pages", "gpu_probe", "app"},
    "gpu_probe": {"streamlit", "altair", "pages", "app"},
    "pages": {"torch", "pynvml", "numba", "app"},
    "app.py": {"torch", "pynvml", "numba", "numpy"},
}
SCRIPTS = {"numpy", "numba", "torch"}  # what a page's own script leaves to others
sources = [p for name in FORBIDDEN for p in (ROOT / name, *sorted((ROOT / name).rglob("*.py")))]
sources = [p for p in sources if p.is_file()]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> set[str]:
    """The packages that a file imports anywhere, also inside functions; its own left out."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").partition(".")[0])
    return names


def test_there_is_something_to_look_at():
    assert {"sim/engine.py", "app.py", "pages/ui/charts.py"} <= set(map(named, sources))


@pytest.mark.parametrize("path", sources, ids=named)
def test_imports_point_inwards(path):
    assert not imports(path) & FORBIDDEN[path.relative_to(ROOT).parts[0]]


def test_charts_know_no_streamlit():
    names = imports(ROOT / "pages" / "ui" / "charts.py")
    assert "altair" in names
    assert "streamlit" not in names


@pytest.mark.parametrize("path", sorted(ROOT.glob("pages/*.py")), ids=named)
def test_a_pages_script_computes_nothing(path):
    assert not imports(path) & SCRIPTS
    assert "streamlit" in imports(path)


def test_policies_and_costs_know_no_scenario_and_no_run():
    for path in sorted((ROOT / "sim" / "policies").glob("*.py")):
        modules = {
            node.module for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.level == 2
        }  # fmt: skip
        assert modules <= {"batch", "jit", "lines", "memory", "radix", "state", "verbs"}
