"""Module-wide settings, logs and the small names of `import caffe`."""

from __future__ import annotations

import warnings

import pytest

import caffe
import caffe.pycaffe
from caffe import logs, settings
from poseidon.net.registry import layer_types
from poseidon.spec import caffe_pb2 as schema
from tests.caffe.nets import SIMPLE, build, equal_params, write


@pytest.fixture(autouse=True)
def as_at_the_start(monkeypatch):
    monkeypatch.setattr(settings, "_settings", settings._Settings())
    monkeypatch.setattr(logs, "_level", 0)


def test_a_seed_repeats_what_is_built_after_it(tmp_path):
    def two():
        caffe.set_random_seed(7)
        return build(tmp_path, SIMPLE, caffe.TRAIN), build(tmp_path, SIMPLE, caffe.TRAIN)

    (first, second), (again, last) = two(), two()
    assert equal_params(first, again)
    assert equal_params(second, last)
    assert not equal_params(first, second)
    net = write(tmp_path, SIMPLE)
    solver = write(tmp_path, f"net: '{net}' base_lr: 0.1 lr_policy: 'fixed' max_iter: 1", "solver.prototxt")
    nets = []
    for _ in range(2):
        caffe.set_random_seed(9)
        nets.append(caffe.SGDSolver(solver).net)
    assert equal_params(*nets)


def test_a_gpu_is_asked_for_once_and_for_nothing():
    caffe.set_mode_cpu()
    with pytest.warns(UserWarning, match="compute on the CPU; `poseidon train --gpu` trains on GPUs"):
        caffe.set_mode_gpu()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        caffe.set_mode_gpu()
        caffe.set_device(0)
    with pytest.raises(ValueError, match="a number from 0 on, got -1"):
        caffe.set_device(-1)


def test_who_is_who():
    assert (caffe.solver_count(), caffe.solver_rank()) == (1, 0)
    caffe.set_solver_count(4)
    caffe.set_solver_rank(2)
    caffe.set_multiprocess(True)
    assert (caffe.solver_count(), caffe.solver_rank()) == (4, 2)


def test_nccl_says_what_to_use():
    assert caffe.has_nccl() is False
    for call in (caffe.NCCL.new_uid, lambda: caffe.NCCL(None, b"")):
        with pytest.raises(RuntimeError, match="poseidon train --solver FILE --workers N"):
            call()


def test_a_timer_counts_milliseconds(monkeypatch):
    clock = iter([1.0, 1.25, 1.5, 10.0, 12.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    timer = caffe.Timer()
    assert timer.ms == 0
    timer.start()
    assert timer.ms == 250
    timer.stop()
    assert timer.ms == 500
    timer.start()
    timer.stop()
    assert timer.ms == 2000


def test_names():
    assert caffe.layer_type_list() == layer_types()
    assert {"Data", "Convolution", "InnerProduct", "Python"} <= set(caffe.layer_type_list())
    assert (caffe.TRAIN, caffe.TEST) == (0, 1)
    assert caffe.proto.caffe_pb2.NetParameter is schema.NetParameter
    assert caffe.proto.caffe_pb2.DESCRIPTOR is schema.DESCRIPTOR
    assert caffe.proto.caffe_pb2._NETPARAMETER is schema.NetParameter.DESCRIPTOR
    assert not hasattr(caffe.proto.caffe_pb2, "NoSuchParameter")
    assert caffe.pycaffe.Net is caffe.Net
    assert caffe.pycaffe.AdamSolver is caffe.AdamSolver
    assert caffe.__version__ == "1.0.0"
    assert all(hasattr(caffe, name) for name in caffe.__all__)


def test_logs_as_caffe_writes_them(tmp_path, capsys, monkeypatch):
    net = write(tmp_path, SIMPLE)
    solver = write(
        tmp_path, f"net: '{net}' base_lr: 0.1 lr_policy: 'fixed' max_iter: 4 display: 2 random_seed: 1", "solver"
    )
    monkeypatch.chdir(tmp_path)
    caffe.get_solver(solver).step(4)
    lines = capsys.readouterr().err.splitlines()
    assert sum("] Iteration 2 (" in line and "loss = " in line for line in lines) == 1
    assert sum("] Iteration 2, lr = 0.1" in line for line in lines) == 1
    caffe.log("hello")
    assert capsys.readouterr().err.endswith("] hello\n")
    caffe.set_logging_disabled()
    caffe.log("nobody hears")
    caffe.get_solver(solver).step(1)
    assert capsys.readouterr().err == ""
    caffe.init_log()
    caffe.log("again")
    caffe.init_log(1)
    caffe.log("not this")
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("text", "level"), [("0", 0), ("2", 2), ("odd", 0), ("", 0)])
def test_glogs_variable_is_read(monkeypatch, text, level):
    monkeypatch.setenv("GLOG_minloglevel", text)
    assert logs._first_level() == level
