"""Both sides of each limit: of the checks of single keys, and of the rules for several keys."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from slowfast_patches.config import fields, load_recipe, yaml_text
from slowfast_patches.config.fields import all_of, format_list, from_to, one_of, only_with
from slowfast_patches.config.rules import check_rules, fewest_frames
from slowfast_patches.config.scale import as_overrides, scale_epochs
from slowfast_patches.config.yaml_text import dump_yaml, flatten, parse_yaml
from slowfast_patches.utils.errors import UserError

ONE = ((1, 1),)


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("AT_LEAST_ONE", (1, 5), (0, -1)),
        ("FROM_ZERO", (0, None, 3), (-1,)),
        ("RATES", ((), (0, 1.0)), ((1, -0.1),)),
        ("SEED", (0, 2**63 - 1), (-1, 2**63)),
        ("RGB", ((1, 2, 3),), ((1, 2), (1, 2, 3, 4))),
        ("POSITIVE_RGB", ((1, 2, 3),), ((0, 1, 1), (1, 2))),
        ("STAGES", ((1,) * 4,), ((1,) * 3, (1,) * 5)),
        ("ABOVE_ZERO", (1e-9,), (0, -1)),
        ("BELOW_ONE", (0, 0.999), (1, -0.1)),
        ("RATIO", (1, 0.01), (0, 1.01)),
        ("PART", (0, 1, 0.5), (-0.01, 1.01)),
        ("AUTO_OR_COUNT", ("auto", 0, 10_000), ("many", -1, 10_001)),
        ("SECONDS", (0.1, 1e8), (0, 1.1e8)),
        ("EPOCHS", (0.1, 1e6), (0, 1_000_001)),
        ("FACTORS", ((1,), (0.5, 0.1)), ((), (0,), (0.5, 1.1))),
        (
            "LONG_CYCLE",
            (ONE, ((0.5, 0.1), *ONE)),
            ((), ((1, 0.5),), (*ONE, (0.5, 1)), ((0.5,), *ONE), ((0, 1), *ONE), ((1, 2), *ONE)),
        ),
        ("CLASS_WEIGHTS", ("balanced", (), (0.5, 2)), ("other", (0, 1), (-1,))),
        ("CROP", (32, 33), (31,)),
        ("CSV", ("", None, "a.csv"), ("a.txt", "b/a.csv")),
    ],
)
def test_values_at_and_beyond_the_limits_of_a_key(name, valid, invalid):
    check = getattr(fields, name)
    assert [value for value in valid if not check.passes(value)] == []
    assert [value for value in invalid if check.passes(value)] == []


def test_choices_and_ranges_say_what_they_accept():
    check = one_of("a", "", 3)
    assert [check.passes(value) for value in ("a", "", 3, "b", None)] == [True] * 3 + [False] * 2
    assert check.wanted == format_list(["a", "empty", 3], "or")
    check = from_to(2, 1000)
    assert [check.passes(value) for value in (1, 2, 1000, 1001)] == [False, True, True, False]
    assert check.wanted == "from 2 to 1,000"


def test_needs_say_the_first_reason():
    recipe = {"A": 1, "B": 2}
    is_one, is_two = only_with("A", 1, 5), only_with("B", 3, 4)
    assert is_one(recipe) is None
    assert is_two(recipe) == "with B 2"
    assert all_of(is_one, is_two)(recipe) == "with B 2"
    assert all_of(is_two, only_with("A", 9))(recipe) == "with B 2"
    assert all_of(is_one)(recipe) is None


def test_reasons_of_a_schedule_depend_on_its_cycles_and_stages():
    for has_cycles, uses, texts in (
        (True, True, (None, None)),
        (False, True, ("without a cycle", None)),
        (False, False, ("without a cycle", "without a cycle or MULTIGRID.STAGES")),
    ):
        recipe = SimpleNamespace(has_cycles=has_cycles, uses_multigrid=uses)
        assert (fields.with_cycle(recipe), fields.with_shapes(recipe)) == texts
    frozen = SimpleNamespace(train=SimpleNamespace(freeze=("backbone",)))
    assert "only the head" in fields.with_backbone(frozen)
    assert fields.with_backbone(SimpleNamespace(train=SimpleNamespace(freeze=()))) is None
    for depths, reason in ((None, "with MODEL.ARCH a, which has no layers"), (list, None)):
        model = SimpleNamespace(arch="a", spec=SimpleNamespace(depths=depths))
        assert fields.with_layers(SimpleNamespace(model=model)) == reason


STEPS = "SOLVER.LR_POLICY steps_with_relative_lrs"
STRIDES = "RESNET.SPATIAL_STRIDES"
SURPLUS = "SOLVER.LRS [1,0.1,0.01,0.001,0.0001,0.00001]"


@pytest.mark.parametrize(
    "overrides",
    [
        "SOLVER.NESTEROV False SOLVER.MOMENTUM 0 SOLVER.DAMPENING 0.5",
        "SOLVER.OPTIMIZING_METHOD adam SOLVER.MOMENTUM 0",
        "SOLVER.WARMUP_EPOCHS 0",
        "SOLVER.MAX_EPOCH 30 SOLVER.WARMUP_EPOCHS 29.5",
        "TRAIN.ENABLE False SOLVER.MAX_EPOCH 30 SOLVER.WARMUP_EPOCHS 34",
        f"{STEPS} SOLVER.STEPS [0,20] SOLVER.LRS [1,0.1] SOLVER.MAX_EPOCH 20",
        f"{STEPS} SOLVER.STEPS [] SOLVER.LRS [1]",
        f"{STEPS} SOLVER.STEPS [0,1,2,3,4] {SURPLUS}",
        f"{STEPS} SOLVER.STEPS [0,1,2,3,4,5] {SURPLUS}",
        f"TRAIN.ENABLE False {STEPS} SOLVER.STEPS [5,3]",
        "MODEL.NUM_CLASSES 2 SOLVER.CLASS_WEIGHTS [1,2]",
        "SOLVER.CLASS_WEIGHTS balanced",
        "MODEL.ARCH slowonly SLOWFAST.ALPHA 3 SLOWFAST.BETA_INV 3 SLOWFAST.FUSION_KERNEL_SZ 4",
        "TRAIN.ENABLE False SLOWFAST.ALPHA 8 MULTIGRID.LONG_CYCLE True",
        f"{STRIDES} [[2,2],[2,2],[2,2],[1,1]]",
        "RESNET.NUM_BLOCK_TEMP_KERNEL [[3,0],[4,4],[6,6],[3,3]]",
        "RESNET.DEPTH 101 RESNET.NUM_BLOCK_TEMP_KERNEL [[3,3],[4,4],[23,23],[3,3]]",
        "NONLOCAL.LOCATION [[[2],[0]],[[3],[]],[[5],[]],[[2],[]]]",
        "DATA.TRAIN_CROP_SIZE 224 DATA.TRAIN_JITTER_SCALES [224,224]",
    ],
)
def test_recipes_at_a_limit_break_no_rule(overrides):
    check_rules(load_recipe(None, overrides.split()))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("SOLVER.MAX_EPOCH 30 SOLVER.WARMUP_EPOCHS 30", "less than SOLVER.MAX_EPOCH 30."),
        (f"{STEPS} SOLVER.STEPS [0,5,5]", "must be in ascending order"),
        (f"{STEPS} SOLVER.STEPS [0,1,2,3,4,5,6] {SURPLUS}", "must have one value for each"),
        ("RESNET.NUM_BLOCK_TEMP_KERNEL [[3,3],[4,4],[7,6],[3,3]]", "from 0 to the number"),
        ("NONLOCAL.LOCATION [[[-1],[]],[[],[]],[[],[]],[[],[]]]", "block that does not exist"),
        ("NONLOCAL.LOCATION [[[3],[]],[[],[]],[[],[]],[[],[]]]", "block that does not exist"),
        ("DATA.TRAIN_JITTER_SCALES [320,256]", "must be [min, max]"),
        ("DATA.TRAIN_JITTER_SCALES [223,320]", "with min at least DATA.TRAIN_CROP_SIZE 224"),
        ("MODEL.NUM_CLASSES 3 SOLVER.CLASS_WEIGHTS [1,2]", "[1, 2] must have one weight"),
        ("NONLOCAL.GROUP [[1,1],[1,1],[1,1],[1,0]]", "must be 1 or more"),
    ],
)
def test_recipes_beyond_a_limit_break_a_rule(overrides, said):
    with pytest.raises(UserError) as told:
        check_rules(load_recipe(None, overrides.split()))
    assert said in str(told.value)


def test_the_shortest_clip_is_of_the_schedule_or_the_test():
    cycle = "DATA.NUM_FRAMES 32 MULTIGRID.LONG_CYCLE_FACTORS [[0.25,0.7],[0.5,0.7],[1,1]]"
    assert fewest_frames(load_recipe(None, cycle.split())) == 32, "the long cycle is off"
    on = [*cycle.split(), "MULTIGRID.LONG_CYCLE", True]
    assert fewest_frames(load_recipe(None, on)) == 8
    assert fewest_frames(load_recipe(None, [*on, "TRAIN.ENABLE", False])) == 32
    stages = [{"shape": [[8, 16, 224], [8, 4, 224]], "until": 9, "rate": 0.1}]
    given = ["DATA.NUM_FRAMES", 32, "MULTIGRID.STAGES", stages, "SOLVER.MAX_EPOCH", 9]
    assert fewest_frames(load_recipe(None, given)) == 4


# --- lengths and YAML


def test_a_length_is_used_once_and_rounded_to_a_millionth():
    pairs = ["SOLVER.MAX_EPOCH", 10, "SOLVER.STEPS", [0, 7], "SOLVER.WARMUP_EPOCHS", 3]
    recipe = load_recipe(None, [*pairs, "SOLVER.LRS", [1, 0.1]])
    assert scale_epochs(recipe) is recipe
    third = scale_epochs(recipe.replaced({"SOLVER.LENGTH": 1 / 3})).solver
    assert (third.max_epoch, third.steps) == (3.333333, (0.0, 2.333333))
    assert (third.warmup_epochs, third.length) == (1.0, 1.0)
    assert as_overrides({"A.B": 1, "C": [2]}) == ("A.B", "1", "C", "[2]")


@pytest.mark.parametrize("text", ["a: 010", "a: 1:30", "a: 1_0:30.5", "a: -007"])
def test_numbers_that_yaml_1_1_reads_otherwise_are_refused(text):
    with pytest.raises(UserError, match=r"another value in YAML 1\.1"):
        parse_yaml(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("10", 10), ("-3", -3), ("1.5", 1.5), ("1.0e-3", 0.001), ("'010'", "010")],
)
def test_other_numbers_are_read_as_they_look(text, value):
    found = parse_yaml(f"a: {text}")["a"]
    assert (found, type(found)) == (value, type(value))


def test_a_key_given_twice_or_no_mapping_is_refused_with_the_source():
    with pytest.raises(UserError, match=r"file\.yaml is not valid YAML.*the key a is given twice"):
        parse_yaml("a: 1\nb: 2\na: 3\n", "file.yaml")
    with pytest.raises(UserError, match="expected a mapping"):
        parse_yaml("!!map [1]")


def test_aliases_may_repeat_values_until_they_are_a_hundred_thousand():
    """A list of ten, of ten times the list before it, and so on."""
    lines = ["a0: &a0 [1,1,1,1,1,1,1,1,1,1]"]
    for level in range(1, 4):
        names = ",".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} [{names}]")
    assert len(parse_yaml("\n".join(lines))["a3"]) == 10
    names = ",".join(["*a3"] * 10)
    with pytest.raises(UserError, match="more than 100,000 values, with all its aliases"):
        parse_yaml("\n".join([*lines, f"a4: [{names}]"]))


def test_values_are_counted_with_each_use_of_an_alias(monkeypatch):
    """The text has 35 values."""
    text = "\n".join(
        [  # 1 for the mapping, and in each line a key
            "a: &a [1, 2, 3]",  # 1 + 4
            "b: *a",  # 1 + 4
            "c: &c 5",  # 1 + 1
            "d: *c",  # 1 + 1
            "e: &e [*a, *a]",  # 1 + 9
            "f: *e",  # 1 + 9
        ]
    )
    monkeypatch.setattr(yaml_text, "_MOST_NODES", 35)
    assert parse_yaml(text)["f"] == [[1, 2, 3]] * 2
    monkeypatch.setattr(yaml_text, "_MOST_NODES", 34)
    with pytest.raises(UserError, match="more than 34 values"):
        parse_yaml(text)


def test_sections_are_flattened_and_written_again():
    tree = {"B": {"C": {"D": 1}, "E": [2]}, "A": None}
    assert dict(flatten(tree)) == {"B.C.D": 1, "B.E": [2], "A": None}
    assert parse_yaml(dump_yaml(tree)) == tree
