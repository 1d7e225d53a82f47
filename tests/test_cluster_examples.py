"""What examples/cluster shows: a Slurm script that is shell and asks for known flags, manifests that fit their schemas.

The schemas are those of the projects themselves, as Kubeflow publishes them (kubeflow-trainer-api, generated from the
OpenAPI of Kubernetes, JobSet and Trainer). It has no PyTorchJob any more: what that has around its pods is written down
here after kubeflow/training-operator's manifests/base/crds/kubeflow.org_pytorchjobs.yaml (1.9). What these schemas do
not say is in `VALUES` and `PATTERNS`: the words and forms that a server admits.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeflow_trainer_api.models.io_k8s_api_core_v1_pod_template_spec import IoK8sApiCoreV1PodTemplateSpec
from kubeflow_trainer_api.models.io_k8s_apimachinery_pkg_api_resource_quantity import (
    IoK8sApimachineryPkgApiResourceQuantity,
)
from kubeflow_trainer_api.models.io_k8s_apimachinery_pkg_apis_meta_v1_object_meta import (
    IoK8sApimachineryPkgApisMetaV1ObjectMeta,
)
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from poseidon.cli import POSEIDON, parse
from poseidon.run.rendezvous import Place, find_place

FOLDER = Path(__file__).parents[1] / "examples" / "cluster"


class SchedulingPolicy(BaseModel):
    minAvailable: StrictInt | None = None  # noqa: N815 (names of the schema)
    minResources: dict[str, StrictInt | StrictStr] | None = None  # noqa: N815
    priorityClass: StrictStr | None = None  # noqa: N815
    queue: StrictStr | None = None
    scheduleTimeoutSeconds: StrictInt | None = None  # noqa: N815


class RunPolicy(BaseModel):
    activeDeadlineSeconds: StrictInt | None = None  # noqa: N815
    backoffLimit: StrictInt | None = None  # noqa: N815
    cleanPodPolicy: StrictStr | None = None  # noqa: N815
    managedBy: StrictStr | None = None  # noqa: N815
    schedulingPolicy: SchedulingPolicy | None = None  # noqa: N815
    suspend: StrictBool | None = None
    ttlSecondsAfterFinished: StrictInt | None = None  # noqa: N815


class Replicas(BaseModel):
    replicas: StrictInt | None = None
    restartPolicy: StrictStr | None = None  # noqa: N815
    template: IoK8sApiCoreV1PodTemplateSpec | None = None


class PyTorchJobSpec(BaseModel):
    nprocPerNode: StrictStr | None = None  # noqa: N815
    pytorchReplicaSpecs: dict[str, Replicas]  # noqa: N815
    runPolicy: RunPolicy | None = None  # noqa: N815


class PyTorchJob(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    api_version: StrictStr = Field(alias="apiVersion")
    kind: StrictStr
    metadata: IoK8sApimachineryPkgApisMetaV1ObjectMeta
    spec: PyTorchJobSpec


SCHEMAS: dict[str, type[BaseModel]] = {"pytorchjob.yaml": PyTorchJob, "jobset.yaml": JobsetV1alpha2JobSet}
# By the end of a path: the words that are admitted there.
VALUES = {
    "apiVersion": ("kubeflow.org/v1", "jobset.x-k8s.io/v1alpha2"),
    "kind": ("PyTorchJob", "JobSet"),
    "cleanPodPolicy": ("All", "Running", "None"),
    "restartPolicy": ("Always", "OnFailure", "Never", "ExitCode"),
    "completionMode": ("NonIndexed", "Indexed"),
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
}
QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]|[KMGTPE]i)?")
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
PATTERNS = {
    "metadata.name": DNS_LABEL,
    "cpu": QUANTITY,
    "memory": QUANTITY,
    "nvidia.com/gpu": QUANTITY,
    "claimName": DNS_LABEL,
    "subdomain": DNS_LABEL,
}


def problems(manifest: dict[str, Any], schema: type[BaseModel]) -> list[str]:
    """What does not fit: types and what is missing, unknown names, values that a server refuses."""
    try:
        read = schema.model_validate(_with_quantities(manifest))
    except ValidationError as error:
        return [f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors()]
    return [*_unknown(manifest, read, ""), *_refused(manifest, "")]


def _with_quantities(value: Any, is_amounts: bool = False) -> Any:
    """The generated model of a quantity takes the value itself, not what a manifest has in its place."""
    if isinstance(value, dict):
        found = {key: (entry, is_amounts or key in ("limits", "requests")) for key, entry in value.items()}
        return {key: _with_quantities(*entry) for key, entry in found.items()}
    if isinstance(value, list):
        return [_with_quantities(entry) for entry in value]
    return IoK8sApimachineryPkgApiResourceQuantity(value) if is_amounts else value


def _unknown(value: Any, read: Any, where: str) -> list[str]:
    """Names that the schema does not have."""
    if isinstance(read, BaseModel):
        if not isinstance(value, dict):  # a quantity
            return []
        names = {field.alias or name: name for name, field in read.__class__.model_fields.items()}
        found = [f"{where}.{key}: unknown" for key in value if key not in names]
        known = ((key, getattr(read, names[key])) for key in value if key in names)
        return found + [p for key, entry in known for p in _unknown(value[key], entry, f"{where}.{key}")]
    if isinstance(read, dict) and isinstance(value, dict):
        return [p for key in value for p in _unknown(value[key], read[key], f"{where}.{key}")]
    if isinstance(read, list) and isinstance(value, list):
        return [p for n, entry in enumerate(value) for p in _unknown(entry, read[n], f"{where}[{n}]")]
    return []


def _refused(value: Any, where: str) -> list[str]:
    if isinstance(value, dict):
        return [p for key, entry in value.items() for p in _refused(entry, f"{where}.{key}")]
    if isinstance(value, list):
        return [p for n, entry in enumerate(value) for p in _refused(entry, f"{where}[{n}]")]
    admitted = next((words for end, words in VALUES.items() if where.endswith(f".{end}")), None)
    pattern = next((pattern for end, pattern in PATTERNS.items() if where.endswith(f".{end}")), None)
    if (admitted is not None and value not in admitted) or (pattern and not pattern.fullmatch(str(value))):
        return [f"{where}: {value!r} is not admitted"]
    return []


def manifest(name: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / name).read_text())


def pods(name: str) -> list[dict[str, Any]]:
    """The pods' specs of a manifest."""
    spec = manifest(name)["spec"]
    if name == "pytorchjob.yaml":
        return [spec["pytorchReplicaSpecs"][kind]["template"]["spec"] for kind in ("Master", "Worker")]
    return [job["template"]["spec"]["template"]["spec"] for job in spec["replicatedJobs"]]


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_manifest_fits_its_schema(name):
    assert problems(manifest(name), SCHEMAS[name]) == []


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("restartPolicy: ", "restartPolicy: Sometimes #"),
        ("containerPort: ", 'containerPort: "80" #'),
        ("mountPath: /data", "path: /data"),
        ("memory: 8Gi", "memory: 8GiB"),
        ("replicas: 1", 'replicas: "1"'),
        ("containers:", "container:"),
        ("secretKeyRef:", "secretRef:"),
        ("name: poseidon\nspec:", "name: Poseidon_1\nspec:"),
    ],
)
def test_the_check_finds_mistakes(name, good, bad):
    text = (FOLDER / name).read_text()
    assert good in text
    assert problems(yaml.safe_load(text.replace(good, bad)), SCHEMAS[name]) != []


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_manifest_trains(name):
    for spec in pods(name):
        (container,) = spec["containers"]
        _, found = parse(POSEIDON, container["args"])
        assert (found.solver, found.snapshot, found.keep) == ("solver.prototxt", "auto", 3)
        variables = {entry["name"]: entry for entry in container["env"]}
        assert "value" not in variables["POSEIDON_SECRET"], "a secret is no part of a manifest"
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}
        assert container["name"] == ("pytorch" if name == "pytorchjob.yaml" else "poseidon"), (
            "the operator needs its own"
        )


def test_pods_of_a_jobset_find_their_place():
    """The index of a pod is its rank; they meet at the first pod's name: that of the set, of the job, two numbers."""
    whole = manifest("jobset.yaml")
    (job,) = whole["spec"]["replicatedJobs"]
    (pod,) = pods("jobset.yaml")
    environ = {entry["name"]: entry.get("value", "2") for entry in pod["containers"][0]["env"]}
    first = f"{whole['metadata']['name']}-{job['name']}-0-0.{whole['spec']['network']['subdomain']}"
    assert find_place(environ) == Place(2, 4, 0, 1, first, 29500)
    counts = job["template"]["spec"]
    assert counts["parallelism"] == counts["completions"] == int(environ["WORLD_SIZE"])


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
    for code, turns in ((0, ""), (1, ""), (3, "requeue 7\n"), (75, "requeue 7\n"), (137, "requeue 7\n")):
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
