"""The picture of a schedule: what its axes show."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from multigrid import Cycles, Shape, SteppedRate, Warmup, make_schedule
from slowfast_patches.plan import schedule_picture
from slowfast_patches.plan.schedule_picture import plot_plan

POLICY = SteppedRate((4.0, 6.0), (0.1, 0.01), Warmup(0.02, 1.0))


def drawn(schedule, policy, tmp_path):
    """Return the axes of the picture."""
    figures = []
    with mock.patch.object(schedule_picture, "save_figure", lambda *given: figures.append(given)):
        plot_plan(schedule, policy, tmp_path / "plan.png")
    ((figure, path),) = figures
    assert path == tmp_path / "plan.png"
    return figure


@pytest.fixture
def schedule():
    cycles = Cycles(((0.5, 0.5), (1.0, 1.0)), short_cycle=(0.5, 0.5**0.5))
    return make_schedule(Shape(8, 8, 64), 400, POLICY, cycles, bn_group_size=None)


def test_panels_show_the_shapes_and_the_rate(schedule, tmp_path):
    figure = drawn(schedule, POLICY, tmp_path)
    panels = figure.axes
    assert tuple(figure.get_size_inches()) == (9, 8)
    names = ["clips per\nmini-batch", "frames", "crop (pixels)", "learning rate"]
    assert [axes.get_ylabel() for axes in panels] == names
    for axes, side in zip(panels, ("batch", "frames", "crop"), strict=False):
        values = [getattr(phase.base_shape, side) for phase in schedule.phases]
        (steps,) = [p for p in axes.patches if hasattr(p, "get_data")]
        assert steps.get_data().values.tolist() == values
        edges = [*(phase.start for phase in schedule.phases), schedule.iterations]
        assert steps.get_data().edges.tolist() == edges
        short = {getattr(s, side) for p in schedule.phases for s in p.shapes[:-1]}
        ticks = set(axes.get_yticks())
        assert ticks == {getattr(schedule.base, side), *values, *short}
        heights = {segment[0][1] for segment in axes.collections[0].get_segments()}
        assert heights == short
    assert panels[0].get_yscale() == panels[-1].get_yscale() == "log"
    assert panels[0].yaxis.get_transform().base == 2
    expected, rates = panels[-1].lines[:2]
    x, y = rates.get_data()
    assert [schedule.at(int(i)).lr for i in x] == y.tolist()
    x, y = expected.get_data()
    for place in (0, 500, 1999):
        assert y[place] == pytest.approx(POLICY.at(6.0 * place / 2000))
        assert x[place] == pytest.approx(schedule.iterations * place / 2000)
    assert panels[-1].get_ylim()[0] == pytest.approx(1e-4 * max(rates.get_ydata()))
    assert panels[-1].get_xlim() == (0, schedule.iterations)


def test_stages_phases_and_totals_are_named(schedule, tmp_path):
    figure = drawn(schedule, POLICY, tmp_path)
    labels = {text.get_text(): text.get_position()[0] for text in figure.axes[0].texts}
    last = [phase for phase in schedule.phases if phase.fine_tuning]
    assert labels == {"LR stage 1": 0, "fine-tuning": last[0].start}
    top = figure.axes[0].transAxes.transform((0, 1))[1]
    for text in figure.axes[0].texts:
        height = text.get_transform().transform(text.get_position())[1]
        assert top < height < 1.05 * top, "just above the first panel"
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["short cycle", "baseline", "long cycle"]
    lines = [line.get_xdata()[0] for line in figure.axes[1].lines if line.get_linestyle() == ":"]
    assert lines == [phase.start for phase in schedule.phases]
    epochs = schedule.clips / schedule.num_videos
    assert figure.get_suptitle() == f"{schedule.iterations:,} iterations, {epochs:.1f} epochs"
    assert f"{schedule.baseline_iterations:,}" in figure.axes[-1].get_xlabel()


def test_a_baseline_has_no_short_cycle(tmp_path):
    schedule = make_schedule(Shape(8, 8, 64), 400, POLICY, cycles=None, bn_group_size=None)
    axes = drawn(schedule, POLICY, tmp_path).axes[0]
    assert len(axes.collections) == 0
    names = axes.get_legend_handles_labels()[1]
    assert set(names) == {"baseline", "this recipe"}
    assert np.allclose(axes.get_yticks(), [8])
