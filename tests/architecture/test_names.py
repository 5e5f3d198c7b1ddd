"""One noun, one spelling: no drawers, and each group of conf/ is a field of the configuration."""

import dataclasses

import bench.config

LEAST_MODULES = 25
LEAST_GROUPS = 6
DRAWERS = {"utils", "util", "common", "misc", "helper", "helpers", "base_utils"}
# Not fields: hydra/ configures Hydra itself, and study/ a sweep of it.
NOT_FIELDS = {"hydra", "study"}


def test_no_module_is_a_drawer(modules):
    assert len(modules) >= LEAST_MODULES
    assert [name for name in modules if DRAWERS & set(name.split("."))] == []


def test_each_conf_group_is_a_field_of_the_configuration(root):
    folders = [path for path in (root / "conf").iterdir() if path.is_dir()]
    groups = {folder.name for folder in folders if folder.name not in NOT_FIELDS}
    assert len(groups) >= LEAST_GROUPS
    fields = {field.name for field in dataclasses.fields(bench.config.RunConfig)}
    assert groups - fields == set()
