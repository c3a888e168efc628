"""Numbers, lists and tables as text, worked out by hand."""

import pytest

from slowfast_patches.utils.tables import (
    Mean,
    format_count,
    format_flops,
    format_list,
    format_table,
    mean_of,
    shorten_list,
)


def test_means_and_standard_deviations():
    assert mean_of([]) is None
    assert mean_of([3]) == Mean(3, None)
    assert mean_of(iter([1, 2, 3])) == (2, 1)
    assert mean_of([2, 4]) == (3, pytest.approx(2**0.5))
    assert Mean(76.44, None).format() == "76.4"
    assert Mean(76.44, 0.24).format() == "76.4 ± 0.2"
    assert Mean(76.44, 0.24).format(2) == "76.44 ± 0.24"
    assert Mean(76.44, 0.24).format(0, 3) == "76 ± 0.240"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (112000, "112,000"),
        (12.3456, "12.3"),
        (7, "7"),
        (7.0, "7"),
        (1000.4, "1,000"),
        (99.4, "99.4"),
        (99.96, "100"),
        (999.6, "1,000"),
    ],
)
def test_counts(value, text):
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("flops", "text"),
    [
        (0, "0 FLOP"),
        (0.5, "0.5 FLOP"),
        (1, "1 FLOP"),
        (999, "999 FLOP"),
        (1000, "1 kFLOP"),
        (1.25e18, "1.25 EFLOP"),
        (3e21, "3 ZFLOP"),
        (4e24, "4,000 ZFLOP"),
        (12.34e9, "12.3 GFLOP"),
        (999.7e9, "1,000 GFLOP"),
    ],
)
def test_flops(flops, text):
    assert format_flops(flops) == text


def test_lists():
    assert format_list([]) == ""
    assert format_list([4]) == "4"
    assert format_list([4, 8]) == "4 and 8"
    assert format_list([4, 8, 16], "or") == "4, 8 or 16"
    assert shorten_list("abc") == "a, b and c"
    assert shorten_list("abcd") == "a, b, c and 1 more"
    assert shorten_list("abcdefg", 1) == "a and 6 more"


def test_tables_keep_their_texts_and_align_their_columns():
    rows = [["a", "1.50"], ["bc", "10"]]
    plain = format_table(["name", "top\n1"], rows)
    first, second = plain.splitlines()[-2:]
    assert (first.split(), second.split()) == (["a", "1.50"], ["bc", "10"])
    assert first[0] == "a"
    assert len(first) == len(second), "numbers end in the same column"
    markdown = format_table(
        ["name", "top\n1", "x"], [[*row, "y"] for row in rows], markdown=True, left=2
    )
    head, line, first, second = markdown.splitlines()
    assert [cell.strip() for cell in head.strip("|").split("|")] == ["name", "top 1", "x"]
    assert set(line) <= set("|-: ")
    cells = second.strip("|").split("|")
    assert cells[1].startswith(" 10")
    assert len({len(row) for row in (head, line, first, second)}) == 1
    assert [cell.strip() for cell in first.strip("|").split("|")] == ["a", "1.50", "y"]
    assert "name" in format_table(["name"], [])
