"""Our launchers and sweeper under the names by which ``conf/hydra/`` selects them.

Hydra takes a plugin only from below a package ``hydra_plugins``, by a scan that does not see an
editable install. So this module is also made known as ``hydra_plugins.skipbench_slurm``: the same
from any folder, installed or not. Not here: what the plugins do.
"""

import sys
from types import ModuleType

from hydra.core.plugins import Plugins

from slurm import cluster, launcher, studies, sweeper

_PACKAGE = "hydra_plugins.skipbench_slurm"


class LocalLauncher(launcher.LocalLauncher):
    """``hydra/launcher=local``."""

    __module__ = _PACKAGE


class SlurmLauncher(cluster.SlurmLauncher):
    """``hydra/launcher=slurm``."""

    __module__ = _PACKAGE


class ProductSweeper(sweeper.ProductSweeper):
    """``hydra/sweeper=product``."""

    __module__ = _PACKAGE


class StudySweeper(studies.StudySweeper):
    """``study=NAME``."""

    __module__ = _PACKAGE


def register() -> None:
    """Makes Hydra know them; called by the door before Hydra starts, never on import."""
    # First Hydra's own scan, so that plugins of others are found as ever.
    plugins = Plugins.instance()
    try:
        import hydra_plugins as parent
    except ModuleNotFoundError:
        parent = sys.modules["hydra_plugins"] = ModuleType("hydra_plugins")
    # As a folder of it would.
    setattr(parent, _PACKAGE.rpartition(".")[2], sys.modules[__name__])
    sys.modules[_PACKAGE] = sys.modules[__name__]
    for plugin in (LocalLauncher, SlurmLauncher, ProductSweeper, StudySweeper):
        plugins.register(plugin)
