"""Hosts from flags and hostfiles of three kinds; what is no host is refused with its line."""

from __future__ import annotations

import pytest

from poseidon.errors import UsageError
from poseidon.run.hosts import Host, num_workers, parse_hosts, read_hostfile


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", [Host("a")]),
        ("a,b:2,c", [Host("a"), Host("b", 2), Host("c")]),
        (" a , user@b.example.org:3 ,", [Host("a"), Host("user@b.example.org", 3)]),
        ("10.0.0.1:4", [Host("10.0.0.1", 4)]),
        ("a,b,a:2", [Host("a", 3), Host("b")]),
        ("fe80::1,[fe80::2]:2", [Host("[fe80::1]"), Host("[fe80::2]", 2)]),
    ],
)
def test_lists_of_hosts(text, expected):
    assert parse_hosts(text) == expected


def test_the_address_is_the_name_alone():
    assert [host.address for host in parse_hosts("a,u@b:2,[::1]:2")] == ["a", "b", "::1"]


@pytest.mark.parametrize("text", ["-oProxyCommand=x", "a,-b", "a b", "a;reboot", "$(x)", "a/b", "u@-x", "@a", "a@b@c"])
def test_what_ssh_might_misunderstand_is_refused(text):
    with pytest.raises(UsageError, match=r"is no name of a host; expected one like node1, node1:2 or user@10\.0\.0\.1"):
        parse_hosts(text)


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_no_host_is_refused(text):
    with pytest.raises(UsageError, match="there is no host in it"):
        parse_hosts(text)


@pytest.mark.parametrize("text", ["a:0", "a:5000"])
def test_numbers_of_workers_have_bounds(text):
    with pytest.raises(UsageError, match=r"a is to have 1 … 4096 workers"):
        parse_hosts(text)


def written(tmp_path, text):
    path = tmp_path / "hosts"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\n", [Host("a"), Host("b")]),
        ("# all\n\na slots=2 max_slots=4 # big\n b:3\n", [Host("a", 2), Host("b", 3)]),
        ("1 10.0.0.2 9998\n0 10.0.0.1 9999\n", [Host("10.0.0.1", 1, 9999), Host("10.0.0.2", 1, 9998)]),
        ("0 n1 10000\n1 n1 10100\n2 n2 10000\n", [Host("n1", 2, 10000), Host("n2", 1, 10000)]),
    ],
)
def test_hostfiles(tmp_path, text, expected):
    hosts = read_hostfile(written(tmp_path, text))
    assert hosts == expected
    assert num_workers(hosts) == sum(host.slots for host in expected)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no host in it"),
        ("a slots=two\n", r":1: expected `host`, `host slots=n`"),
        ("a\nb gpus=2\n", r":2: expected `host`"),
        ("0 a 1\n0 b 2\n", r":2: id 0 was given before"),
        ("0 a 1\n2 b 2\n", r"ids are 0 … 1, got \[0, 2\]"),
        ("0 a 70000\n", r":1: a port is within 1 … 65535, got 70000"),
        ("0 a 9999\nb\n", r":1: expected `host`"),
        ("0 -a 9999\n", r":1: '-a' is no name of a host"),
    ],
)
def test_lines_that_make_no_sense_are_named(tmp_path, text, problem):
    with pytest.raises(UsageError, match=problem):
        read_hostfile(written(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"--hostfile=.*none: cannot be read: .*No such file"):
        read_hostfile(str(tmp_path / "none"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        read_hostfile(str(tmp_path / "bytes"))
