"""A resumed training with boxes on three processes equals an uninterrupted one."""

import pytest

from tests.slowfast_patches.extras.detection.test_training import KEYS
from tests.slowfast_patches.train.test_gradient_layout import PROCESSES, recipes_of, resume


@pytest.mark.slow("starts processes")
def test_three_processes_resume_as_if_uninterrupted(run_ranks, tiny_config, tmp_path):
    run_ranks(PROCESSES, resume, recipes_of(tiny_config, tmp_path, {"detection": KEYS}))
