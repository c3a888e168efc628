"""Tests of the benchmarks' shared parts, and of three benchmarks that use them."""

import json

import common


def test_the_parts_of_steps_by_hand():
    """Forward of 2 and 4 s, backward of 3 and 5 s, and a gap of 1 s add up to 15 s."""
    times = iter([0, 2, 5, 6, 10, 15])
    clock = common.StepClock(common.CPU, lambda: float(next(times)))
    for _ in range(2):
        clock.start()
        clock.mark("forward")
        clock.mark("backward")
    assert clock.read() == (7.5, {"forward": 3, "backward": 4})


def test_each_has_its_turn_once_a_round():
    order = list[str]()
    turns = {name: lambda n=name: order.append(n) or len(order) for name in "abc"}
    found = common.take_turns(turns, 4, warm_up=1)
    assert [sorted(order[i : i + 3]) for i in range(0, 15, 3)] == [["a", "b", "c"]] * 5
    assert all(len(times) == 4 for times in found.values())
    assert min(min(times) for times in found.values()) == 4  # without the first round


def test_batch_normalisation_is_measured(load_program, tmp_path, capsys, monkeypatch):
    bench = load_program("benchmarks/batchnorm.py")
    monkeypatch.setattr(bench, "SMALL", {(3, 2, 4, 4): 2})
    path = tmp_path / "result.json"
    options = ["--device", "cpu", "--small", "--dtype", "bfloat16", "--rounds", "2"]
    sizes = ["--clips", "4", "--group-size", "2"]
    assert bench.main([*options, *sizes, "--output", str(path)]) == 0
    assert "channels_last_3d: all layers together take" in capsys.readouterr().out
    result = json.loads(path.read_text())
    assert [row["shape"] for row in result["rows"]] == [[4, 3, 2, 4, 4]] * 2
    assert result["command"].startswith("python benchmarks/batchnorm.py --device cpu --small")
