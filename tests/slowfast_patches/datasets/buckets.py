"""An S3 server on this machine, which answers the real s3fs."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import fsspec
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

_REQUEST = re.compile(r'"(?P<method>[A-Z]+) (?P<path>/\S*) \S+" (?P<status>\d+)')


class Bucket(logging.Handler):
    """Bucket of a server on this machine.

    Attributes:
        requests: The requests that the server has answered, such as "GET /data/a.mp4 206".
    """

    url = "s3://data"

    def __init__(self) -> None:
        super().__init__()
        self.requests = list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        if found := _REQUEST.search(re.sub(r"\x1b\[\d+m", "", record.getMessage())):
            self.requests.append(" ".join(found.group("method", "path", "status")))

    def clear(self) -> None:
        """Make the bucket empty."""
        s3_backends.reset()
        system = fsspec.filesystem("s3")
        system.invalidate_cache()
        system.mkdir("data")
        self.requests.clear()

    def upload(self, folder: Path, name: str = "") -> None:
        fsspec.filesystem("s3").put(f"{folder}/", f"data/{name}", recursive=True)

    def content(self) -> dict[str, str]:
        """Return the ETag of each file in the bucket."""
        system = fsspec.filesystem("s3")
        system.invalidate_cache()
        found = system.find("data", detail=True)
        return {name: info["ETag"] for name, info in found.items()}


def forget_connections() -> None:
    """Have the next request read the environment variables again."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@contextmanager
def serve_bucket() -> Iterator[Bucket]:
    """Context manager: start a server. Call `clear` to make the bucket s3://data."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    bucket = Bucket()
    log = logging.getLogger("werkzeug")
    log.setLevel(logging.INFO)
    with mock.patch.dict(os.environ, variables):
        forget_connections()
        log.addHandler(bucket)
        yield bucket
    log.removeHandler(bucket)
    forget_connections()
    server.stop()
