"""The published numbers, cell by cell: Tables 1 to 6 of Wu et al. (CVPR 2020), typed by hand.

A row has top-1 (mAP in table 6), top-5 and speed-up. "-" is a cell that the paper does not have.
The last row of table 1a is from section 4.2, that of table 4 from section 5, and TSM's are from the
abstract of "Training Kinetics in 15 Minutes" (Lin, Gan and Han, 2019).
"""

import pytest

from slowfast_patches.study.paper import EXPERIMENTS, PAPER

Cell = float | tuple[float, ...] | None

PUBLISHED = """
table1a
    baseline                                  | 75.6 | 91.9 | -
    1 long-cycle shape                        | 74.0 | 91.4 | 4.0
    2 long-cycle shapes                       | 75.5 | 92.1 | 4.3
    3 long-cycle shapes                       | 76.2 | 92.4 | 4.4
    4 long-cycle shapes (default)             | 76.4 | 92.4 | 4.5
    the default without the fine-tuning phase | 76.0 | - | -
table1b
    baseline                       | 75.6 | 91.9 | -
    1 short-cycle shape            | 74.5 | 91.6 | 4.2
    2 short-cycle shapes           | 75.5 | 92.1 | 4.3
    3 short-cycle shapes (default) | 76.4 | 92.4 | 4.5
table2a
    baseline                        | 75.4 | 91.9 | -
    multigrid                       | 76.0 | 92.4 | 4.5
    baseline, without pre-training  | 75.6 | 91.9 | -
    multigrid, without pre-training | 76.4 | 92.4 | 4.5
table2b
    16 frames, baseline  | 74.8 | 91.4 | -
    16 frames, multigrid | 75.2 | 91.9 | 4.0
    32 frames, baseline  | 75.6 | 91.9 | -
    32 frames, multigrid | 76.4 | 92.4 | 4.5
    64 frames, baseline  | 75.9 | 92.1 | -
    64 frames, multigrid | 77.6 | 93.2 | 5.5
table2c
    224², baseline  | 75.6 | 91.9 | -
    224², multigrid | 76.4 | 92.4 | 4.5
    320², baseline  | 75.1 | 91.8 | -
    320², multigrid | 76.8 | 92.8 | 6.5
table3
    I3D, baseline             | 74.4 | 91.4 | -
    I3D, baseline at 1/3.3    | 71.1 | 89.9 | 3.3
    I3D, multigrid            | 74.8 | 91.7 | 3.9
    I3D-NL, baseline          | 75.5 | 92.1 | -
    I3D-NL, baseline at 1/3.3 | 72.3 | 90.6 | 3.3
    I3D-NL, multigrid         | 75.5 | 92.4 | 3.3
table4
    baseline                      | 72.5 | 90.4 | -
    multigrid                     | 72.5 | 90.4 | 3.3
    multigrid, tested on 30 crops | 73.1 | - | -
table5
    baseline               | 60.9 ± 0.31 | 87.2 ± 0.13 | -
    baseline at 1/5.2      | 54.6 ± 0.13 | 83 ± 0.14 | 5.2
    baseline at 1/3.4      | 57.3 ± 0.13 | 84.7 ± 0.15 | 3.4
    baseline at 1/2.6      | 58.7 ± 0.06 | 85.8 ± 0.15 | 2.6
    multigrid, 1.0× epochs | 60 ± 0.31 | 86.8 ± 0.05 | 8.3
    multigrid, 1.5× epochs | 61.2 ± 0.18 | 87.4 ± 0.12 | 5.6
    multigrid, 2.0× epochs | 61.7 ± 0.20 | 87.8 ± 0.12 | 4.2
table6
    baseline               | 38 ± 0.18 | - | -
    baseline at 1/5.3      | 27.5 ± 0.15 | - | 5.3
    baseline at 1/3.5      | 31.5 ± 0.26 | - | 3.5
    baseline at 1/2.6      | 33.6 ± 0.13 | - | 2.6
    multigrid, 1.0× epochs | 36.8 ± 0.31 | - | 8.6
    multigrid, 1.5× epochs | 38.2 ± 0.06 | - | 5.7
    multigrid, 2.0× epochs | 37.4 ± 0.15 | - | 4.3
tsm
    TSM                           | 74.0 | - | -
    TSM over one earlier 3D model | - | - | 1.6
    TSM over another              | - | - | 2.9
    TSM over I3D, throughput      | - | - | 1.8
"""


def cell(text: str) -> Cell:
    if text == "-":
        return None
    mean, *std = map(float, text.split("±"))
    return (mean, *std) if std else mean


TABLES = dict[str, dict[str, tuple[Cell, ...]]]()
name = ""
for line in PUBLISHED.strip().splitlines():
    label, *cells = (part.strip() for part in line.split("|"))
    if cells:
        TABLES[name][label] = tuple(map(cell, cells))
    else:
        name = label
        TABLES[name] = {}


@pytest.mark.parametrize("name", TABLES)
def test_every_cell(name):
    metrics = (*EXPERIMENTS[name].metrics, "none")[:2]
    found = dict[str, tuple[Cell, ...]]()
    for row in EXPERIMENTS[name].rows:
        means = [row.metrics.get(metric) for metric in metrics]
        cells = [mean and (mean.mean if mean.std is None else tuple(mean)) for mean in means]
        found[row.label] = (*cells, row.speed_up)
    assert found == TABLES[name]


def test_figures_repeat_cells_of_the_tables():
    points = {
        row.label: row
        for name in ("figure1", "figure3")
        for row in EXPERIMENTS[name].rows
        if row.source
    }
    assert points.keys() == {"baseline, 1× epochs", "multigrid, 1.5× epochs"}
    for label, same in (("baseline", "baseline"), ("multigrid", "4 long-cycle shapes (default)")):
        (row,) = (row for found, row in points.items() if found.startswith(label))
        (top1, top5), speed_up = (mean.mean for mean in row.metrics.values()), row.speed_up
        assert (top1, top5, speed_up) == TABLES["table1a"][same]


def test_what_is_published_in_section_5_is_not_said_to_be_in_table_4():
    baseline, multigrid, views = EXPERIMENTS["table4"].rows
    assert baseline.source == "Table 4"
    assert multigrid.source == "Table 4; speed-up §5"
    assert (views.source, views.recipe) == ("§5", multigrid.recipe)


def test_tsm_is_not_one_of_the_papers():
    assert {*PAPER, "tsm"} == EXPERIMENTS.keys()
    assert "tsm" not in PAPER
