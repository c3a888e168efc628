"""Measure how fast clips are read from a bucket, compared with local files.

    python benchmarks/bucket.py --csv /data/kinetics/val.csv --videos 40 --latency 20

The videos and their prepared copies are uploaded to an S3 server on this machine (moto), which
another process runs. `--latency` delays each answer, as the network and a real bucket do. One
process reads the same clips from the local files and from the bucket, in interleaved rounds. The
benchmark prints the clips per second of wall-clock time, and the requests and bytes of a clip.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import numpy as np
import torch
from common import (
    Column,
    provenance,
    quartiles,
    ratios,
    spread_text,
    table,
    take_turns,
    write_result,
)
from loader_speed import make_sets, new_source_parser

from multigrid import ClipRequest, Shape
from slowfast_patches.config import load_recipe
from slowfast_patches.datasets.clip_dataset import ClipDataset
from slowfast_patches.datasets.lists.csv_list import read_csv
from slowfast_patches.utils.command_line import add_option, tool
from slowfast_patches.utils.storage import upload

SHAPES = (Shape(64, 8, 112), Shape(16, 16, 158), Shape(8, 32, 224))
"""The smallest, a middle and the largest clips of the recipe."""
COLUMNS: dict[str, Column] = {
    "clip": ("clip", str),
    "files": ("form", str),
    "local, clips/s": ("local|median", "{:.1f}".format),
    "bucket, clips/s": ("bucket|median", "{:.1f}".format),
    "bucket / local": ("ratio", spread_text),
    "requests per clip": ("requests", "{:.1f}".format),
    "kB per clip": ("bytes", lambda size: f"{size / 1000:.0f}"),
}


class Traffic(NamedTuple):
    """Counters of the server: answered requests, and the bytes of the answers."""

    requests: Synchronized[int]
    bytes: Synchronized[int]

    def read(self) -> tuple[int, int]:
        return self.requests.value, self.bytes.value


@tool
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write the result, and return the exit status."""
    parser = new_source_parser(__doc__, "runs/bucket", 8)
    add_option(parser, "--latency", "MS", "delay of each answer of the server (0)", float, 0.0)
    args = parser.parse_intermixed_args(argv)
    torch.set_num_threads(1)
    local = make_sets(args)
    with serve(args.latency / 1000) as traffic:
        rows = [
            row for form, folder in local.items() for row in measure(args, form, folder, traffic)
        ]
    print(table(rows, COLUMNS, markdown=True))
    result = {"latency_ms": args.latency, "clips": rows, **provenance()}
    write_result(args.output / "bucket.json", "bucket.py", argv, result)
    return 0


def measure(
    args: argparse.Namespace, form: str, folder: Path, traffic: Traffic
) -> Iterator[dict[str, Any]]:
    """Upload the videos of a list, and yield the result for each shape."""
    pairs = [*args.overrides, "DATA.PATH_PREFIX", "", "NUM_GPUS", 0]
    paths = [video.path for video in read_csv(folder / "train.csv")]
    for path in paths:
        upload(path, f"s3://data/{form}/{Path(path).name}")
    names = folder / "names.csv"
    names.write_text("".join(f"{Path(path).name} 0\n" for path in paths))
    upload(names, f"s3://data/{form}/train.csv")
    places = {"local": str(folder), "bucket": f"s3://data/{form}"}
    datasets = {
        place: ClipDataset.of_recipe(
            load_recipe(args.cfg, [*pairs, "DATA.PATH_TO_DATA_DIR", where]), "train"
        )
        for place, where in places.items()
    }
    for shape in SHAPES:
        turns = {
            place: partial(read_all, dataset, shape, traffic) for place, dataset in datasets.items()
        }
        measured = take_turns(turns, args.rounds, warm_up=1)
        speeds = {place: [each[0] for each in of_round] for place, of_round in measured.items()}
        _, requests, size = measured["bucket"][0]
        yield {
            "clip": f"{shape.frames} × {shape.crop}²",
            "form": form,
            **{place: quartiles(speed) for place, speed in speeds.items()},
            "ratio": ratios(speeds["bucket"], speeds["local"]),
            "requests": requests,
            "bytes": size,
        }


def read_all(dataset: ClipDataset, shape: Shape, traffic: Traffic) -> tuple[float, float, float]:
    """Read a clip of each video.

    Returns:
        The clips per second, the requests per clip and the bytes per clip.
    """
    before = traffic.read()
    start = time.perf_counter()
    for video in range(len(dataset.videos)):
        dataset[ClipRequest(video, 0, shape, 0)]
    seconds = time.perf_counter() - start
    requests, size = np.subtract(traffic.read(), before) / len(dataset.videos)
    return len(dataset.videos) / seconds, float(requests), float(size)


@contextmanager
def serve(latency: float) -> Iterator[Traffic]:
    """Run an S3 server with the bucket s3://data in another process, in a `with` statement."""
    context = multiprocessing.get_context("spawn")
    traffic = Traffic(context.Value("q", 0), context.Value("q", 0))
    receiver, sender = context.Pipe(duplex=False)
    server = context.Process(target=_serve, args=(sender, latency, traffic), daemon=True)
    server.start()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{receiver.recv()}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    fsspec.filesystem("s3").mkdir("data")
    yield traffic
    server.terminate()
    server.join()


def _serve(sender: Any, latency: float, traffic: Traffic) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    app = DomainDispatcherApplication(create_backend_app)

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open, as those of S3 do

        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        time.sleep(latency)
        body = b"".join(app(environ, start))
        with traffic.requests.get_lock():
            traffic.requests.value += 1
            traffic.bytes.value += len(body)
        return [body]

    server = make_server("127.0.0.1", 0, answer, threaded=True, request_handler=Handler)
    sender.send(server.server_port)
    server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
