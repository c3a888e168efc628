"""Folders for the Hub, read back."""

import json

import pytest
import torch

import slowfast_patches
from slowfast_patches.extras.hub.card import (
    checkpoint_state,
    facts_of,
    run_of,
    start_argument,
)
from slowfast_patches.extras.hub.folder import write_hub_folder
from slowfast_patches.models.build_model import build_model
from slowfast_patches.plan.run_identity import run_identity
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.utils.errors import UserError
from tests.slowfast_patches.train.made_checkpoint import made


def test_a_flipped_bit_in_the_weights_is_noticed(published):
    _, folder = published()
    path = folder / "model.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-100] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(UserError, match=r"model\.safetensors has other weights than config\.json"):
        slowfast_patches.load_model(folder)


def test_a_convolutional_model_is_read_back_and_its_card_has_the_facts(
    multigrid_run, load_program, tmp_path, tiny_data
):
    folder, video = tmp_path / "hub", str(next((tiny_data / "test").rglob("*.mp4")))
    tool = load_program("tools/predict.py")
    assert tool.main(["--checkpoint", str(multigrid_run), "--hub", str(folder)]) == 0
    model, again = map(slowfast_patches.load_model, (multigrid_run, folder))
    assert torch.equal(again.scores(video), model.scores(video))
    assert again.class_names == model.class_names
    card = (folder / "README.md").read_text()
    result = json.loads((multigrid_run / "result.json").read_text())
    assert f"top-1 {result['top1']:.2f}" in card
    assert f"{result['iterations']} iterations" in card
    assert "| training videos | 24 |" in card
    assert "| start weights | random |" in card


def test_the_card_is_that_of_the_weights_in_the_folder(tiny_config, tmp_path):
    """The last weights have 55 % in the test, and the best, which are averages, 97 %."""
    weights = tmp_path / "start.pyth"
    torch.save({"x": torch.zeros(1)}, weights)
    keys = ("TRAIN.CHECKPOINT_FILE_PATH", weights, "MODEL.EMA_DECAY", 0.9)
    recipe = tiny_config(tmp_path / "run", *keys)
    values = {
        "cfg": recipe.text,
        "model_state": build_model(recipe).state_dict(),
        "identity": run_identity(recipe, clips=False).to_json(),
        "training": "this one",
        "evaluations": [{"iteration": 6, "top1": 44.0, "top5": 99.0}],
        "best": {"iteration": 3, "top1": 91.0, "top5": 99.0, "top1_ema": 97.0, "top5_ema": 100.0},
    }
    folder = tmp_path / "run"
    best = checkpoints.save(
        folder, made(**values, iteration=3, averaged=True, optimizer_state=None)
    )
    middle, last = (checkpoints.save(folder, made(**values, iteration=n)) for n in (6, 8))
    result = {"iterations": 8, "top1": 55.0, "top5": 66.0, "date": "2026-01-02", "training": "it"}
    result["config"] = {"TEST": {"ENABLE": True}}

    def facts(path, training="this one", **options):
        (folder / "result.json").write_text(json.dumps(result | {"training": training}))
        state = checkpoint_state(path)
        model = torch.nn.Linear(1, 1)
        return facts_of(model, options.get("recipe", recipe), state, run_of(path, state), None)

    assert facts(best)["accuracy in the validation after iteration 3"].startswith("top-1 97.00")
    assert "averaged" in facts(best)["weights"]
    assert facts(middle)["accuracy in the validation after iteration 6"].startswith("top-1 44.00")
    assert facts(last)["accuracy in the test"].startswith("top-1 55.00")
    assert facts(last)["date"] == "2026-01-02"
    other = facts(last, training="another")
    assert "accuracy in the test" not in other
    assert "not measured" in other["accuracy in the validation after iteration 8"]
    moved = tmp_path / "elsewhere" / "x.pyth"
    moved.parent.mkdir()
    moved.write_bytes(last.read_bytes())
    assert "accuracy in the test" not in facts(moved)
    assert facts(last)["start weights"].startswith("start.pyth (SHA-256 ")
    assert start_argument(checkpoint_state(last)) == " TRAIN.CHECKPOINT_FILE_PATH start.pyth"
    changed = facts(last, recipe=recipe.replaced({"DATA.SAMPLING_RATE": 7}))
    assert changed["changed since the training"] == "DATA.SAMPLING_RATE 2 there, 7 here"
    assert "before the changes" in changed["accuracy in the test"]


def test_a_folder_of_another_model_is_not_touched(published, tmp_path):
    """The same weights may be written again, and the card that the user has filled in stays."""
    model, folder = published()
    (folder / "README.md").write_text("filled in")
    checkpoint = checkpoints.last_checkpoint(tmp_path)
    write_hub_folder(model, checkpoint, folder)
    assert (folder / "README.md").read_text() == "filled in"
    with torch.no_grad():
        next(model.parameters()).add_(1)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=r"of another model\. Remove them, or"):
        write_hub_folder(model, checkpoint, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    lone = tmp_path / "lone"
    lone.mkdir()
    (lone / "README.md").write_text("of something else")
    with pytest.raises(ValueError, match=r"has README\.md of another model"):
        write_hub_folder(model, checkpoint, lone)
