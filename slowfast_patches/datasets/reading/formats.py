"""Formats of video files that are read, and names of video files."""

from __future__ import annotations

import os
from itertools import chain

from slowfast_patches.utils.storage import is_remote

FORMATS = {
    "mov": (".mp4", ".m4v", ".mov", ".qt", ".3gp", ".3g2", ".f4v"),
    "matroska": (".mkv", ".webm"),
    "avi": (".avi", ".divx"),
    "mpeg": (".mpg", ".mpeg", ".vob"),
    "mpegts": (".ts", ".mts", ".m2t", ".m2ts"),
    "asf": (".wmv", ".asf"),
    "flv": (".flv",),
    "ogg": (".ogv", ".ogg", ".ogm"),
    "mxf": (".mxf",),
    "gxf": (".gxf",),
    "nut": (".nut",),
    "rm": (".rm", ".rmvb"),
    "wtv": (".wtv",),
    "dv": (".dv", ".dif"),
    "ivf": (".ivf",),
    "obu": (".obu",),
    "gif": (".gif",),
    "mjpeg": (".mjpeg", ".mjpg"),
    "mpegvideo": (".m1v", ".m2v"),
    "m4v": (".m4v",),
    "h264": (".h264", ".264", ".avc"),
    "hevc": (".hevc", ".h265", ".265"),
    "vc1": (".vc1",),
    "yuv4mpegpipe": (".y4m",),
}
"""Suffixes of files by the name of FFmpeg's demuxer. docs/data.md lists the same suffixes.

FFmpeg opens files with these demuxers only. All of them read a single self-contained file. Other
demuxers may open other files through a playlist, render text as pictures, or interpret the file
name as a pattern.
"""
SUFFIXES = tuple(dict.fromkeys(chain(*FORMATS.values())))
"""Suffixes of video files, in lower case."""


def is_video_name(path: str) -> bool:
    """Return whether a path ends with the suffix of a video file, in upper or lower case."""
    return path.lower().endswith(SUFFIXES)


def video_name(path: str) -> str:
    """Return the file name without its video suffixes: `a.webm.mp4` becomes `a`.

    For frames, return the name of their folder: `a/` and `a/img_*.jpg` become `a`.
    """
    folder, name = os.path.split(path.rstrip("/") if is_remote(path) else os.path.abspath(path))
    if "*" in name:
        name = os.path.basename(folder)
    while is_video_name(name) and (stem := os.path.splitext(name)[0]) != name:
        name = stem
    return name


def video_files(folder: str | os.PathLike[str]) -> list[str]:
    """Return the sorted paths of the video files in a folder, chosen by their suffixes.

    Hidden files, such as macOS's ._a.mp4, are ignored.
    """
    names = (name for name in os.listdir(folder) if name[0] != "." and is_video_name(name))
    return sorted(os.path.join(folder, name) for name in names)
