"""The tree of our own modules, parsed once, and the list of those that must load without torch."""

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bench", "methods", "analysis", "slurm")

# What login nodes and the reading half use of bench. The only list of it: test_layers lets analysis
# and slurm import these and no others, test_light imports them and looks for torch.
LIGHT_BENCH = frozenset(
    {
        "bench.actions",
        "bench.calibrated",
        "bench.calibration",
        "bench.calibration_plan",
        "bench.calibration_report",
        "bench.calibration_settings",
        "bench.calibration_store",
        "bench.columns",
        "bench.command_line",
        "bench.companion",
        "bench.config",
        "bench.costs",
        "bench.disk",
        "bench.doctor",
        "bench.drawn",
        "bench.errors",
        "bench.fingerprint",
        "bench.frozen",
        "bench.gate",
        "bench.gpus",
        "bench.hub",
        "bench.identity",
        "bench.jobs",
        "bench.latency",
        "bench.lock",
        "bench.lookup",
        "bench.memory_estimate",
        "bench.meters.clock",
        "bench.planning",
        "bench.progress",
        "bench.quality",
        "bench.ranges",
        "bench.resources",
        "bench.revision",
        "bench.schema",
        "bench.session",
        "bench.stats",
        "bench.store",
        "bench.submitted",
        "bench.summary",
        "bench.surroundings",
        "bench.training_output",
        "bench.usage",
        "bench.tracking.content",
        "bench.tracking.handover",
        "bench.tracking.actions",
        "bench.tracking.settings",
        "bench.tracking.files",
        "bench.tracking.asking",
        "bench.tracking.jobs",
        "bench.tracking.process",
        "bench.tracking.online",
        "bench.weights",
    }
)


@dataclass(frozen=True)
class Import:
    """One imported module, as written: ``from a import b`` gives the names ``a`` and ``a.b``."""

    names: tuple[str, ...]
    statement: str
    line: int
    level: int
    top: bool


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    tree: ast.Module
    imports: tuple[Import, ...]

    @property
    def is_package(self):
        return self.path.name == "__init__.py"


def _imports(tree):
    top = set(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                statement = f"import {alias.name}"
                yield Import((alias.name,), statement, node.lineno, 0, node in top)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            for alias in node.names:
                statement = f"from {base} import {alias.name}"
                names = (base, f"{base}.{alias.name}")
                yield Import(names, statement, node.lineno, node.level, node in top)


def _parse(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return Module(name, path, tree, tuple(_imports(tree)))


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def modules():
    """Dotted name -> Module, of every Python file in our packages."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {module.name: module for module in map(_parse, paths)}


@pytest.fixture(scope="session")
def method_names():
    """The packages in methods/ that are methods."""
    folders = (path.parent for path in (ROOT / "methods").glob("*/__init__.py"))
    return sorted(folder.name for folder in folders if folder.name != "engine")


@pytest.fixture(scope="session")
def light_bench():
    return LIGHT_BENCH


@pytest.fixture(scope="session")
def ours(modules):
    """The modules of ours that an Import loads, packages above them left out: they hold no code."""

    def resolve(imported):
        found = [name for name in imported.names if name.split(".")[0] in PACKAGES]
        known = [name for name in found if name in modules]
        return set(known[-1:] or found[:1])

    return resolve
