"""A bug in an augmentation of the user is reported with its place, also from a worker process."""

import pytest

from tests.slowfast_patches.train.test_users_errors import MODULE, OFF, assert_told, module

__all__ = ["module"]  # a fixture

pytestmark = pytest.mark.slow("trains for seconds")

KEYS = ("AUG.ENABLE", True, "AUG.CUSTOM", "shake")


@pytest.mark.parametrize("kind", ["ValueError", "KeyError", "TypeError", "OSError"])
def test_a_bug_is_told_with_its_place_and_traceback(command_line, module, kind):
    assert_told(command_line, module, kind, KEYS, "augmentation 'shake'")


def test_a_mistake_that_a_worker_raises_is_one_line(command_line, module):
    module.write_text(MODULE.format(raises="raise UserError('the file of masks is missing')"))
    status, said = command_line(module.parent / "run", *OFF, *KEYS, "DATA_LOADER.NUM_WORKERS", 1)
    assert status == 2
    assert "\nerror: the file of masks is missing\n" in f"\n{said}"
    assert "Traceback" not in said
    assert "worker process" not in said
