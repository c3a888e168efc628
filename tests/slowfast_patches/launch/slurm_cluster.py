"""A SLURM cluster of virtual nodes on this machine, from Debian's packages slurm-wlm and munge."""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
PATIENCE = 150.0
"""Seconds for what takes a tenth of it on an idle machine."""

# A requeued job waits until the credential of its last step has expired.
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/ended
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
ReturnToService=2
KillWait=20
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4\n"


class Cluster:
    """Cluster of three nodes with 4 CPUs in the partition `batch`. Call `close` at the end."""

    nodes = ("127.0.0.2", "127.0.0.3", "127.0.0.4")

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        host = socket.gethostname().partition(".")[0]
        ports = free_ports(1 + len(self.nodes))
        text = CONFIG.format(folder=self.folder, host=host, ports=ports)
        for name, port in zip(self.nodes, ports[1:], strict=True):
            text += NODE.format(name=name, host=host, port=port)
            (self.folder / "spool" / name).mkdir(parents=True)
        text += "PartitionName=batch Nodes=ALL Default=YES\n"
        self.config = self.folder / "slurm.conf"
        self.config.write_text(text)
        if Path("/sys/fs/cgroup/freezer").is_dir():
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        munge = self.folder / "munge"
        for path in (munge, self.folder / "state"):
            path.mkdir()
        for path in (self.folder, munge):
            path.chmod(0o755)
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o600)
        files = {"key-file": "key", "seed-file": "seed", "socket": "socket"}
        files |= {"pid-file": "munged.pid", "log-file": "log"}
        self.run("munged", "--force", *(f"--{name}={munge / file}" for name, file in files.items()))
        self.run("slurmctld")
        for name in self.nodes:
            self.run("slurmd", "-N", name)
        idle = f"idle {len(self.nodes)}"
        self.until(lambda: self.run("sinfo", "--noheader", "--format=%T %D", check=False) == idle)

    def run(self, *command: str, check: bool = True) -> str:
        """Run one of SLURM's programs, and return what it prints."""
        environment = os.environ | {"SLURM_CONF": str(self.config)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0 or not check, (command, done.stderr)
        return done.stdout.strip()

    def until(self, holds: Callable[[], object], seconds: float = PATIENCE) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, self.run("squeue", check=False)
            time.sleep(0.1)

    def end(self, job: str) -> str:
        """Wait until a job has ended, and return its state and exit status, such as FAILED 1:0."""
        found = re.compile(rf"JobId={job} .* JobState=(\w+) .* ExitCode=(\S+)")
        ended = self.folder / "ended"
        self.until(lambda: ended.exists() and found.search(ended.read_text()))
        self.until(lambda: not self.run("squeue", "--noheader", "--jobs", job, check=False))
        return " ".join(found.findall(ended.read_text())[-1])

    def restarts(self, job: str) -> int:
        """Return how often a job was requeued. SLURM forgets the job some minutes after its end."""
        return int(re.search(r"Restarts=(\d+)", self.run("scontrol", "show", "job", job))[1])

    def close(self) -> None:
        """Cancel all jobs, and end the daemons."""
        self.run("scancel", "--user=root", check=False)
        with suppress(AssertionError):
            self.until(lambda: not self.run("squeue", "--noheader", check=False), 30)
        for path in self.folder.glob("**/*.pid"):
            with suppress(ValueError, ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGTERM)
        with suppress(AssertionError):  # They delete these files at their end.
            self.until(lambda: not list(self.folder.glob("**/*.pid")), 10)
        shutil.rmtree(self.folder, ignore_errors=True)


def is_possible() -> bool:
    """Return whether a cluster can be started on this machine."""
    return os.geteuid() == 0 and all(map(shutil.which, PROGRAMS))


def free_ports(count: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in sockets]
