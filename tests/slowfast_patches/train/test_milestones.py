"""After which iterations a run saves, worked out by hand."""

from multigrid import PAPER, Cycles, Shape, SteppedRate, make_schedule
from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.train.state import checkpoint_iterations, phase_ends


def test_checkpoints_come_after_each_period_of_epochs_and_each_phase():
    """Six phases of 6 iterations with 64, 32, 16, 8, 8, 8 clips: 816 clips, 6 epochs of 136."""
    policy = SteppedRate((4.0, 6.0), (0.1, 0.01))
    schedule = make_schedule(Shape(8, 16, 64), 136, policy, Cycles(PAPER.long_cycle))
    ends = {6, 12, 18, 24, 30, 36}
    assert phase_ends(schedule) == ends

    def after(epochs: int) -> frozenset[int]:
        recipe = default_recipe().replaced({"TRAIN.CHECKPOINT_PERIOD": epochs})
        return checkpoint_iterations(recipe, schedule)

    # 272 clips are passed in the fifth iteration (320), 544 are reached by the eleventh
    assert after(2) == ends | {5, 11}
    # 680 clips are reached by the first iteration of the fourth phase
    assert after(5) == ends | {19}
    assert after(100) == ends
