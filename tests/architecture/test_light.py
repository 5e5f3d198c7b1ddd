"""What composes, checks, lists and plots loads without torch: it runs on a login node, at once."""

import subprocess
import sys

LEAST_MODULES = 15

PROBE = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    heavy = sorted({"torch", "transformers"} & set(sys.modules))
    if heavy:
        sys.exit(f"importing {name} loaded {heavy}")
"""


def is_light(name, light_bench):
    parts = name.split(".")
    return (
        name in light_bench
        or name in {"bench.door", "methods.contract", "methods.registry", "methods.engine.shape"}
        or parts[0] == "slurm"
        or (parts[0] == "analysis" and parts[-1] != "__main__")
        or (parts[0] == "methods" and parts[-1] == "params")
    )


def test_the_light_half_loads_without_torch(modules, light_bench, root):
    names = sorted(name for name in modules if is_light(name, light_bench))
    assert len(names) >= LEAST_MODULES
    command = [sys.executable, "-c", PROBE, *names]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_name_on_the_light_list_is_a_module(modules, light_bench):
    assert light_bench - set(modules) == set()
