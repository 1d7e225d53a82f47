"""What examples/cluster shows: a Slurm script that is shell and asks for known flags, a manifest that fits its schema.

The schema is that of Kubeflow's PyTorchJob (kubeflow.org/v1) and of Kubernetes' pods, written down here as far as a
manifest like this may go: field names, types, and the values that a server admits.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from poseidon.cli import POSEIDON, parse

FOLDER = Path(__file__).parents[1] / "examples" / "cluster"
QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]|[KMGTPE]i)?")
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

RESOURCES = {"cpu": QUANTITY, "memory": QUANTITY, "nvidia.com/gpu": QUANTITY}
VALUE_FROM = {"secretKeyRef": {"name!": DNS_LABEL, "key!": str}, "fieldRef": {"fieldPath!": str}}
CONTAINER = {
    "name!": ("pytorch",),  # the operator looks for this one
    "image!": str,
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "workingDir": str,
    "command": [str],
    "args": [str],
    "env": [{"name!": re.compile(r"[A-Z_][A-Z0-9_]*"), "value": str, "valueFrom": VALUE_FROM}],
    "ports": [{"name": re.compile(r"[a-z0-9-]{1,15}"), "containerPort!": int, "protocol": ("TCP", "UDP")}],
    "resources": {"requests": RESOURCES, "limits": RESOURCES},
    "volumeMounts": [{"name!": DNS_LABEL, "mountPath!": str, "readOnly": bool}],
}
POD = {
    "containers!": [CONTAINER],
    "volumes": [{"name!": DNS_LABEL, "persistentVolumeClaim": {"claimName!": DNS_LABEL, "readOnly": bool}}],
    "nodeSelector": {str: str},
}
META = {"name": DNS_LABEL, "namespace": DNS_LABEL, "labels": {str: str}, "annotations": {str: str}}
REPLICAS = {
    "replicas": int,
    "restartPolicy": ("Always", "OnFailure", "Never", "ExitCode"),
    "template!": {"metadata": META, "spec!": POD},
}
PYTORCH_JOB = {
    "apiVersion!": ("kubeflow.org/v1",),
    "kind!": ("PyTorchJob",),
    "metadata!": META,
    "spec!": {
        "nprocPerNode": str,
        "runPolicy": {
            "activeDeadlineSeconds": int,
            "backoffLimit": int,
            "cleanPodPolicy": ("Running", "All", "None"),
            "suspend": bool,
            "ttlSecondsAfterFinished": int,
        },
        "pytorchReplicaSpecs!": {"Master": REPLICAS, "Worker": REPLICAS},
    },
}


def problems(value: Any, schema: Any, where: str = "") -> list[str]:
    """What does not fit."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{where}: expected an object"]
        if str in schema:
            return [p for key, entry in value.items() for p in problems(entry, schema[str], f"{where}.{key}")]
        known = {key.rstrip("!"): entry for key, entry in schema.items()}
        found = [f"{where}.{key}: unknown" for key in value if key not in known]
        found += [f"{where}.{key[:-1]}: missing" for key in schema if key.endswith("!") and key[:-1] not in value]
        return found + [p for k, v in value.items() if k in known for p in problems(v, known[k], f"{where}.{k}")]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{where}: expected a list"]
        return [p for place, entry in enumerate(value) for p in problems(entry, schema[0], f"{where}[{place}]")]
    if isinstance(schema, tuple):
        return [] if value in schema else [f"{where}: {value!r} is none of {schema}"]
    if isinstance(schema, re.Pattern):
        return [] if isinstance(value, str) and schema.fullmatch(value) else [f"{where}: {value!r}"]
    return [] if type(value) is schema else [f"{where}: expected {schema.__name__}, got {value!r}"]


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "pytorchjob.yaml").read_text())


def test_the_manifest_fits_its_schema(manifest):
    assert problems(manifest, PYTORCH_JOB) == []


def test_the_check_finds_mistakes(manifest):
    text = (FOLDER / "pytorchjob.yaml").read_text()
    for good, bad in [
        ("restartPolicy: OnFailure", "restartPolicy: Sometimes"),
        ("name: pytorch\n", "name: torch\n"),
        ("replicas: 3", 'replicas: "3"'),
        ("mountPath: /data", "path: /data"),
        ("memory: 8Gi", "memory: 8GiB"),
    ]:
        assert good in text
        assert problems(yaml.safe_load(text.replace(good, bad)), PYTORCH_JOB) != [], bad


def test_the_manifest_trains(manifest):
    for kind in ("Master", "Worker"):
        spec = manifest["spec"]["pytorchReplicaSpecs"][kind]["template"]["spec"]
        (container,) = spec["containers"]
        _, found = parse(POSEIDON, container["args"])
        assert (found.solver, found.snapshot, found.keep) == ("solver.prototxt", "auto", 3)
        variables = {entry["name"]: entry for entry in container["env"]}
        assert "value" not in variables["POSEIDON_SECRET"], "a secret is no part of a manifest"
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}


def test_the_slurm_script_is_shell_with_known_flags():
    path = FOLDER / "train.sbatch"
    checked = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    text = path.read_text()
    (command,) = re.findall(r"^srun .*?poseidon (train .*)$", text, re.M)
    _, found = parse(POSEIDON, command.replace('"', "").split())
    assert (found.snapshot, found.plain) == ("auto", True)
    directives = re.findall(r"^#SBATCH --([a-z-]+)", text, re.M)
    assert {"nodes", "ntasks-per-node", "requeue", "signal"} <= set(directives)


def test_the_slurm_script_asks_for_another_turn_only_when_that_helps(tmp_path):
    """With stand-ins for srun and scontrol: what the script does with each exit code."""
    for name, body in (("srun", 'exit "$CODE"'), ("scontrol", 'echo "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    for code, turns in ((0, ""), (1, ""), (75, "requeue 7\n"), (137, "requeue 7\n")):
        environ = {
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "CODE": str(code),
            "SLURM_JOB_ID": "7",
            "SLURM_CPUS_PER_TASK": "1",
        }
        done = subprocess.run(
            ["bash", FOLDER / "train.sbatch"], env=environ, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (code, turns), done.stderr
