"""Modules and functions stay small; a package's __init__ says what the package is, no more."""

import ast

LEAST_MODULES = 25
LEAST_FUNCTIONS = 100
MODULE_LINES = 300
FUNCTION_LINES = 50


def test_no_module_is_longer_than_300_lines(modules):
    assert len(modules) >= LEAST_MODULES
    lengths = {
        str(module.path): len(module.path.read_text(encoding="utf-8").splitlines())
        for module in modules.values()
    }
    assert {path: lines for path, lines in lengths.items() if lines > MODULE_LINES} == {}


def test_no_function_is_longer_than_50_lines(modules):
    lengths = {
        f"{module.path}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for module in modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(lengths) >= LEAST_FUNCTIONS
    assert {where: lines for where, lines in lengths.items() if lines > FUNCTION_LINES} == {}


def test_a_package_init_is_a_docstring_and_no_code(modules):
    packages = [module for module in modules.values() if module.is_package]
    assert len(packages) >= 8
    faults = [
        module.name
        for module in packages
        if len(module.tree.body) != 1 or ast.get_docstring(module.tree) is None
    ]
    assert faults == []
