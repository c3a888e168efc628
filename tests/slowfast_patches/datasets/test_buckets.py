"""Data sets in a bucket: what is read, what is requested, and what is said when that fails."""

import os
import pickle
import shutil

import numpy as np
import pytest
import torch
from moto import settings

from multigrid import ClipRequest, Shape, collate
from slowfast_patches.datasets.clips import ClipDataset
from slowfast_patches.datasets.lists.dataset_lists import class_names, read_list
from slowfast_patches.datasets.reading.index import open_index
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.utils.storage import RemotePath, StorageError, as_path, is_remote, read_range
from tests.slowfast_patches.datasets.buckets import forget_connections, serve_bucket
from tests.slowfast_patches.datasets.made_videos import noise, write_video
from tests.slowfast_patches.datasets.recipes import recipe_of

NAMES = ["a.mp4", "deep/b.avi", "c d.mkv"]
SHAPE = Shape(2, 4, 32)


@pytest.fixture
def bucket(cache):
    with serve_bucket() as bucket:
        yield bucket


@pytest.fixture
def data(tmp_path):
    """A list of three videos, with class names."""
    for number, name in enumerate(NAMES):
        write_video(tmp_path / "data" / name, noise(110, seed=number))
    lines = [f"{name} {number}\n" for number, name in enumerate(NAMES)]
    (tmp_path / "data/train.csv").write_text("".join(lines))
    (tmp_path / "data/classes.txt").write_text("a\nb\nc\n")
    return tmp_path / "data"


@pytest.fixture
def prepared(run, data):
    """The same data set, prepared."""
    status, _ = run("--csv", data / "train.csv", "--output", data.parent / "prepared")
    assert status == 0
    return data.parent / "prepared"


def clips_of(folder, *keys):
    dataset = ClipDataset(recipe_of(folder, "MODEL.NUM_CLASSES", 3, *keys), "train")
    return [dataset[ClipRequest(video, 0, SHAPE, 0)]["clip"] for video in range(len(NAMES))]


@pytest.mark.parametrize("form", ["data", "prepared"])
def test_clips_from_a_bucket_are_those_of_the_local_files(form, bucket, request):
    folder = request.getfixturevalue(form)
    expected = clips_of(folder)
    (folder / "train.index.json.gz").unlink()
    bucket.upload(folder)
    before = bucket.content()
    assert class_names(recipe_of("s3://data", "MODEL.NUM_CLASSES", 3)) == ("a", "b", "c")
    np.testing.assert_array_equal(clips_of("s3://data"), expected)
    assert bucket.content() == before  # the index is in the user's cache folder
    bucket.requests.clear()
    clips_of("s3://data/")
    videos = [each for each in bucket.requests if ".mp4" in each or ".mkv" in each]
    assert len(videos) <= (3 if form == "prepared" else 12)


def test_a_prepared_clip_is_one_request(prepared, bucket):
    bucket.upload(prepared)
    dataset = ClipDataset(recipe_of("s3://data", "DATA.SAMPLING_RATE", 24), "train")
    bucket.requests.clear()
    for video in range(3):
        dataset[ClipRequest(video, 0, SHAPE, 0)]
    assert len(bucket.requests) == 3
    assert all(each.startswith("GET /data/videos/") for each in bucket.requests)
    assert all(each.endswith(" 206") for each in bucket.requests)


def test_paths_may_be_addresses_and_have_a_prefix(data, bucket, tmp_path):
    bucket.upload(data, "videos/")
    local = tmp_path / "lists"
    local.mkdir()
    shutil.copy(data / "train.csv", local)
    expected = clips_of(data)
    np.testing.assert_array_equal(clips_of(local, "DATA.PATH_PREFIX", "s3://data/videos"), expected)
    lines = [f"s3://data/videos/{name} 0\n" for name in NAMES]
    (local / "train.csv").write_text("".join(lines))
    np.testing.assert_array_equal(clips_of(local), expected)


def test_an_uploaded_index_is_used_until_a_video_changes(prepared, bucket):
    bucket.upload(prepared)
    bucket.requests.clear()
    path = as_path("s3://data/train.csv")
    videos = [video.path for video in read_list(recipe_of("s3://data"), "train")]
    assert not open_index(path, videos).unreadable
    assert not [each for each in bucket.requests if ".mp4" in each]
    name = "videos/a.mp4"
    write_video(prepared / name, noise(30, seed=9))
    bucket.upload(prepared / "videos", "videos/")
    assert open_index(path, videos).record(0).video.frames == 30
    # The cached index has the version of the file, so a file of the same size is noticed.
    content = bytearray((prepared / name).read_bytes())
    content[-1] ^= 1
    (prepared / name).write_bytes(content)
    bucket.upload(prepared / "videos", "videos/")
    bucket.requests.clear()
    open_index(path, videos)
    assert {each.split()[1] for each in bucket.requests if ".mp4" in each} == {f"/data/{name}"}


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.slow
def test_workers_have_connections_of_their_own(start, data, bucket):
    bucket.upload(data)
    dataset = ClipDataset(recipe_of("s3://data"), "train")
    requests = [ClipRequest(video, 0, SHAPE, 0) for video in range(3)]
    expected = [dataset[request]["clip"] for request in requests]
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_sampler=[[request] for request in requests],
        collate_fn=collate,
        num_workers=1,
        multiprocessing_context=start,
    )
    np.testing.assert_array_equal([batch["clips"][0] for batch in loader], expected)


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


@pytest.mark.parametrize("folder", ["s3://data", "s3://nowhere/a"])
def test_a_missing_list(folder, bucket):
    with pytest.raises(ValueError, match=f"the list {folder}/train.csv does not exist"):
        read_list(recipe_of(folder), "train")


def test_wrong_credentials(data, bucket, monkeypatch):
    bucket.upload(data)
    monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)
    said = "s3://data/train.csv cannot be read: access is denied .*Check the credentials for s3://"
    with pytest.raises(StorageError, match=said):
        read_list(recipe_of("s3://data"), "train")
    with pytest.raises(StorageError, match=r"a\.mp4 cannot be read: access is denied"):
        scan("s3://data/a.mp4")


def test_no_credentials(bucket, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    forget_connections()
    with (
        monkeypatch.context(),
        pytest.raises(StorageError, match=r"locate credentials\. Check the"),
    ):
        read_range("s3://data/a", 0, 1)
    monkeypatch.undo()
    forget_connections()


@pytest.mark.slow
def test_no_server(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    forget_connections()
    with pytest.raises(
        StorageError, match=r"cannot be read: Could not connect .*Check the connect"
    ):
        read_list(recipe_of("s3://data"), "train")
    monkeypatch.undo()
    forget_connections()


def test_a_missing_package():
    with pytest.raises(StorageError, match=r"gs://a/train.csv .* a package is missing.*gcsfs"):
        read_list(recipe_of("gs://a"), "train")


# Paths.


@pytest.mark.parametrize("address", ["s3://b", "s3://b/a//c", "hf://datasets/a/b", "gs://b/c"])
def test_addresses_are_remote_paths(address):
    path = as_path(address)
    assert isinstance(path, RemotePath)
    assert str(path / "x y.csv") == os.fspath(path / "x y.csv")
    assert str(path / "x.csv").startswith(address[:7])
    assert as_path(str(path)) == path == pickle.loads(pickle.dumps(path))
    assert str((path / "x.csv").parent) == str(path)
    assert (path / "x.csv").with_name("y.csv").name == "y.csv"


@pytest.mark.parametrize("name", ["a", "/s3://b/c", "s3:/b", "https://b/c", "x://b/c", "S3://b"])
def test_other_names_are_not_remote(name):
    assert not is_remote(name)
