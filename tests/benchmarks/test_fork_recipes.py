"""Tests of the program that tells which recipes of a PySlowFast checkout train."""

import fork_recipes as tool
import pytest

# As in a later release: keys that 1.0 does not have, numbers that YAML takes for text, and lists as
# text.
MVIT = """
TRAIN: {ENABLE: True, DATASET: kinetics, BATCH_SIZE: 16}
DATA: {NUM_FRAMES: 16, SAMPLING_RATE: 4, TRAIN_CROP_SIZE: 224, TRAIN_JITTER_SCALES: [256, 320]}
MVIT: {PATCH_STRIDE: "(2, 4, 4)", DEPTH: 4, POOL_KV_STRIDE_ADAPTIVE: [1, 8, 8],
       POOL_Q_STRIDE: [[1, 1, 2, 2], [2, 1, 2, 2], [3, 1, 2, 2]]}
SOLVER: {BASE_LR: 1e-4, LR_POLICY: cosine, MAX_EPOCH: 200, WARMUP_EPOCHS: 30.0,
         WARMUP_START_LR: 1e-6, COSINE_END_LR: 1e-6}
MODEL: {ARCH: mvit, MODEL_NAME: MViT}
NUM_GPUS: 8
"""


@pytest.mark.parametrize(
    ("old", "new", "group"),
    [
        ("", "", "trains"),
        ("ENABLE: True", "ENABLE: False", "only tests: TRAIN.ENABLE False"),
        ("DATASET: kinetics", "DATASET: ptvkinetics", "refused: TRAIN.DATASET ptvkinetics"),
        ("NUM_FRAMES: 16", "NUM_FRAMES: 2", "refused: the schedule"),
        ("BATCH_SIZE: 16", "BATCH_SIZE: 12", "PySlowFast: TRAIN.BATCH_SIZE is no multiple of NUM_"),
        ("MODEL:", "MODEL: {", "PySlowFast: cannot be loaded"),
    ],
)
def test_a_recipe_is_counted_by_what_happens_to_it(old, new, group, tmp_path, capsys):
    (tmp_path / "Kinetics").mkdir()
    (tmp_path / "Kinetics" / "MVIT.yaml").write_text(MVIT.replace(old, new) if old else MVIT)
    outcome = next(tool.judge_all(tmp_path, []))
    assert outcome.name == "Kinetics/MVIT.yaml"
    assert outcome.group.startswith(group)
    assert tool.main([str(tmp_path)]) == 0
    assert outcome.group in capsys.readouterr().out


def test_the_list_has_the_shapes_of_the_schedule_and_keys_can_be_replaced(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text(MVIT.replace("kinetics", "ptvkinetics"))
    assert tool.main([str(tmp_path), "--list", "TRAIN.DATASET", "kinetics"]) == 0
    shown = capsys.readouterr().out
    assert "trains" in shown
    assert "16×16×224²" in shown
    assert "128×4×160²" in shown
