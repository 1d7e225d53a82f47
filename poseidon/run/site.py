"""Site: one host of a job, as the launcher sees it: an agent there, and the ssh connection to it.

CONNECTING ─ ready, found ─→ READY ─ ssh ends, or nothing heard for SILENCE_S ─→ LOST
     └──── ssh ends, refuses, or takes longer than CONNECT_S ────────────────────↗
"""

from __future__ import annotations

import contextlib
import enum
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poseidon.errors import UsageError
from poseidon.run.hosts import Host
from poseidon.run.inventory import Inventory
from poseidon.run.messages import Inbox, Message, packed

CONNECT_S = 30.0
SILENCE_S = 5.0
PING_S = 1.0
_MOST_LINES = 20
# What belongs to a session or a host rather than to a job.
_OWN = [
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "HOSTNAME",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "MAIL",
    "TMPDIR",
    "TERM",
    "COLORTERM",
    "LS_COLORS",
    "DISPLAY",
    "LANG_SESSION",
    "_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "ROLE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
]
_OWN_STARTS = ("SSH_", "XDG_", "DBUS_", "SLURM_", "SLURMD_", "OMPI_", "PMIX_", "PMI_", "TORCHELASTIC_", "TMUX", "STY")


class SiteState(enum.Enum):
    CONNECTING = enum.auto()
    READY = enum.auto()
    LOST = enum.auto()


@dataclass(frozen=True, slots=True)
class Entry:
    """What an agent is told when it starts. `files` must be alike everywhere; `towards` is another host, "": none.
    `silence_s`: after so long without a sign of life a host is cut off. `modules` are what workers will load; none:
    there will be no workers."""

    ssh: tuple[str, ...]
    folder: str
    environ: Mapping[str, str]
    files: tuple[str, ...]
    interface: str | None = None
    towards: str = ""
    silence_s: float = SILENCE_S
    modules: tuple[str, ...] = ()


def portable(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that is the same wherever a job's workers run."""
    return {name: text for name, text in environ.items() if name not in _OWN and not name.startswith(_OWN_STARTS)}


class Site:
    """`problem` says why a site was lost, in words that follow its name."""

    def __init__(self, host: Host, entry: Entry) -> None:
        self.host, self.state, self.problem = host, SiteState.CONNECTING, ""
        self.inventory: Inventory | None = None
        self.address = ""
        self.ranks: set[int] = set()  # workers that run there
        self.answers: dict[Any, Message] = {}  # to numbered questions
        self._entry = entry
        self._inbox, self._unsent = Inbox(), b""
        self._stray: deque[str] = deque(maxlen=_MOST_LINES)  # what ssh and shells say
        self._began_s = self._heard_s = self._pinged_s = time.monotonic()
        self._process = subprocess.Popen(
            _command(host, entry),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
        self.say("hello", folder=entry.folder, environ=portable(entry.environ), modules=list(entry.modules))
        self.say("look", files=list(entry.files), interface=entry.interface, towards=entry.towards)

    @property
    def is_open(self) -> bool:
        return self.state is not SiteState.LOST

    @property
    def is_ready(self) -> bool:
        return self.state is SiteState.READY

    def streams(self) -> list[int]:
        """File descriptors to be listened to; none once it is lost."""
        if not self.is_open:
            return []
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        return [self._process.stdout.fileno(), self._process.stderr.fileno()]

    def say(self, kind: str, **facts: Any) -> None:
        if self.is_open:
            self._unsent += packed(kind, **facts)
            self._flush()

    def hear(self, stream: int) -> list[Message]:
        """The messages that have come on one of its streams. Strangers' words are kept for explanations."""
        if not self.is_open:  # its other stream has just come to an end
            return []
        assert self._process.stderr is not None
        try:
            data = os.read(stream, 1 << 16)
        except BlockingIOError:
            return []
        if stream == self._process.stderr.fileno():
            self._stray.extend(line for line in data.decode(errors="replace").splitlines() if line.strip())
            return []
        if not data:
            self._ended()
            return []
        self._heard_s = time.monotonic()
        return [message for message in self._inbox.take(data) if not self._keeps(message)]

    def look_after(self) -> None:
        """Gives and expects signs of life."""
        now_s = time.monotonic()
        if not self.is_open:
            return
        if now_s - self._pinged_s > PING_S:
            self._pinged_s = now_s
            self.say("ping")
        self._flush()
        if self.state is SiteState.CONNECTING and now_s - self._began_s > CONNECT_S:
            self.lose(f"did not answer within {CONNECT_S:g} s{self._last_words()}")
        elif self.state is SiteState.READY and now_s - self._heard_s > self._entry.silence_s:
            self.lose(f"is cut off: nothing was heard from it for {self._entry.silence_s:g} s")
        elif self._process.poll() is not None:
            self._ended()

    def lose(self, problem: str) -> None:
        """Gives the site up. Its agent notices, by the end of its input or by silence, and ends what runs there."""
        if self.is_open:
            self.state, self.problem = SiteState.LOST, problem
            self.close()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]

    def hang_up(self) -> None:
        """Ends the agent's input, by which it knows that it is to end."""
        if self.is_open:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def leave(self, timeout_s: float) -> None:
        """After `hang_up`: the agent has `timeout_s` to end by itself. None is waited for that was never there."""
        if self.is_open:
            if self.is_ready:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout_s)
            self.state = SiteState.LOST
            self.close()

    def _keeps(self, message: Message) -> bool:
        """True if a message is for the site itself."""
        kind = message["kind"]
        if kind == "found" and self.state is SiteState.CONNECTING:
            try:
                self.inventory = Inventory.from_json(message.get("inventory"))
            except UsageError as problem:
                self.lose(f"answers in a way that is not understood: {problem}")
                return True
            self.address = str(message.get("address"))
            self.state = SiteState.READY
        elif kind == "text":
            self._stray.append(str(message.get("text")))
        elif kind in ("answer", "problem") and message.get("number") is not None:
            self.answers[message["number"]] = message
        elif kind == "problem" and self.state is SiteState.CONNECTING:
            self.lose(str(message.get("text")))
        elif kind == "problem":  # with what it was told to do: whoever told it must know
            return False
        return kind in ("found", "text", "ready", "pong", "answer", "problem")

    def _ended(self) -> None:
        """The connection is over: why, as well as that can be told from ssh's exit code and words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        assert self._process.stderr is not None
        with contextlib.suppress(BlockingIOError, OSError):
            self._stray.extend(os.read(self._process.stderr.fileno(), 1 << 16).decode(errors="replace").splitlines())
        code = self._process.poll()
        words = self._last_words()
        if self.state is SiteState.READY:
            self.lose(f"is lost: the connection to it ended{words}")
        elif code == 127 or "No module named" in words:
            self.lose(f"has no Poseidon at {sys.executable}{words}; install it there, at the same path as here")
        else:
            self.lose(
                f"cannot be reached by ssh{words}; try `{shlex.join((*self._entry.ssh, self.host.name, 'true'))}`"
            )

    def _last_words(self) -> str:
        said = [line for line in self._stray if line.strip()]
        return f": {said[-1].strip()}" if said else ""

    def _flush(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ValueError):  # full, or over: `hear` finds out
            while self._unsent:
                self._unsent = self._unsent[os.write(self._process.stdin.fileno(), self._unsent[: 1 << 16]) :]


def is_here(host: Host) -> bool:
    """True for names that mean this machine: no ssh is needed."""
    return host.name in ("localhost", "127.0.0.1", "[::1]", socket.gethostname())


def check_ssh(ssh: Sequence[str]) -> None:
    if not ssh or shutil.which(ssh[0]) is None:
        raise UsageError(
            f"workers on other hosts are started over ssh, but there is no {ssh[0] if ssh else 'ssh'!r} here; install "
            "openssh-client, or name one with --ssh"
        )


def _command(host: Host, entry: Entry) -> list[str]:
    python = [sys.executable, "-m", "poseidon.run.agent"]
    if is_here(host):
        return python
    path = entry.environ.get("PYTHONPATH")
    words = ["env", f"PYTHONPATH={path}", *python] if path else python
    options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=2"]
    options += ["-o", "ServerAliveCountMax=3", "-T"]
    name = host.name.replace("[", "").replace("]", "")
    return [*entry.ssh, *options, name, f"exec {shlex.join(words)}"]
