"""benchmarks/batchnorm.py: what it sums up, and that it runs."""

import json

import pytest


@pytest.fixture
def bench(step_bench, load_program):
    return load_program("benchmarks/batchnorm.py")


def test_the_network_counts_a_layer_as_often_as_it_has_it(bench):
    network = {(1, 1, 2, 2): 3, (2, 1, 1, 1): 1}
    rows = [
        {"shape": [4, 1, 1, 2, 2], "memory_format": "x", "plain": [1, 2], "grouped": [2, 2]},
        {"shape": [4, 2, 1, 1, 1], "memory_format": "x", "plain": [5, 4], "grouped": [2, 9]},
    ]
    bench.summarize(rows, network)
    assert [row["layers"] for row in rows] == [3, 1]
    assert rows[0]["ratio"]["rounds"] == [2, 1]
    found = bench._of_network(rows, "x")
    # (3 · 2 + 2) / (3 · 1 + 5) and (3 · 2 + 9) / (3 · 2 + 4)
    assert found["ratio"]["rounds"] == [1.0, 1.5]
    assert not found["within"]
    assert found["worst"]["shape"] == [4, 1, 1, 2, 2]


def test_it_runs(bench, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench, "SMALL", {(3, 2, 4, 4): 2})
    path = tmp_path / "result.json"
    options = ["--device", "cpu", "--small", "--dtype", "bfloat16", "--rounds", "2"]
    sizes = ["--clips", "4", "--group-size", "2"]
    assert bench.main([*options, *sizes, "--output", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "channels_last_3d: the network's layers take" in printed
    result = json.loads(path.read_text())
    assert [row["shape"] for row in result["rows"]] == [[4, 3, 2, 4, 4]] * 2
    assert result["versions"]["torch"]
    assert result["command"].startswith("python benchmarks/batchnorm.py --device cpu --small")


def test_one_group_is_not_split(bench):
    with pytest.raises(SystemExit):
        bench.parse_args(["--clips", "8", "--group-size", "8"])
