"""``python -m bench.sandbox``: says whether this machine can run model-written code."""

import sys

from bench.sandbox import kernel, pool


def main() -> int:
    """Prints what the probe found; 0 where there is a sandbox, else 1."""
    why = pool.why_not()
    if why is not None:
        sys.stdout.write(f"no sandbox: {why}\nmodel-written code is not run here\n")
        return 1
    more = "" if kernel.filters_calls() else "; calls are not filtered on this architecture"
    sys.stdout.write(f"sandbox: user, pid, net, mount, ipc and uts namespaces{more}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
