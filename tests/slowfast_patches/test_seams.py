"""Functions that extras and the core register by name."""

import gc
from pathlib import Path

from slowfast_patches import extras
from slowfast_patches.registry import import_built_in
from slowfast_patches.seams import Lazy, import_extras


def test_each_function_that_is_registered_by_name_exists():
    """A name in a text is found neither by mypy nor by an import of all modules."""
    import_built_in()
    import_extras()
    gc.unfreeze()  # what was imported before the tests
    made = [found for found in gc.get_objects() if type(found) is Lazy]
    assert len(made) >= len(list(Path(extras.__file__).parent.glob("*/__init__.py")))
    for lazy in made:
        assert callable(lazy.load()), lazy


def test_a_lazy_method_is_called_with_its_arguments():
    assert Lazy("builtins:dict.fromkeys")("ab", 1) == {"a": 1, "b": 1}
