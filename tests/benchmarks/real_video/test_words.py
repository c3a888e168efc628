"""Tests of words that are cut from sentences: frames, pixels, and lists."""

import contextlib
import io
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from make_words import CLASSES, Sentence, main, read_sentence, split

from slowfast_patches.datasets.lists.class_names import named_classes
from slowfast_patches.utils.errors import UserError
from tests.slowfast_patches.datasets.made_videos import rows, write_video

# Of 40 frames, a thousand ticks each.
TIMES = [(3, 9), (9, 14.5), (14.5, 16), (16.5, 19), (19, 25), (25, 37)]
SENTENCES = {
    "bbaf2n": "bin blue at f two now",
    "bbaf3s": "bin blue at f three soon",
    "lrwe4a": "lay red with e four again",
    "pgiz9p": "place green in z nine please",
    "swbazn": "set white by a zero now",
}
MOUTH = (54, 52)


def alignment(sentence: str) -> str:
    lines = [
        f"{1000 * a:.0f} {1000 * b:.0f} {w}"
        for (a, b), w in zip(TIMES, sentence.split(), strict=True)
    ]
    lines.insert(3, "16000 16500 sp")
    return "\n".join(["0 3000 sil", *lines, "37000 39500 sil", ""])


def scene(rng: np.random.Generator, t: int) -> np.ndarray:
    """Draw a mouth that moves while words are spoken, and a stronger light that always flickers."""
    image = np.full((72, 96, 3), 90, np.uint8)
    image[56:64, 26:40] = 255 * (t % 2)
    if 3 <= t < 37:
        image[MOUTH[1] - 3 : MOUTH[1] + 3, MOUTH[0] - 7 : MOUTH[0] + 7] = rng.integers(40, 200)
    return image


def write_corpus(folder: Path, pictures, names=tuple(SENTENCES)) -> Path:
    """Write a speaker's files as downloaded, with the frames `pictures(t)` 25 times a second."""
    (folder / "align").mkdir(parents=True)
    for name in names:
        images = [pictures(t) for t in range(40)]
        path = folder / "s1" / f"{name}.mpg"
        write_video(path, images, codec="mpeg1video", fps=25, options={"b": "4M"})
        (folder / "align" / f"{name}.align").write_text(alignment(SENTENCES[name]))
    return folder


def command(folder: Path, *more: object) -> list[str]:
    options = {"videos": "s1", "alignments": "align", "output": "words"}
    words = [x for name, to in options.items() for x in (f"--{name}", folder / to)]
    return list(map(str, [*words, *more]))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Make a speaker and the data set, and keep the program's output."""
    rng = np.random.default_rng(0)
    folder = write_corpus(tmp_path_factory.mktemp("grid"), lambda t: scene(rng, t))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(command(folder)) == 0
    return folder, said.getvalue()


def test_a_clip_is_centred_on_its_word_and_repeats_the_border_frames(tmp_path: Path) -> None:
    names = ("bbaf2n", "bbaf3s", "lrwe4a")
    write_corpus(tmp_path, lambda t: np.full((72, 96, 3), 40 + 5 * t, np.uint8), names)
    main(command(tmp_path, "--mouth", 50, 40, "--side", 64, "--size", 48))

    def frames(place: str) -> list[int]:
        with av.open(str(tmp_path / "words" / "clips" / f"bbaf2n_{place}.mp4")) as container:
            images = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
        assert images[0].shape == (48, 48, 3)
        return [round((image.mean() - 40) / 5) for image in images]

    assert frames("command") == [0, 0, 0, 0, *range(16)]  # said from 3 to 9
    assert frames("color") == list(range(2, 22))  # 9 to 14.5
    assert frames("digit") == list(range(12, 32))  # 19 to 25
    assert frames("adverb") == [*range(21, 40), 39]  # 25 to 37


def test_the_mouth_is_found_where_words_move_it(made) -> None:
    folder, said = made
    x, y = map(float, said.partition("The mouth is at ")[2].split()[:2])
    assert abs(x - MOUTH[0]) <= 3
    assert abs(y - MOUTH[1]) <= 3
    assert "in frames of 96×72 pixels. The side of the square is 28 pixels" in said
    assert cv2.imread(str(folder / "words" / "mouth.png")).shape == (72, 96, 3)


def test_the_set_has_four_clips_of_each_sentence_in_one_list(made) -> None:
    out = made[0] / "words"
    lists = {name: rows(out / f"{name}.csv") for name in ("train", "val", "test")}
    names = {split: {path[6:12] for path, _ in found} for split, found in lists.items()}
    assert [len(names[split]) for split in ("train", "val", "test")] == [3, 1, 1]
    assert set.union(*names.values()) == set(SENTENCES)
    assert named_classes(out) == CLASSES
    for path, label in (row for found in lists.values() for row in found):
        name, place = Path(path).stem.split("_")
        number = ["command", "color", "", "", "digit", "adverb"].index(place)
        assert CLASSES[label] == SENTENCES[name].split()[number]
        assert (out / path).exists()


ALIGNED = (
    "0 23750 sil\n23750 29500 bin\n29500 34000 blue\n34000 34000 sp\n34000 35500 at\r\n"
    "35500 41000 f\n41000 47250 two\n47250 53000 now\n53000 74500 sil\n"
)


def test_an_alignment_says_six_words_and_their_frames(tmp_path: Path) -> None:
    (tmp_path / "bbaf2n.align").write_text(ALIGNED)
    words = read_sentence(Path("bbaf2n.mpg"), tmp_path).words
    assert [word.text for word in words] == ["bin", "blue", "at", "f", "two", "now"]
    assert [word[1:] for word in words[:2]] == [(23.75, 29.5), (29.5, 34)]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("29500 34000 blue", "29500 34000 to", r"the word 'to' is no color of the corpus"),
        ("29500 34000 blue\n", "", "has 5 words, but a sentence has six"),
        ("41000 47250 two", "41000 47250 two two", 'line 7: expected "start end word"'),
        ("41000 47250 two", "41000 two", "line 7: expected"),
        ("41000 47250 two", "", "line 7: expected"),
        ("23750 29500 bin", "23750 2.9e4 bin", "line 2: expected"),
        ("23750 29500 bin", "-5 29500 bin", "line 2: expected"),
        ("23750 29500 bin", "29501 29500 bin", "line 2: expected"),
        ("23750 29500 bin", "nan inf bin", "line 2: expected"),
        ("29500 34000 blue", "29000 34000 blue", "the words overlap, or are not in the order"),
        ("47250 53000 now", "1 2 now", "the words overlap, or are not in the order"),
        (ALIGNED, "", "has 0 words"),
    ],
)
def test_an_invalid_alignment_is_named_with_its_line(tmp_path: Path, old, new, said) -> None:
    assert old in ALIGNED
    (tmp_path / "bbaf2n.align").write_text(ALIGNED.replace(old, new))
    with pytest.raises(UserError, match=rf"bbaf2n\.align\b.*{said}.*--alignments"):
        read_sentence(Path("bbaf2n.mpg"), tmp_path)


def test_an_alignment_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"alignment of bbaf2n\.mpg cannot be read: .*No such file"):
        read_sentence(Path("bbaf2n.mpg"), tmp_path)
    (tmp_path / "bbaf2n.align").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"alignment of bbaf2n\.mpg cannot be read"):
        read_sentence(Path("bbaf2n.mpg"), tmp_path)


def test_a_thousand_sentences_are_split_as_published() -> None:
    sentences = [Sentence(Path(f"{n:06d}.mpg"), []) for n in range(1000)]
    found = split(sentences, 0)
    assert [len(found[name]) for name in ("train", "val", "test")] == [750, 50, 200]
    assert found != split(sentences, 1)
