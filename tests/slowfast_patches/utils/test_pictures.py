"""Figures: panels, legend, and files."""

import pytest

from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.pictures import add_legend, new_figure, save_figure


def test_panels_are_in_rows_and_share_their_axes():
    figure, panels = new_figure(2, 4, 3, columns=2)
    assert len(panels) == 4
    assert tuple(figure.get_size_inches()) == (4, 3)
    places = [axes.get_subplotspec() for axes in panels]
    assert [(p.rowspan.start, p.colspan.start) for p in places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert panels[0].get_shared_x_axes().joined(panels[0], panels[2])
    assert not panels[0].get_shared_x_axes().joined(panels[0], panels[1])
    assert panels[0].get_shared_y_axes().joined(panels[0], panels[1])
    assert not panels[0].spines["top"].get_visible()
    assert all(axes.get_axisbelow() is True for axes in panels), "curves are above the grid"
    grids = [(axis.get_gridlines()[0].get_visible()) for axis in (panels[0].yaxis, panels[0].xaxis)]
    assert grids == [True, False]
    one = new_figure(2, 4, 3, ratios=[3.0, 1.0])[1]
    assert not one[0].get_shared_y_axes().joined(one[0], one[1])
    assert one[0].get_subplotspec().get_gridspec().get_height_ratios() == [3.0, 1.0]


def test_a_legend_has_the_curves_of_its_panel():
    figure, (axes,) = new_figure(1, 4, 3)
    axes.plot([0, 1], [0, 1], label="baseline")
    add_legend(figure, axes, "variants", 2)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["baseline"]
    assert legend.get_title().get_text() == "variants"
    assert not legend.get_frame_on()


def test_a_picture_is_written_to_a_new_folder_or_its_path_is_named(tmp_path):
    figure, _ = new_figure(1, 1, 1)
    save_figure(figure, tmp_path / "new" / "a.png")
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match=r"/a has no suffix .*Write .*/a\.png"):
        save_figure(figure, tmp_path / "a")
    with pytest.raises(UserError, match=r"a\.words cannot be written: "):
        save_figure(figure, tmp_path / "a.words")
