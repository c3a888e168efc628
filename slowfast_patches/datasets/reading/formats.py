"""The formats of videos: the containers that are opened, and the suffixes of their files."""

from __future__ import annotations

import os
from itertools import chain

_FORMATS = {
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

All these demuxers read a single self-contained file. Other demuxers may open other files through a
playlist, render text as pictures, or interpret the file name as a pattern.
"""
CONTAINERS = tuple(_FORMATS)
"""Names of the allowed FFmpeg demuxers."""
SUFFIXES = tuple(dict.fromkeys(chain(*_FORMATS.values())))
"""Suffixes of video files, in lower case."""


def is_video_name(path: str) -> bool:
    """Return whether a path ends with the suffix of a video file, in upper or lower case."""
    return path.lower().endswith(SUFFIXES)


def video_name(path: str) -> str:
    """Return the file name without its video suffixes: `a.webm.mp4` becomes `a`."""
    name = os.path.basename(path)
    while is_video_name(name):
        name = os.path.splitext(name)[0]
    return name


def video_files(folder: str | os.PathLike[str]) -> list[str]:
    """Return the sorted paths of the video files in a folder, chosen by their suffixes.

    Hidden files, such as macOS's ._a.mp4, are ignored.
    """
    names = (name for name in os.listdir(folder) if name[0] != "." and is_video_name(name))
    return sorted(os.path.join(folder, name) for name in names)
