"""Metrics of a recipe, and their display names."""

from slowfast_patches.config import load_recipe
from slowfast_patches.config.metrics import format_metrics, metric_names, metric_title, with_suffix


def test_one_label_is_judged_by_accuracy_and_several_by_map():
    assert metric_names(load_recipe(None)) == ("top1", "top5")
    assert metric_names(load_recipe(None, ["MODEL.NUM_CLASSES", 6])) == ("top1", "top5")
    assert metric_names(load_recipe(None, ["MODEL.NUM_CLASSES", 5])) == ("top1",)
    assert metric_names(load_recipe(None, ["DATA.MULTI_LABEL", True])) == ("map",)


def test_metrics_are_written_as_in_papers():
    assert [metric_title(name) for name in ("top1", "top5", "map")] == ["top-1", "top-5", "mAP"]
    assert format_metrics({"top1": 76.4, "top5": 92.356}) == "top-1 76.40, top-5 92.36"
    assert format_metrics({"map": 38.2, "videos": 8, "unreadable": 0}) == "mAP 38.20"
    found = {"top1": 50.0, "videos": 9, "unreadable": 2, "partly_read": 1}
    assert format_metrics(found) == (
        "top-1 50.00, without 2 of 9 videos (unreadable), 1 read in part"
    )


def test_metrics_of_averaged_weights_have_names_of_their_own_and_counts_have_not():
    counts = {"videos": 9, "unreadable": 2, "partly_read": 1}
    found = with_suffix({"top1": 50.0, "loss": 2.0} | counts, "_ema")
    assert found == {"top1_ema": 50.0, "loss_ema": 2.0} | counts
    assert [metric_title(name) for name in ("top1_ema", "class_mean", "loss_ema")] == [
        *("top-1 (EMA)", "class_mean", "loss (EMA)"),
    ]
