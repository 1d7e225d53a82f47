"""Workers that a nursery forks, seen from the agent: what they are, what they run, and what happens in odd moments.

Each test is a small agent, a process of its own, because an agent takes in orphans and collects all of its children.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BEGIN = """
import os, signal, sys
from poseidon.run.births import Births

def start(*words, rank=3, modules=(), **environ):
    births = Births({**os.environ, "KEPT": "1"}, modules)
    births.ask(rank, [sys.executable, *words], {**os.environ, "KEPT": "1", "RANK": str(rank), **environ})
    return births

def output(worker):
    lines = []
    while worker.read(lines.append):
        pass
    worker._process.wait()
    return lines
"""


def agent(folder: Path, script: str) -> list[str]:
    """What a small agent says."""
    environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    words = [sys.executable, "-c", BEGIN + script]
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_a_worker_is_the_agents_child_and_leads_a_session(tmp_path):
    said = agent(
        tmp_path,
        """
code = "import os; print(os.getppid(), os.getsid(0) == os.getpid(), os.environ['KEPT'], os.environ['OWN'])"
worker = start("-c", code, OWN="x").hear()
print(output(worker) == [f"{os.getpid()} True 1 x"], worker.rank, worker.exit_code)
""",
    )
    assert said == ["True 3 0"]


def test_commands_of_python_and_others_run_as_they_would(tmp_path):
    (tmp_path / "tool.py").write_text("import sys\nprint(__name__, sys.argv[1:])\nsys.exit(7)\n")
    said = agent(
        tmp_path,
        """
births = start("-m", "tool", "a", "b")
births.ask(4, [sys.executable, "-c", "import sys; print(__name__, sys.argv); sys.exit(8)", "c"], os.environ)
births.ask(5, ["sh", "-c", "echo $RANK; exit 9"], {**os.environ, "RANK": "5"})
for _ in range(3):
    worker = births.hear()
    print(worker.rank, output(worker), worker.exit_code)
""",
    )
    assert said == [
        "3 [\"__main__ ['a', 'b']\"] 7",
        "4 [\"__main__ ['-c', 'c']\"] 8",
        "5 ['5'] 9",
    ]


def test_what_was_loaded_is_there_and_threads_can_be_used(tmp_path):
    """The first parallel computation happens in the worker: a pool of threads does not survive a fork."""
    said = agent(
        tmp_path,
        """
code = '''
import sys
loaded = "torch" in sys.modules
import torch
torch.set_num_threads(2)
x = torch.ones(512, 512)
print(loaded, float((x @ x).sum() + x.exp().log().sum()), open("/proc/self/comm").read().strip())
'''
worker = start("-c", code, modules=("torch", "numpy", "poseidon.cli.team")).hear()
print(output(worker), worker.exit_code)
""",
    )
    assert said == [f"['True {float(512**3 + 512**2)} poseidon 3'] 0"]


def test_a_module_that_cannot_be_loaded_is_left_to_the_worker(tmp_path):
    (tmp_path / "broken.py").write_text("raise RuntimeError('broken')\n")
    said = agent(
        tmp_path,
        """
worker = start("-c", "import broken", modules=("no_such_module", "broken")).hear()
print(output(worker)[-1], worker.exit_code)
""",
    )
    assert said == ["RuntimeError: broken 1"]


def test_a_nursery_that_crashes_has_a_successor_without_modules(tmp_path):
    (tmp_path / "crash.py").write_text("import os\nos.abort()\n")
    said = agent(
        tmp_path,
        """
births = start("-c", "import sys; print('crash' in sys.modules)", modules=("crash",))
try:
    births.hear()
except EOFError:
    births = births.successor()
worker = births.hear()
print(output(worker), worker.exit_code)
os.kill(births._nursery.pid, signal.SIGKILL)
try:
    births.hear()
except EOFError:
    pass
try:
    births.successor()
except OSError as problem:
    print(problem)
""",
    )
    assert said == ["['False'] 0", "no process can be started on this host; is there memory left?"]


def test_a_signal_waits_until_the_worker_can_answer_it(tmp_path):
    said = agent(
        tmp_path,
        """
code = '''
import signal, sys
from poseidon.run.launcher import accept_signals
signal.signal(signal.SIGINT, lambda *_: sys.exit(5))
accept_signals()
signal.pause()
'''
births = start("-c", code)
births.signal(signal.SIGINT)
worker = births.hear()
print(output(worker), worker.exit_code)
""",
    )
    assert said == ["[] 5"]


def test_nobody_comes_who_is_not_wanted_any_more(tmp_path):
    said = agent(
        tmp_path,
        """
births = start("-c", "open('ran', 'w'); import signal; signal.pause()")
print(births.cancel(), births.cancel(), births.hear())
births.ask(1, [sys.executable, "-c", "import signal; signal.pause()"], os.environ)
births.close()
try:
    while True:
        print(os.waitpid(-1, 0))
except ChildProcessError:
    print("nobody is left")
""",
    )
    assert [said[0], said[-1]] == ["[3] [] None", "nobody is left"]
    # Who was just being made when the nursery ended finds nobody to report to, and gives up (1); who was just making it
    # has done so (0). Whoever had begun would pause for ever.
    assert all(line.endswith((", 256)", ", 0)")) for line in said[1:-1])


def test_orphans_of_a_worker_are_collected(tmp_path):
    said = agent(
        tmp_path,
        """
births = start("-c", "import os, signal; os.fork() and os._exit(4); signal.pause()")
worker = births.hear()
print(worker._process.wait())
(orphan,) = set(open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()) - {str(births._nursery.pid)}
worker.end()
while os.path.exists(f"/proc/{orphan}"):
    births.collect_orphans()
births.close()
""",
    )
    assert said == ["4"]
