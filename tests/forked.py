"""Python programs in forks of a process that has torch imported, which takes seconds.

`Server.start` starts a program and returns an object that behaves like subprocess.Popen. This file
is also the program of the server, which receives requests through the socket on its standard input.
"""

import atexit
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
IMPORTED = (
    "slowfast_patches.train.run",
    "slowfast_patches.datasets.preparing.prepare",
    "torch._dynamo",
    "torch.utils.tensorboard",
    "matplotlib.pyplot",
    "sklearn.metrics",
)
DEADLINE = 600
"""Seconds after which any program ends, whatever it waits for."""
NUMBER = struct.Struct("i")


class Process(subprocess.Popen):
    """Process that the server starts and waits for.

    A fork of the server writes the process id to a pipe, and later the exit status.
    """

    def __init__(self, requests: socket.socket, command: list[str], **options: object) -> None:
        self._requests = requests
        super().__init__(command, **options)

    def _execute_child(self, command, _executable, _before, _close, _pass, folder, env, *rest):
        stdin, _, _, stdout, _, stderr = pipes = rest[3:9]
        places = [own if given < 0 else given for own, given in enumerate((stdin, stdout, stderr))]
        self._status, status = os.pipe()
        request = {"command": command, "folder": str(folder or Path.cwd()), "environment": env}
        socket.send_fds(self._requests, [json.dumps(request).encode()], [*places, status])
        os.close(status)
        (self.pid,) = NUMBER.unpack(os.read(self._status, NUMBER.size))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _try_wait(self, flags: int) -> tuple[int, int]:
        ready, _, _ = select.select([self._status], [], [], 0 if flags & os.WNOHANG else None)
        if not ready:
            return 0, 0
        (status,) = NUMBER.unpack(os.read(self._status, NUMBER.size))
        os.close(self._status)
        return self.pid, status

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


class Server:
    """Server that starts programs. Call `close` at the end."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # torch reads this when it is imported; tools/run_net.py sets it.
            environment = os.environ | {"TORCH_CPP_LOG_LEVEL": "ERROR"}
            command = [sys.executable, "-P", __file__]
            self._process = subprocess.Popen(command, stdin=theirs, env=environment)

    def start(self, *command: object, env: dict[str, str] | None = None, **options: object):
        """Start a program in a new session, and return its process.

        The command is the path of a program of the repository, or "-c" and source code, followed by
        the arguments. `options` are those of subprocess.Popen.
        """
        defaults = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        environment = dict(os.environ) if env is None else env
        return Process(self._requests, [*map(str, command)], env=environment, **defaults | options)

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


def serve() -> list[str]:
    """Answer requests until the socket is closed. Return only in forks, with the command to run."""
    with socket.socket(fileno=os.dup(0)) as requests:
        while True:
            text, descriptors, *_ = socket.recv_fds(requests, 1 << 18, 4)
            with suppress(ChildProcessError):  # of those that have waited for a program
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not text:
                sys.exit()
            if os.fork() == 0:
                requests.close()
                *places, status = descriptors
                return fork(json.loads(text), places, status)
            for descriptor in descriptors:
                os.close(descriptor)


def fork(request: dict, places: list[int], status: int) -> list[str]:
    """Fork, and return the command in the child. The parent waits for the child, and exits."""
    if number := os.fork():
        os.write(status, NUMBER.pack(number))
        for descriptor in (*places, 0, 1, 2):
            os.close(descriptor)
        os.write(status, NUMBER.pack(os.waitpid(number, 0)[1]))
        os._exit(0)
    os.setsid()
    signal.alarm(DEADLINE)
    for own, descriptor in enumerate(places):
        os.dup2(descriptor, own)
    # Those of the server were made for other files, and may believe that a pipe can seek.
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    for descriptor in (*places, status):
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # as TMPDIR says
    return request["command"]


def run(program: str, *arguments: str) -> int | None:
    """Run a program as Python does, but without the slow clean-up of torch at exit."""
    try:
        if program == "-c":
            sys.argv = [program, *arguments[1:]]
            sys.modules["__main__"] = ModuleType("__main__")
            exec(arguments[0], sys.modules["__main__"].__dict__)
        else:
            sys.argv = [str(ROOT / program), *arguments]
            sys.path.insert(0, str(Path(sys.argv[0]).parent))
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        return end.code
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    os._exit(run(*serve()) or 0)
