"""Importing our modules sets nothing: no environment, no logging, no torch flag, no seed, no GPU.

The libraries that we import are loaded first, by our own import statements, so that what they do on
import is not held against us.
"""

import json
import os
import subprocess
import sys

LEAST_MODULES = 25

PROBE = """
import importlib, json, logging, os, random, sys, warnings
import torch, transformers

statements, names = json.load(sys.stdin)
for statement in statements:
    exec(statement)

def state():
    root = logging.getLogger()
    return {
        "environment": dict(os.environ),
        "logging": (root.level, [repr(handler) for handler in root.handlers]),
        "warnings": len(warnings.filters),
        "folder": os.getcwd(),
        "random": hash(random.getstate()),
        "torch seed": torch.random.get_rng_state().tolist(),
        "torch threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "torch dtype": str(torch.get_default_dtype()),
        "torch gradients": torch.is_grad_enabled(),
        "torch matmul": torch.get_float32_matmul_precision(),
        "torch deterministic": torch.are_deterministic_algorithms_enabled(),
        "GPU": torch.cuda.is_initialized(),
    }

for name in names:
    before = state()
    importlib.import_module(name)
    after = state()
    changed = [key for key in before if before[key] != after[key]]
    if changed:
        sys.exit(f"importing {name} changed {changed}")
"""


def test_importing_a_module_changes_nothing(modules, ours, root):
    # A __main__ is a program, not a module to import.
    names = sorted(name for name in modules if not name.endswith("__main__"))
    assert len(names) >= LEAST_MODULES
    statements = sorted(
        {
            found.statement
            for module in modules.values()
            for found in module.imports
            if found.top and not ours(found) and "__future__" not in found.statement
        }
    )
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        input=json.dumps([statements, names]),
        cwd=root,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
