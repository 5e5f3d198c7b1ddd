"""A method is one package, one yaml and one test of the same name; nothing else lists methods."""

from omegaconf import OmegaConf

LEAST_METHODS = 2


def test_each_method_has_its_yaml_and_each_yaml_its_method(root, method_names):
    assert len(method_names) >= LEAST_METHODS
    yamls = sorted(path.stem for path in (root / "conf" / "method").glob("*.yaml"))
    assert yamls == method_names


def test_each_method_has_its_test_and_each_test_its_method(root, method_names):
    assert len(method_names) >= LEAST_METHODS
    tests = {path.stem.removeprefix("test_") for path in (root / "tests/methods").glob("test_*.py")}
    assert set(method_names) - tests == set()
    # A long one is divided: test_<method>_<part>.py.
    parts = {name for name in tests if any(name.startswith(f"{m}_") for m in method_names)}
    assert tests - parts == set(method_names)


def test_each_method_has_settings_and_a_decoding(modules, method_names):
    wanted = [f"methods.{name}.{part}" for name in method_names for part in ("params", "method")]
    assert [name for name in wanted if name not in modules] == []


def test_each_yaml_says_its_own_name(root):
    paths = sorted((root / "conf" / "method").glob("*.yaml"))
    assert len(paths) >= LEAST_METHODS
    names = {path.stem: OmegaConf.load(path).get("name") for path in paths}
    assert [stem for stem, name in names.items() if name != stem] == []
