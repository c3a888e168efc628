"""Tests of data sets in a bucket: content, number of requests, and error messages."""

import shutil

import cv2
import fsspec
import numpy as np
import pytest
import torch
from moto import settings

from multigrid import ClipRequest, Shape, collate
from slowfast_patches.datasets.clip_dataset import ClipDataset
from slowfast_patches.datasets.lists.dataset_lists import class_names, read_list
from slowfast_patches.datasets.reading.index import open_index
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.utils.errors import RunError
from slowfast_patches.utils.storage import as_path
from tests.slowfast_patches.datasets.buckets import serve_bucket
from tests.slowfast_patches.datasets.made_videos import noise, write_jpeg, write_video
from tests.slowfast_patches.datasets.recipes import recipe_of

NAMES = ["a.mp4", "deep/b.avi", "c d.mkv", "frames"]
SHAPE = Shape(2, 4, 32)


@pytest.fixture(scope="module")
def server():
    with serve_bucket() as server:
        yield server


@pytest.fixture
def bucket(cache, server):
    server.clear()
    return server


@pytest.fixture
def data(tmp_path):
    """Write a list of three videos and a folder of JPEG files, with class names."""
    folder = tmp_path / "data"
    for number, name in enumerate(NAMES[:-1]):
        write_video(folder / name, noise(110, seed=number))
    for number in range(20):
        write_jpeg(folder / "frames" / f"{number}.jpg", level=10 * number)
    lines = [f"{name} {number}\n" for number, name in enumerate(NAMES)]
    (folder / "train.csv").write_text("".join(lines))
    (folder / "classes.txt").write_text("a\nb\nc\nd\n")
    return folder


@pytest.fixture
def prepared(run, data):
    """Prepare the same data set."""
    assert run("--csv", data / "train.csv", "--output", data.parent / "prepared")[0] == 0
    return data.parent / "prepared"


def clips_of(folder, *keys):
    dataset = ClipDataset.of_recipe(recipe_of(folder, "MODEL.NUM_CLASSES", 4, *keys), "train")
    return [dataset[ClipRequest(video, 0, SHAPE, 0)]["clip"] for video in range(len(NAMES))]


def test_clips_from_a_bucket_are_those_of_the_local_files(data, bucket, tmp_path):
    """Lists in the bucket, local lists with a prefix, and local lists of addresses."""
    expected = clips_of(data)
    (data / "train.index.json.gz").unlink()
    bucket.upload(data)
    before = bucket.content()
    assert class_names(recipe_of("s3://data", "MODEL.NUM_CLASSES", 4)) == ("a", "b", "c", "d")
    np.testing.assert_array_equal(clips_of("s3://data"), expected)
    assert bucket.content() == before  # the index is in the user's cache folder
    csv = tmp_path / "train.csv"
    shutil.copy(data / "train.csv", csv)
    np.testing.assert_array_equal(clips_of(tmp_path, "DATA.PATH_PREFIX", "s3://data"), expected)
    csv.write_text("".join(f"s3://data/{name} 0\n" for name in NAMES))
    np.testing.assert_array_equal(clips_of(tmp_path), expected)


def test_a_prepared_clip_is_one_request(prepared, bucket):
    bucket.upload(prepared)
    dataset = ClipDataset.of_recipe(recipe_of("s3://data", "DATA.SAMPLING_RATE", 24), "train")
    bucket.requests.clear()
    for video in range(len(NAMES)):
        dataset[ClipRequest(video, 0, SHAPE, 0)]
    assert len(bucket.requests) == len(NAMES)
    assert all(each.startswith("GET /data/videos/") for each in bucket.requests)
    assert all(each.endswith(" 206") for each in bucket.requests)


def test_an_uploaded_index_is_used_until_a_video_changes(prepared, bucket):
    """The index in the cache has the versions of files, so one of the same size is noticed."""
    bucket.upload(prepared)
    path = as_path("s3://data/train.csv")
    videos = [video.path for video in read_list(recipe_of("s3://data"), "train")]
    bucket.requests.clear()
    assert not open_index(path, videos).unreadable
    assert not [each for each in bucket.requests if ".mp4" in each]
    changed = write_video(prepared / "videos/a.mp4", noise(30))
    content = changed.read_bytes()
    for last in (content[-1:], b"?"):
        changed.write_bytes(content[:-1] + last)
        bucket.upload(prepared / "videos", "videos/")
        bucket.requests.clear()
        assert open_index(path, videos)[0].video.frames == 30
        read = {each.split()[1] for each in bucket.requests if ".mp4" in each}
        assert read == {"/data/videos/a.mp4"}


@pytest.mark.slow("starts processes")
def test_a_forked_worker_has_a_connection_of_its_own(data, bucket):
    bucket.upload(data)
    dataset = ClipDataset.of_recipe(recipe_of("s3://data"), "train")
    requests = [ClipRequest(video, 0, SHAPE, 0) for video in range(len(NAMES))]
    expected = [dataset[request]["clip"] for request in requests]
    cv2.GaussianBlur(np.zeros((2000, 2000), np.uint8), (9, 9), 2)  # starts OpenCV's threads
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_sampler=[[request] for request in requests],
        collate_fn=collate,
        num_workers=1,
        multiprocessing_context="fork",
        timeout=120,
    )
    np.testing.assert_array_equal([batch["clips"][0] for batch in loader], expected)


# Preparing.


@pytest.mark.slow("starts processes")
def test_a_data_set_is_prepared_from_a_bucket_into_a_bucket(run, data, bucket, tmp_path):
    bucket.upload(data, "videos/")
    lists = ("--csv", "s3://data/videos/train.csv")
    status, output = run(*lists, "--output", "s3://data/prepared")
    assert status == 0
    assert "DATA.PATH_TO_DATA_DIR s3://data/prepared" in output
    bucket.requests.clear()
    clips = clips_of("s3://data/prepared")
    assert {each.partition(" ")[0] for each in bucket.requests} <= {"GET", "HEAD"}
    assert sum("206" in each for each in bucket.requests) == 4  # the clips: nothing was scanned
    # Compare with a copy of the bucket, because encoding again may give other pixels.
    fsspec.filesystem("s3").get("data/prepared/", f"{tmp_path}/copy/", recursive=True)
    np.testing.assert_array_equal(clips, clips_of(tmp_path / "copy"))


# What is said when reading fails.


def test_a_missing_video_is_unreadable(data, bucket):
    (data / "train.csv").write_text("a.mp4 0\nnone.mp4 1\ns3://nowhere/c.mp4 2\n")
    bucket.upload(data)
    recipe = recipe_of("s3://data")
    videos = [video.path for video in read_list(recipe, "train")]
    index = open_index(as_path("s3://data/train.csv"), videos)
    reason = "cannot be opened: no such file or bucket"
    assert index.unreadable == [
        ("s3://data/none.mp4", reason),
        ("s3://nowhere/c.mp4", reason),
    ]


def test_wrong_credentials(data, bucket, monkeypatch):
    bucket.upload(data)
    monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)
    with pytest.raises(RunError, match=r"train.csv cannot be read: .* credentials for s3://"):
        read_list(recipe_of("s3://data"), "train")
    with pytest.raises(RunError, match=r"a\.mp4 cannot be read: "):
        scan("s3://data/a.mp4")


def test_a_missing_package():
    with pytest.raises(RunError, match=r"gs://a/train.csv cannot be read: .*gcsfs"):
        read_list(recipe_of("gs://a"), "train")
