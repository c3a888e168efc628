"""Paths and files, local and on a remote file system, which here is memory."""

import errno
import io
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pytest

from slowfast_patches.utils import storage
from slowfast_patches.utils.errors import RunError
from slowfast_patches.utils.files import (
    atomic_write,
    check_archive,
    check_output,
    make_folder,
    map_files,
    write_text,
)
from slowfast_patches.utils.storage import (
    RemotePath,
    Status,
    absolute,
    as_path,
    is_remote,
    join,
    list_files,
    list_folders,
    list_status,
    open_file,
    read_range,
    upload,
)

ADDRESS = "memory://bucket/videos"


@pytest.fixture
def remote() -> Iterator[str]:
    """A remote folder with the files a.mp4 and deep/b.mp4."""
    system = fsspec.filesystem("memory")
    system.pipe({"/bucket/videos/a.mp4": b"0123456789", "/bucket/videos/deep/b.mp4": b"b"})
    yield ADDRESS
    system.rm("/bucket", recursive=True)


@pytest.mark.parametrize(
    ("path", "remote"),
    [
        ("s3://bucket/a.mp4", True),
        ("memory://bucket/a", True),
        ("file:///tmp/a", False),
        ("http://host/a", False),
        ("https://host/a", False),
        ("nothing://bucket/a", False),
        ("S3://bucket/a", False),
        ("s3:///a", False),
        ("/tmp/s3://bucket/a", False),
        ("a.mp4", False),
        (Path("a.mp4"), False),
    ],
)
def test_remote_paths_are_addresses_of_known_file_systems(path, remote):
    assert is_remote(path) == remote
    assert isinstance(as_path(path), RemotePath) == remote
    assert str(as_path(path)) == str(path) if remote else True


def test_names_are_joined_to_folders():
    assert join(Path("/data"), "a/b.mp4") == "/data/a/b.mp4"
    assert join(Path("/data"), "/other/b.mp4") == "/other/b.mp4"
    assert join(as_path(ADDRESS), "b.mp4") == f"{ADDRESS}/b.mp4"
    assert join(Path("/data"), f"{ADDRESS}/b.mp4") == f"{ADDRESS}/b.mp4"
    assert str(absolute(ADDRESS)) == ADDRESS
    assert absolute("a/../b") == Path.cwd() / "b"


def test_a_path_behind_a_link_is_absolute_as_the_system_opens_it(tmp_path):
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "inner")
    assert absolute(tmp_path / "link" / "a") == tmp_path / "link" / "a"
    real = Path(os.path.realpath(tmp_path / "real"))
    assert absolute(f"{tmp_path}/link/../a") == real / "a"


def test_remote_files_exist_and_are_read_whole_and_in_ranges(remote):
    file, folder, missing = (as_path(f"{remote}/{n}") for n in ("a.mp4", "deep", "no.mp4"))
    found = [(p.exists(), p.is_file(), p.is_dir()) for p in (file, folder, missing)]
    assert found == [(True, True, False), (True, False, True), (False, False, False)]
    assert file.read_bytes() == b"0123456789"
    assert file.open("rb").read() == b"0123456789"
    assert file.open("r", encoding="ascii").read() == "0123456789"
    assert read_range(str(file), 2, 5) == b"234"
    assert read_range(str(file), 7, None) == b"789"
    assert read_range(str(file), 0, 3) == b"012"
    with open_file(str(file)) as opened:
        assert opened.seek(4) == 4
        assert opened.read(3) == b"456"
        assert opened.readable()
        assert opened.seekable()
        assert opened.seek(-1, io.SEEK_END) == 9
        assert opened.read() == b"9"
    with pytest.raises(FileNotFoundError, match="no such file or bucket"):
        missing.read_bytes()


def test_local_files_are_read_in_ranges(tmp_path):
    path = str(tmp_path / "a")
    Path(path).write_bytes(b"0123456789")
    assert (read_range(path, 2, 5), read_range(path, 7, None)) == (b"234", b"789")
    with open_file(path) as file:
        assert file.read() == b"0123456789"


def test_folders_are_listed_with_the_status_of_their_files(remote, tmp_path):
    assert list_folders(remote) == {"deep"}
    listed = list_files(remote)
    assert listed.keys() == {"a.mp4"}
    assert listed["a.mp4"].size == 10
    assert listed["a.mp4"].version < -1
    assert list_files(f"{remote}/none") == {}
    local = tmp_path / "c.mp4"
    local.write_bytes(b"abc")
    os.utime(local, ns=(5_000_000_000, 7_000_000_000))
    wanted = [
        f"{remote}/a.mp4",
        f"{remote}/deep/b.mp4",
        f"{remote}/no.mp4",
        str(local),
        "gone",
        "\0",
    ]
    found = list_status(wanted)
    assert found.keys() == {wanted[0], wanted[1], str(local)}
    assert found[str(local)] == Status(3, 7_000_000_000, 7.0)
    assert found[wanted[0]] == listed["a.mp4"]


def test_another_content_has_another_version(remote):
    before = list_files(remote)["a.mp4"]
    fsspec.filesystem("memory").pipe("/bucket/videos/a.mp4", b"other")
    after = list_files(remote)["a.mp4"]
    assert (after.size, after.version == before.version) == (5, False)


def test_remote_files_are_written_whole_and_removed(remote, tmp_path):
    write_text(as_path(f"{remote}/new.csv"), "ä 1\n")
    assert as_path(f"{remote}/new.csv").read_bytes().decode() == "ä 1\n"
    as_path(f"{remote}/new.csv").unlink()
    assert not as_path(f"{remote}/new.csv").exists()
    as_path(f"{remote}/new.csv").unlink()
    (tmp_path / "a").write_bytes(b"local")
    upload(tmp_path / "a", f"{remote}/up")
    assert as_path(f"{remote}/up").read_bytes() == b"local"
    make_folder(as_path(f"{remote}/folder"))


class Bucket:
    """File system that remembers what it has listed, until it is told to forget it."""

    async_impl = False

    def __init__(self) -> None:
        self.files, self.remembered, self.requests = list[dict](), None, list[dict]()

    def invalidate_cache(self, place: str) -> None:
        self.remembered = None

    def ls(self, place: str, detail: bool) -> list[dict]:
        assert detail
        self.remembered = self.remembered or list(self.files)
        return self.remembered

    def info(self, place: str) -> dict:
        return {"type": "file" if self.ls(place, detail=True) else "directory"}

    def cat_file(self, place: str, **options: object) -> bytes:
        self.requests.append(options)
        return b"0123"


@pytest.fixture
def bucket(monkeypatch) -> Bucket:
    made = Bucket()
    monkeypatch.setattr(storage, "url_to_fs", lambda path: (made, "place"))
    return made


def test_a_folder_is_listed_as_it_is_now(bucket):
    """Others of this process use the same file system, and files come and go."""
    file = {"name": "bucket/videos/a.mp4", "type": "file", "size": 1}
    bucket.remembered = [file]
    assert list_files(ADDRESS) == {}
    bucket.files = [file]
    assert list_files(ADDRESS).keys() == {"a.mp4"}
    assert bucket.remembered is None
    bucket.remembered = [file]
    bucket.files = []
    assert as_path(ADDRESS).is_dir()


def test_a_file_has_the_version_and_the_time_that_its_file_system_gives(bucket):
    info = {"name": "a", "type": "file", "size": None}
    written, created = (datetime.fromtimestamp(seconds, UTC) for seconds in (2000, 1000))

    def status(**more: object) -> Status:
        bucket.files = [info | more]
        return list_files(ADDRESS)["a"]

    plain = status()
    assert (plain.size, plain.modified) == (0, None)
    assert status(created=created, LastModified=written).modified == 2000
    versions = [plain.version, status(ETag="x").version, status(ETag="y").version]
    assert len(set(versions)) == 3
    assert max(versions) < -1
    assert status(ETag="x", mtime=written) == (0, versions[1], 2000)


def test_only_the_bytes_that_are_wanted_are_requested(bucket):
    for bounds in ((0, None), (0, 3), (2, None)):
        assert read_range(f"{ADDRESS}/a.mp4", *bounds) == b"0123"
    plain = {"cache_type": "none"}
    assert bucket.requests == [
        plain,
        plain | {"start": 0, "end": 3},
        plain | {"start": 2, "end": None},
    ]
    bucket.async_impl = True
    read_range(f"{ADDRESS}/a.mp4", 0, 3)
    assert bucket.requests[-1] == {"start": 0, "end": 3}


def test_errors_of_a_remote_file_system_name_the_path_and_what_to_check(monkeypatch):
    def fail(path):
        raise PermissionError("no  credentials.\n")

    monkeypatch.setattr(storage, "url_to_fs", fail)
    said = r"^memory://bucket/videos cannot be read: no credentials\. Check .* for memory://$"
    with pytest.raises(RunError, match=said):
        list_files(ADDRESS)
    with pytest.raises(RunError, match="cannot be removed"):
        as_path(ADDRESS).unlink()


# Local files.


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "first \udcff")
    assert path.read_bytes() == b"first \\udcff"
    with pytest.raises(OSError, match="half") as caught, atomic_write(path) as file:
        raise OSError(28, "half")
    assert caught.value.filename == str(path), "a full disk names no file"
    with pytest.raises(OSError, match="other") as caught, atomic_write(path) as file:
        raise OSError(28, "half", "other")
    assert caught.value.filename == "other"
    assert path.read_bytes() == b"first \\udcff"
    with atomic_write(path, shared=True) as file:
        assert file.name.startswith(str(path) + ".")
        assert file.name != f"{path}.tmp"
        file.write(b"second")
        assert path.read_bytes() == b"first \\udcff"
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_and_its_folder_are_synced_before_and_after_the_rename(tmp_path, monkeypatch):
    path, events = tmp_path / "a.txt", list[str]()
    replace, fsync = Path.replace, os.fsync

    def noted_sync(number):
        name = os.path.basename(os.readlink(f"/proc/self/fd/{number}"))
        events.append(f"sync {name}")
        fsync(number)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", lambda a, b: events.append("rename") or replace(a, b))
    before = len(os.listdir("/proc/self/fd"))
    write_text(path, "x")
    assert events == ["sync a.txt.tmp", "rename", f"sync {tmp_path.name}"]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match=r"file/a\.txt cannot be written: a file is in the place"):
        write_text(tmp_path / "file" / "a.txt", "x")
    with pytest.raises(RunError, match=r"^--output .*cannot be written: a file is in the place of"):
        make_folder(tmp_path / "file", "--output")
    make_folder(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").is_dir()
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patched:
        patched.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
        with pytest.raises(RunError, match="Permission denied"):
            make_folder(tmp_path / "new")


def test_an_output_is_refused_before_the_work_if_it_is_a_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    check_output(None, "--plot")
    check_output(tmp_path / "new" / "a.png", "--plot")
    check_output(tmp_path / "file", "--plot")
    with pytest.raises(ValueError, match=r"^--plot .* cannot be written: it is a folder"):
        check_output(tmp_path, "--plot")
    with pytest.raises(ValueError, match=r"^--plot .*/file/a.png cannot .*: .*/file is a file"):
        check_output(tmp_path / "file" / "a.png", "--plot")


def test_files_are_queried_by_name():
    assert map_files(len, ["a", "bcd", ""]) == {"a": 1, "bcd": 3, "": 0}


def test_the_checksums_of_an_archive(tmp_path):
    import zipfile

    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights", bytes(100))
    assert check_archive(path) is True
    good = path.read_bytes()
    spoilt = bytearray(good)
    spoilt[60] ^= 1  # in the data of the entry
    path.write_bytes(spoilt)
    with pytest.raises(ValueError, match="checksum of the entry weights does not match"):
        check_archive(path)
    path.write_bytes(good[:80])
    with pytest.raises(ValueError, match="is damaged: "):
        check_archive(path)
    path.write_bytes(b"no archive")
    assert check_archive(path) is False


def test_a_disk_that_fails_is_no_damaged_archive(tmp_path, monkeypatch):
    """zipfile also raises an OSError for an invalid file, if it seeks before its beginning."""
    path = tmp_path / "a.zip"
    path.write_bytes(b"PK\x03\x04")

    def fail(number):
        def open_archive(file):
            raise OSError(number, "no")

        monkeypatch.setattr("zipfile.ZipFile", open_archive)

    fail(errno.EIO)
    with pytest.raises(OSError, match="no") as caught:
        check_archive(path)
    assert caught.value.errno == errno.EIO
    fail(errno.EINVAL)
    with pytest.raises(ValueError, match=r"a\.zip is damaged"):
        check_archive(path)
