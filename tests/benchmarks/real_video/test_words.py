"""Tests of words cut from sentences: frames, pixels, lists, and what is left out."""

import contextlib
import io
import shutil
from collections import Counter
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from grid_corpus import Sentence, read_alignment
from words import CLASSES, Split, make_words

from slowfast_patches.datasets.lists.class_names import named_classes
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
ALONE = ["--workers", "1"]


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


def command(folder: Path) -> list[str]:
    options = {"videos": "s1", "alignments": "align", "output": "words"}
    return [*(x for name, to in options.items() for x in (f"--{name}", str(folder / to))), *ALONE]


@pytest.fixture(scope="module")
def made(load_program, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Make a speaker and the data set, and keep the program's output."""
    rng = np.random.default_rng(0)
    folder = write_corpus(tmp_path_factory.mktemp("grid"), lambda t: scene(rng, t))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert load_program("benchmarks/real_video/make_words.py").main(command(folder)) == 0
    return folder, said.getvalue()


@pytest.fixture
def corpus(made: tuple[Path, str], tmp_path: Path) -> Path:
    """Copy the speaker, without the data set, so that a test may change it."""
    for part in ("s1", "align"):
        shutil.copytree(made[0] / part, tmp_path / part)
    return tmp_path


def test_an_alignment_says_six_words_and_their_frames(tmp_path: Path) -> None:
    path = tmp_path / "bbaf2n.align"
    path.write_text(
        "0 23750 sil\n23750 29500 bin\n29500 34000 blue\n34000 34000 sp\n34000 35500 at\r\n"
        "35500 41000 f\n41000 47250 two\n47250 53000 now\n53000 74500 sil\n"
    )
    words, length = read_alignment(path)
    assert [word.text for word in words] == ["bin", "blue", "at", "f", "two", "now"]
    assert (words[0].start, words[0].end, length) == (23.75, 29.5, 74.5)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("14500 9000 blue", "line 3: '14500 9000 blue' is not 'start end word'"),
        ("9000 14.5 blue", "line 3: .* is not 'start end word' with times in 1/25,000 s"),
        ("8000 14500 blue", "line 3: '8000 14500 blue' begins before the previous word ends"),
        ("9000 14500 two", r"line 3: 'two' is not a valid color \(blue, green, red or white\)"),
        ("", "line 4: 'at' is not a valid color"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "bbaf2n.align"
    path.write_text(alignment(SENTENCES["bbaf2n"]).replace("9000 14500 blue", line))
    with pytest.raises(ValueError, match=rf"bbaf2n\.align, {said}"):
        read_alignment(path)


def test_a_clip_is_centred_on_its_word_and_repeats_the_border_frames(tmp_path: Path) -> None:
    names = ("bbaf2n", "bbaf3s", "lrwe4a")
    write_corpus(tmp_path, lambda t: np.full((72, 96, 3), 40 + 5 * t, np.uint8), names)
    make_words(tmp_path / "s1", tmp_path / "align", tmp_path / "words", mouth=(50, 40), workers=1)

    def frames(place: str) -> list[int]:
        with av.open(str(tmp_path / "words" / "clips" / f"bbaf2n_{place}.mp4")) as container:
            images = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
        return [round((image.mean() - 40) / 5) for image in images]

    assert frames("command") == [0, 0, 0, 0, *range(16)]  # said from 3 to 9
    assert frames("color") == list(range(2, 22))  # 9 to 14.5
    assert frames("digit") == list(range(12, 32))  # 19 to 25
    assert frames("adverb") == [*range(21, 40), 39]  # 25 to 37


def test_a_clip_has_the_pixels_that_are_asked_for(tmp_path: Path) -> None:
    names = ("bbaf2n", "bbaf3s", "lrwe4a")
    write_corpus(tmp_path, lambda t: np.full((72, 96, 3), 40, np.uint8), names)
    asked = {"mouth": (50, 40), "side": 64, "workers": 1}
    make_words(tmp_path / "s1", tmp_path / "align", tmp_path / "faces", size=48, **asked)
    with av.open(str(tmp_path / "faces" / "clips" / "bbaf2n_color.mp4")) as container:
        assert (container.streams.video[0].width, container.streams.video[0].height) == (48, 48)
    with pytest.raises(ValueError, match="was made with size 48"):
        make_words(tmp_path / "s1", tmp_path / "align", tmp_path / "faces", **asked)


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
        with av.open(str(out / path)) as container:
            stream = container.streams.video[0]
            assert (stream.codec_context.name, stream.average_rate) == ("h264", 25)
            assert (stream.width, stream.height, stream.pix_fmt) == (80, 80, "yuv420p")
            assert len(list(container.decode(stream))) == 20
    labels = Counter(CLASSES[label] for found in lists.values() for _, label in found)
    assert (labels["bin"], labels["now"], labels["zero"], len(labels)) == (2, 2, 1, 17)


def test_only_what_is_missing_is_cut_again_and_another_set_is_refused(
    load_program, refused, made, capsys
) -> None:
    tool, folder = load_program("benchmarks/real_video/make_words.py"), made[0]
    clips = folder / "words" / "clips"
    times = {path: path.stat().st_mtime_ns for path in clips.iterdir()}
    (clips / "bbaf2n_digit.mp4").unlink()
    assert tool.main([*command(folder), "--seed", "3"]) == 0
    assert "20 clips of 5 sentences. This run wrote the clips of 1" in capsys.readouterr().out
    again = {path.name[:6] for path in times if path.stat().st_mtime_ns != times[path]}
    assert again == {"bbaf2n"}

    said = refused(tool, [*command(folder), "--mouth", "50", "44", "--side", "30"])
    assert "(now 44.0), side 28 (now 30). Use the same values" in said
    assert not list((folder / "words").rglob("*.tmp"))


def test_videos_that_cannot_be_used_are_left_out_and_named(load_program, corpus, capsys) -> None:
    (corpus / "align" / "bbaf3s.align").unlink()
    (corpus / "s1" / "swbazn.mpg").write_bytes(b"nothing")
    assert load_program("benchmarks/real_video/make_words.py").main(command(corpus)) == 1
    said = capsys.readouterr().out
    assert "2 videos are left out:" in said
    assert f"{corpus}/s1/bbaf3s.mpg: {corpus}/align/bbaf3s.align does not exist" in said
    assert f"{corpus}/s1/swbazn.mpg: cannot be opened" in said
    listed = [
        row for split in ("train", "val", "test") for row in rows(corpus / f"words/{split}.csv")
    ]
    assert {path[6:12] for path, _ in listed} == {"bbaf2n", "lrwe4a", "pgiz9p"}


def in_frames(folder: Path) -> None:
    for path in (folder / "align").iterdir():
        path.write_text(path.read_text().replace("000 ", " ").replace("500 ", " "))


def without_motion(folder: Path) -> None:
    for path in (folder / "s1").iterdir():
        images = [np.full((72, 96, 3), 90, np.uint8)] * 40
        write_video(path, images, codec="mpeg1video", fps=25)


@pytest.mark.parametrize(
    ("spoil", "options", "said"),
    [
        (None, "--videos {0}/align", "{0}/align contains no .mpg files"),
        (None, "--alignments {0}/s1", "5 of 5 videos in {0}/s1 have no valid alignment"),
        (None, "--mouth 96 10", "--mouth 96 10 must lie inside the frames of 96×72 pixels"),
        (None, "--side 80", "--side is 80, but must be from 16 to 72 for frames of 96×72"),
        (None, "--val-fraction 0.9", "--val-fraction plus --test-fraction must be less than 1"),
        (in_frames, "", "has 40 frames, but the alignment ends at frame 0.039"),
        (without_motion, "", "nothing moves in the lower middle of the frames. Give --mouth"),
        (
            lambda folder: (folder / "words/clips").mkdir(parents=True),
            "",
            "contains clips, which was not made by this program",
        ),
    ],
)
def test_mistakes_are_said_in_one_line(load_program, refused, corpus, spoil, options, said) -> None:
    if spoil is not None:
        spoil(corpus)
    arguments = [*command(corpus), *options.format(corpus).split()]
    assert said.format(corpus) in refused(
        load_program("benchmarks/real_video/make_words.py"), arguments
    )


def test_a_thousand_sentences_are_split_as_published_and_few_move_when_some_go() -> None:
    sentences = [Sentence(Path(f"{n:06d}.mpg"), (), 75.0) for n in range(1000)]
    parts = Split().of(sentences)
    assert [len(parts[name]) for name in ("train", "val", "test")] == [750, 50, 200]
    assert parts != Split(seed=1).of(sentences)
    moved = {s.name for s in Split().of(sentences[10:])["train"]} - {s.name for s in parts["train"]}
    assert len(moved) <= 10
