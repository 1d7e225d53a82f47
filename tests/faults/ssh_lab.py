"""Lab hosts with a real sshd each: `poseidon train --hosts …` reaches them as it would reach machines.

Host i is 10.77.0.(i+1), a network namespace with a link of its own (bench/netlab.py). The files are this machine's;
what a host is to have otherwise (another version, a missing file, a full disk) is mounted over in that host only. Keys
and settings live in a folder of the test. The command under test runs on host 0 and reaches all hosts by ssh.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from bench.netlab import NETWORK, Lab, Links

ROOT = Path(__file__).parents[2]
PORT = 22


def address(host: int) -> str:
    return f"{NETWORK}.{host + 1}"


@dataclass(slots=True)
class Running:
    """A command on host 0, and what it has said so far."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self.times.append(time.monotonic())
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, *words: str, after: int = 0, timeout_s: float = 120.0) -> int:
        """The number of the first line from `after` on that has all the words; fails if the command ends before."""
        deadline_s = time.monotonic() + timeout_s
        with self._news:
            while True:
                for number in range(after, len(self.lines)):
                    if all(word in self.lines[number] for word in words):
                        return number
                assert self.process.poll() is None, f"ended without saying {words}:\n{self.text}"
                left_s = deadline_s - time.monotonic()
                assert left_s > 0, f"did not say {words} in {timeout_s} s:\n{self.text}"
                self._news.wait(min(left_s, 1.0))

    def wait(self, timeout_s: float = 180.0) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s:\n{self.text}") from None

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class SshLab:
    """`mounts`: by host, shell commands run in that host's own view of the files before its sshd starts."""

    def __init__(
        self,
        folder: Path,
        num_hosts: int,
        *,
        rates: Sequence[str] = ("none",),
        mounts: dict[int, list[str]] | None = None,
        without_sshd: Sequence[int] = (),
    ) -> None:
        self.folder, self.num_hosts, self._mounts = folder, num_hosts, mounts or {}
        self._without = set(without_sshd)
        self.lab = Lab(f"pf{os.getpid()}", num_hosts, Links(tuple(rates)))
        self._servers: dict[int, subprocess.Popen[bytes]] = {}
        self._running: list[Running] = []

    def __enter__(self) -> SshLab:
        sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        assert sshd is not None, "openssh-server is needed; ./test.sh installs it when it is run as root"
        self._sshd = sshd
        self._write_keys()
        self.lab.__enter__()
        try:
            for host in range(self.num_hosts):
                if host not in self._without:
                    self.serve(host)
        except BaseException:  # Ctrl-C too: no server is left behind
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for running in self._running:
            if running.process.poll() is None:
                running.process.kill()
            running.process.wait()
        self.lab.down()  # kills what still runs in the namespaces
        for server in self._servers.values():
            server.wait()

    # -- hosts --------------------------------------------------------------------------------------------------------
    def serve(self, host: int) -> None:
        """Starts a host's sshd, and waits until it listens."""
        config = self.folder / f"sshd_{host}"
        config.write_text(
            f"Port {PORT}\nListenAddress {address(host)}\nHostKey {self.folder}/host_key\nPidFile none\n"
            f"AuthorizedKeysFile {self.folder}/user_key.pub\nStrictModes no\nPermitRootLogin yes\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nMaxStartups 50\nSetEnv XDG_RUNTIME_DIR="
            f"{self.runtime(host)}\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd parts with its privileges
        setup = " && ".join(["mount --make-rprivate /", *self._mounts.get(host, [])])
        command = f"{setup} && exec {self._sshd} -D -e -f {config}"
        server = self.lab.start(host, ["unshare", "--mount", "sh", "-c", command], stderr=subprocess.PIPE)
        self._servers[host] = server
        said: list[bytes] = []
        for line in server.stderr:
            said.append(line)
            if b"Server listening on" in line:
                break
        else:
            raise AssertionError(f"sshd of host {host} ended: {b''.join(said).decode()}")
        threading.Thread(target=server.stderr.read, daemon=True).start()  # so that it can go on talking

    def runtime(self, host: int) -> Path:
        """Where processes of a host keep what is theirs."""
        folder = self.folder / f"run_{host}"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def kill_host(self, host: int) -> None:
        """Everything that runs on a host is gone at once, as when the power is."""
        words = ["ip", "netns", "pids", self.lab.host(host)]
        for pid in subprocess.run(words, capture_output=True, text=True, check=True).stdout.split():
            kill_if_there(int(pid))
        self._servers[host].wait()

    def pids(self, host: int) -> list[int]:
        words = ["ip", "netns", "pids", self.lab.host(host)]
        return [int(pid) for pid in subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()]

    def workers_on(self, host: int) -> list[int]:
        """The job's workers on a host, known by the name a nursery gives them. The newest last."""
        return sorted((pid for pid in self.pids(host) if _name(pid).startswith("poseidon ")), key=_started)

    def launcher(self) -> int:
        """The process of `poseidon train --hosts` itself, on host 0."""
        return min(pid for pid in self.pids(0) if b"poseidon\0train" in words_of(pid))

    def on_disk_of(self, host: int, script: str) -> str:
        """Runs a shell script with a host's own view of the files; what it says."""
        words = ["nsenter", f"--mount=/proc/{self._servers[host].pid}/ns/mnt", "sh", "-ec", script]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    def left(self) -> list[int]:
        """Anything of Poseidon's that runs on any host, agents included."""
        return [pid for host in range(self.num_hosts) for pid in self.pids(host) if b"poseidon" in words_of(pid)]

    def wait_for_nothing(self, timeout_s: float = 30.0) -> None:
        """Until nothing of Poseidon's is left on any host."""
        deadline_s = time.monotonic() + timeout_s
        while left := self.left():
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"still there after {timeout_s} s: {[words_of(pid) for pid in left]}"
            with contextlib.suppress(ProcessLookupError):
                ended = os.pidfd_open(left[0])
                select.select([ended], [], [], left_s)
                os.close(ended)

    # -- commands -----------------------------------------------------------------------------------------------------
    def hosts(self, *slots: int) -> str:
        """What `--hosts` is told: all hosts, one worker each unless said otherwise."""
        counts = slots or (1,) * self.num_hosts
        return ",".join(f"{address(host)}:{count}" for host, count in enumerate(counts) if count)

    @property
    def ssh(self) -> str:
        return f"ssh -F {self.folder}/ssh_config"

    def start(self, *words: str, host: int = 0, **environ: str) -> Running:
        """`poseidon WORDS` on a host, in the lab's folder."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("RANK", "MASTER_", "WORLD"))}
        environment = {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TORCH_CPP_LOG_LEVEL": "ERROR"}
        environment |= {"XDG_RUNTIME_DIR": str(self.runtime(host)), **environ}
        inner = shlex.join([sys.executable, "-m", "poseidon", *words])
        clean = "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT GLOO_SOCKET_IFNAME"
        command = ["ip", "netns", "exec", self.lab.host(host), "unshare", "--uts", "sh", "-c"]
        command += [f"hostname {self.lab.host(host)} && {clean}; exec {inner}"]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        running = Running(process)
        self._running.append(running)
        threading.Thread(target=running.read, daemon=True).start()
        return running

    def train(self, *words: str, hosts: str = "", **environ: str) -> Running:
        where = (f"--hosts={hosts or self.hosts()}", f"--ssh={self.ssh}")
        return self.start("train", "--solver=solver.prototxt", *where, *words, **environ)

    # -- keys ---------------------------------------------------------------------------------------------------------
    def _write_keys(self) -> None:
        for name in ("host_key", "user_key"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(words, check=True)
        (self.folder / "ssh_config").write_text(
            f"Host *\n  Port {PORT}\n  User root\n  IdentityFile {self.folder}/user_key\n  IdentitiesOnly yes\n"
            "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
        )


def kill_if_there(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def words_of(pid: int) -> bytes:
    """The command line of a process; empty if there is none any more."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def cpu_ticks(pid: int) -> int:
    """How long a process has computed, in hundredths of a second; very long if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 1 << 30
    return int(fields[11]) + int(fields[12])


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def _started(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Looks again and again for something that nobody tells us of."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
        os.sched_yield()


class Gate:
    """A named pipe by which a process of the lab says that it has come to a certain place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def wait(self, timeout_s: float = 60.0) -> None:
        """Until somebody has written to it."""
        ready, _, _ = select.select([self._reading], [], [], timeout_s)
        os.close(self._reading)
        assert ready, f"nobody came to {self.path} within {timeout_s} s"
