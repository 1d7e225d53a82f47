"""Caffe's tools as commands: both spellings, gflags' habits, exit codes, one line per mistake, nothing half-written."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from poseidon.cli import POSEIDON, TOOL_VERBS, caffe_tools, extract_features, main, parse
from poseidon.cli.caffe_tools import TOOLS, tool_program
from poseidon.data.database import NewDatabase
from poseidon.net import Net
from tests.tools.kit import DATA, DATA_CASES, datums, golden_case, read_database, read_lmdb, write_images

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run_tool(name: str, words: list[str]) -> int:
    return getattr(caffe_tools, name)(words)


# -- commands ---------------------------------------------------------------------------------------------------------
def test_every_tool_is_installed():
    scripts = re.search(r"\[project\.scripts\]\n(.*?)\n\n", (ROOT / "pyproject.toml").read_text(), re.S)[1]
    for name, verb in TOOLS.items():
        assert f'{name} = "poseidon.cli.caffe_tools:{name}"' in scripts
        assert verb in POSEIDON.modules


@pytest.mark.parametrize("name", TOOLS)
def test_help(name, capsys):
    assert run_tool(name, ["--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: {name} [flags] ")
    assert main([TOOLS[name], "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: poseidon {TOOLS[name]} [flags] ")


@pytest.mark.parametrize("name", DATA_CASES)
def test_caffes_own_command_lines(name, here, capsys):
    meta = golden_case(name, here)
    (here / "db").rename(here / "caffes")
    assert run_tool("convert_imageset", meta["convert_imageset"]) == 0
    assert read_database(here / "db", meta["backend"]) == read_database(here / "caffes", meta["backend"])
    log = capsys.readouterr().err
    assert re.search(
        r"^I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ convert_imageset\.cpp:\d+\] A total of 20 images\.$", log, re.M
    )
    assert run_tool("compute_image_mean", meta["compute_image_mean"]) == 0
    assert (here / "mean.binaryproto").read_bytes() == (DATA / name / "mean.binaryproto").read_bytes()
    log = capsys.readouterr().err
    for line in meta["mean_value_lines"]:
        assert f"] {line}\n" in log


FLAGS = (
    "--gray --encode_type=bmp --resize_height=3 --resize_width=4",
    "-gray -encode_type bmp -resize_height 3 -resize_width 4",
    "--gray=true --encode-type=bmp --resize-height=3 --resize-width=4 --noshuffle --nocheck_size --encoded=false",
    "-gray=1 -encode_type=bmp -resize_height=3 -resize_width=4 -shuffle=f -encoded -noencoded --logtostderr=1",
)


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("place", ["before", "behind", "between"])
def test_spellings(flags, place, here):
    write_images(here / "images", {"a.png": (5, 6)})
    (here / "list.txt").write_text("a.png 7\n")
    words = flags.split()
    line = {
        "before": [*words, "images/", "list.txt", "db"],
        "behind": ["images/", "list.txt", "db", *words],
        "between": ["images/", *words, "list.txt", "--backend=LEVELDB", "db", "--backend=lmdb"],
    }[place]
    assert run_tool("convert_imageset", line) == 0
    (datum,) = datums(here / "db").values()
    assert datum.encoded
    height, width, bits = (int.from_bytes(datum.data[at : at + 2], "little") for at in (22, 18, 28))
    assert (height, width, bits) == (3, 4, 8)


def test_behind_two_dashes_nothing_is_a_flag():
    found = parse(tool_program("compute_image_mean"), ["--backend=lmdb", "--", "-db", "--mean"])[1]
    assert (found.input_db, found.output_file) == ("-db", "--mean")


def test_every_verb_is_told_of(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {verb} " in shown for verb in TOOL_VERBS)


# -- mistakes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        ("convert_imageset", "", "ROOTFOLDER is missing"),
        ("convert_imageset", "images/ list.txt", "DB_NAME is missing (the database to make"),
        ("convert_imageset", "images/ list.txt db more", "'more' is one word too many"),
        ("convert_imageset", "images/ gone.txt db", "gone.txt: cannot be read (No such file or directory)"),
        ("convert_imageset", "nowhere/ list.txt db", "nowhere/: there is no such folder"),
        ("convert_imageset", "images/ list.txt list.txt", "list.txt: exists already"),
        ("convert_imageset", "images/ list.txt db --backend=hdf5", "expected one of lmdb, leveldb, got 'hdf5'"),
        ("convert_imageset", "images/ list.txt db --grey", "there is no flag --grey (did you mean '--gray'?)"),
        ("convert_imageset", "images/ list.txt db --gray=maybe", "--gray is true or false, got 'maybe'"),
        ("convert_imageset", "images/ list.txt db --resize_width=x", "expected a whole number, got 'x'"),
        ("convert_imageset", "images/ list.txt db --encode_type=gibberish", "OpenCV cannot encode images as"),
        ("compute_image_mean", "", "INPUT_DB is missing"),
        ("compute_image_mean", "gone", "gone: no such LMDB"),
        ("compute_image_mean", "images", "images: not a LMDB"),
        ("partition_data", "", "DB_PATH is missing"),
        ("partition_data", "gone --num_partitions=2", "gone: no such LMDB"),
        ("partition_data", "gone --num_partitions=0", "expected at least 1, got 0"),
        ("extract_features", "w n b d 1", "DB_TYPE is missing"),
        ("extract_features", "gone.caffemodel n b d 1 lmdb", "there is no file 'gone.caffemodel'"),
    ],
)
def test_mistakes_are_one_line(name, words, expected, here, capsys):
    write_images(here / "images", {"a.png": (2, 2)})
    (here / "list.txt").write_text("a.png 0\n")
    assert run_tool(name, words.split()) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("I")]
    assert len(lines) == 1
    assert lines[0].startswith(f"{name}: error: ")
    assert expected in lines[0]
    assert sorted(path.name for path in here.iterdir()) == ["images", "list.txt"]


def test_one_size_alone_is_told(here, capsys):
    write_images(here / "images", {"a.png": (5, 6)})
    (here / "list.txt").write_text("a.png 7\n")
    assert run_tool("convert_imageset", ["images/", "list.txt", "db", "--resize_width=3"]) == 0
    assert "--resize_width and --resize_height go together: not resized" in capsys.readouterr().err
    assert [(datum.height, datum.width) for datum in datums(here / "db").values()] == [(5, 6)]


# -- people and signals -----------------------------------------------------------------------------------------------
def test_a_bar_on_a_terminal(here, capsys, monkeypatch):
    write_images(here / "images", {"a.png": (5, 6)})
    (here / "list.txt").write_text("a.png 7\ngone.png 1\n")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["convert-imageset", "images/", "list.txt", "db"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "db: 1 images, 1 left out\n"
    assert "converting" in captured.err
    assert "Could not open or find file images/gone.png" in captured.err
    assert "convert_imageset.cpp" not in captured.err
    assert main(["compute-image-mean", "db"]) == 0
    assert capsys.readouterr().out.startswith("1 images; mean of each channel: ")
    assert run_tool("compute_image_mean", ["db"]) == 0
    assert "compute_image_mean.cpp" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_ended_by_a_signal_it_leaves_nothing(number, here, monkeypatch):
    write_images(here / "images", {"a.png": (5, 6)})
    (here / "list.txt").write_text("a.png 7\n" * 30)
    put = NewDatabase.put

    def put_and_end(self, key, value):
        put(self, key, value)
        if self.num_records == 20:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(NewDatabase, "put", put_and_end)
    before = signal.getsignal(number)
    if number is signal.SIGINT:
        assert run_tool("convert_imageset", ["images/", "list.txt", "db"]) == 130
    else:
        with pytest.raises(SystemExit) as ended:
            run_tool("convert_imageset", ["images/", "list.txt", "db"])
        assert ended.value.code == 128 + number
    assert signal.getsignal(number) == before
    assert sorted(path.name for path in here.iterdir()) == ["images", "list.txt"]


# -- several workers --------------------------------------------------------------------------------------------------
NET = """
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "db" batch_size: 3 backend: LMDB } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2
  weight_filler { type: "xavier" } } }
"""


@pytest.fixture
def features(here) -> list[str]:
    """A command line that extracts from a database of 8 records, but for its ending."""
    write_images(here / "images", {f"{n}.png": (3, 3) for n in range(8)})
    (here / "list.txt").write_text("".join(f"{n}.png {n}\n" for n in range(8)))
    assert run_tool("convert_imageset", ["images/", "list.txt", "db"]) == 0
    (here / "net.prototxt").write_text(NET)
    Net("net.prototxt", phase="TEST", seed=1).save("w.caffemodel")
    return ["w.caffemodel", "net.prototxt", "ip,label", "f,l", "4", "lmdb"]


def test_worker_k_writes_its_part(features, here, monkeypatch):
    assert run_tool("extract_features", [*features, "CPU"]) == 0
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        assert main(["extract-features", *features]) == 0
    for name in ("f", "l"):
        alone = dict(read_lmdb(here / name))
        parts = [dict(read_lmdb(here / f"{name}_{rank}")) for rank in range(3)]
        assert [len(part) for part in parts] == [6, 3, 3]
        assert sum(map(len, parts)) == len(alone)
        assert {key: value for part in parts for key, value in part.items()} == alone


def test_workers_are_started_with_this_command_line(features, here, monkeypatch, capsys):
    jobs = []
    monkeypatch.setattr(extract_features, "launch", lambda job, tell: jobs.append(job) or 0)
    assert run_tool("extract_features", [*features, "--workers=4"]) == 0
    assert jobs[0].num_workers == 4
    assert jobs[0].command[-7:] == (*features, "--workers=4")
    (here / "l_2").mkdir()
    assert run_tool("extract_features", [*features, "--workers=4"]) == 1
    assert "l_2: exists already" in capsys.readouterr().err
    assert len(jobs) == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({2: "ip,lable"}, "Unknown feature blob name lable in the network net.prototxt (did you mean 'label'?)"),
        ({3: "f"}, "the number of blob names and dataset names must be equal"),
        ({4: "0"}, "expected at least 1, got 0"),
        ({5: "hdf5"}, "unknown database backend 'hdf5'"),
        ({6: "TPU"}, "the device is CPU or GPU, got 'TPU'"),
        ({6: "GPU", 7: "99"}, "there is no GPU 99"),
        ({3: "f,db"}, "db: exists already"),
    ],
)
def test_requests_are_checked_first(change, expected, features, here, capsys):
    before = sorted(path.name for path in here.iterdir())
    words = [*features, "CPU", "0"]
    for at, word in change.items():
        words[at] = word
    capsys.readouterr()
    assert run_tool("extract_features", words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
    assert sorted(path.name for path in here.iterdir()) == before
