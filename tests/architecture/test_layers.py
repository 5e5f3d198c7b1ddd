"""Imports point down, by one table; they are absolute, at the top of a file, without cycles."""

import graphlib

LEAST_MODULES = 25
HEAVY = {"torch", "transformers", "accelerate", "datasets"}
# The contract must load without torch: the engine's types are for the type checker only.
TYPES_ONLY = {("methods.contract", "methods.engine")}
# The door answers before anything heavy is loaded, then imports what it runs.
# A submitted run is named on a login node, and loads torch where it runs.
IMPORTS_LATE = {"bench.door", "bench.submitted"}
BY_NAME = {"importlib.import_module", "importlib.util", "runpy"}
# These find a module by the name that conf/ gives.
FINDS_BY_NAME = {"bench.door", "bench.lookup", "methods.registry"}


def within(name, package):
    return name == package or name.startswith(package + ".")


def types_only(module, found, name):
    """Whether an import is a named one for the type checker, which never runs."""
    return not found.top and any(
        module.name == importer and within(name, package) for importer, package in TYPES_ONLY
    )


def allowed(importer, imported, light_bench):
    """Whether one of our modules may import another: the table."""
    top, *rest = importer.split(".")
    if top == "methods":
        if rest and rest[0] == "engine":
            return within(imported, "methods.engine")
        if rest == ["contract"]:
            return False
        if rest == ["registry"]:
            return imported == "methods.contract"
        own = ".".join([top, *rest[:1]])
        return imported == "methods.contract" or any(
            within(imported, package) for package in ("methods.engine", own)
        )
    if top == "bench":
        # The door gives Hydra our launcher and sweeper.
        registers = importer == "bench.door" and within(imported, "slurm")
        return registers or within(imported, "bench") or within(imported, "methods")
    return within(imported, top) or imported in light_bench


def test_every_import_of_ours_is_in_the_table(modules, ours, light_bench):
    assert len(modules) >= LEAST_MODULES
    faults = [
        f"{module.name}:{found.line}: {found.statement}"
        for module in modules.values()
        for found in module.imports
        for name in ours(found)
        if not allowed(module.name, name, light_bench) and not types_only(module, found, name)
    ]
    assert faults == [], "\n".join(faults)


def test_the_table_refuses_what_it_should(light_bench):
    refused = [
        ("methods.engine.cache", "methods.contract"),
        ("methods.contract", "methods.engine.shape"),
        ("methods.calm.method", "methods.dense.method"),
        ("methods.calm.method", "bench.stats"),
        ("bench.run", "analysis.runs"),
        ("bench.run", "slurm.launcher"),
        ("analysis.runs", "bench.run"),
        ("slurm.launcher", "bench.decoding"),
    ]
    assert [pair for pair in refused if allowed(*pair, light_bench)] == []


def test_imports_are_absolute(modules):
    faults = [
        f"{module.name}:{found.line}: {found.statement}"
        for module in modules.values()
        for found in module.imports
        if found.level
    ]
    assert faults == [], "\n".join(faults)


def test_no_import_of_ours_hides_in_a_function_or_a_condition(modules, ours):
    faults = [
        f"{module.name}:{found.line}: {found.statement}"
        for module in modules.values()
        for found in module.imports
        for name in ours(found)
        if not found.top and module.name not in IMPORTS_LATE and not types_only(module, found, name)
    ]
    assert faults == [], "\n".join(faults)


def test_only_the_named_modules_import_by_name(modules):
    users = {
        module.name
        for module in modules.values()
        for found in module.imports
        if found.statement == "import importlib" or BY_NAME & set(found.names)
    }
    assert users <= FINDS_BY_NAME


def test_imports_make_no_cycle(modules, ours):
    graph = {
        module.name: {name for found in module.imports for name in ours(found)} - {module.name}
        for module in modules.values()
    }
    # Raises CycleError, which names the cycle.
    graphlib.TopologicalSorter(graph).prepare()


def test_analysis_and_slurm_name_no_heavy_library(modules):
    faults = [
        f"{module.name}:{found.line}: {found.statement}"
        for module in modules.values()
        for found in module.imports
        if module.name.split(".")[0] in {"analysis", "slurm"}
        and found.names[0].split(".")[0] in HEAVY
    ]
    assert faults == [], "\n".join(faults)
