"""Writes the model zoo: `python -m models.generate` renders train_val, deploy and solver prototxt of every model.

`bench_text(model, batch)` gives the training net with `Input` layers for images and labels, to be timed without data.
Paths inside the files are relative to the folder that holds `models/`, where the commands are run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models import nets
from models.prototxt import Layers, Message, Word, field_lines, layer, phase_only

HERE = Path(__file__).resolve().parent
BANNER = "# Written by models/generate.py: change it there.\n"


@dataclass(frozen=True, slots=True)
class Model:
    """What surrounds a net body: where its images come from and how it is trained."""

    body: Callable[[], Layers]
    title: str
    image_shape: tuple[int, int, int]
    sources: dict[str, str]  # per phase
    batches: dict[str, int]  # per phase
    transform: Message
    mirrors: bool  # whether training images are flipped at random
    schedule: Message
    note: str = ""  # a comment on the schedule


def momentum_sgd(base_lr: float, weight_decay: float, policy: str, **fields: Any) -> Message:
    return {"base_lr": base_lr, "lr_policy": policy, **fields, "momentum": 0.9, "weight_decay": weight_decay}


IMAGENET = {"TRAIN": "data/ilsvrc12_train_lmdb", "TEST": "data/ilsvrc12_val_lmdb"}
IMAGENET_MEANS = [104, 117, 123]  # blue, green, red

MODELS = {
    "lenet": Model(
        body=nets.lenet,
        title="LeNet",
        image_shape=(1, 28, 28),
        sources={"TRAIN": "data/mnist_train_lmdb", "TEST": "data/mnist_test_lmdb"},
        batches={"TRAIN": 64, "TEST": 100},
        transform={"scale": 0.00390625},
        mirrors=False,
        schedule={
            "test_iter": 100,
            "test_interval": 500,
            **momentum_sgd(0.01, 0.0005, "inv", gamma=0.0001, power=0.75),
            "display": 100,
            "max_iter": 10000,
            "snapshot": 5000,
        },
    ),
    "cifar10_quick": Model(
        body=nets.cifar10_quick,
        title="CIFAR10_quick",
        image_shape=(3, 32, 32),
        sources={"TRAIN": "data/cifar10_train_lmdb", "TEST": "data/cifar10_test_lmdb"},
        batches={"TRAIN": 100, "TEST": 100},
        transform={"mean_file": "data/cifar10_mean.binaryproto"},
        mirrors=False,
        note="8 epochs at 0.001, then 2 at a tenth of it.",
        schedule={
            "test_iter": 100,
            "test_interval": 500,
            **momentum_sgd(0.001, 0.004, "multistep", gamma=0.1, stepvalue=4000),
            "display": 100,
            "max_iter": 5000,
            "snapshot": 1000,
        },
    ),
    "alexnet": Model(
        body=nets.alexnet,
        title="AlexNet",
        image_shape=(3, 227, 227),
        sources=IMAGENET,
        batches={"TRAIN": 256, "TEST": 50},
        transform={"crop_size": 227, "mean_file": "data/ilsvrc12_mean.binaryproto"},
        mirrors=True,
        schedule={
            "test_iter": 1000,
            "test_interval": 1000,
            **momentum_sgd(0.01, 0.0005, "step", gamma=0.1, stepsize=100000),
            "display": 20,
            "max_iter": 450000,
            "snapshot": 10000,
        },
    ),
    "googlenet": Model(
        body=nets.googlenet,
        title="GoogLeNet",
        image_shape=(3, 224, 224),
        sources=IMAGENET,
        batches={"TRAIN": 32, "TEST": 50},
        transform={"crop_size": 224, "mean_value": IMAGENET_MEANS},
        mirrors=True,
        note="60 epochs of batches of 32, the rate falling as the square root of what is left.",
        schedule={
            "test_iter": 1000,
            "test_interval": 4000,
            "test_initialization": False,
            **momentum_sgd(0.01, 0.0002, "poly", power=0.5),
            "display": 40,
            "average_loss": 40,
            "max_iter": 2400000,
            "snapshot": 40000,
        },
    ),
    "resnet50": Model(
        body=nets.resnet50,
        title="ResNet-50",
        image_shape=(3, 224, 224),
        sources=IMAGENET,
        batches={"TRAIN": 32, "TEST": 25},
        transform={"crop_size": 224, "mean_value": IMAGENET_MEANS},
        mirrors=True,
        note="Batches of 256 as 8 of 32. The paper divides the rate when the error stalls; here every 30 epochs.",
        schedule={
            "test_iter": 2000,
            "test_interval": 5000,
            "test_initialization": False,
            **momentum_sgd(0.1, 0.0001, "multistep", gamma=0.1, stepvalue=[150000, 300000, 450000]),
            "iter_size": 8,
            "display": 20,
            "average_loss": 20,
            "max_iter": 600000,
            "snapshot": 10000,
        },
    ),
}


def net_text(name: str, layers: Layers) -> str:
    return "\n".join(field_lines({"name": name, "layer": layers})) + "\n"


def data_layer(model: Model, phase: str) -> Message:
    mirror = {"mirror": True} if model.mirrors and phase == "TRAIN" else {}
    source = {"source": model.sources[phase], "batch_size": model.batches[phase], "backend": Word("LMDB")}
    transform = {**mirror, **model.transform}
    include = phase_only(phase)
    return layer("Data", "data", [], ["data", "label"], include=include, transform_param=transform, data_param=source)


def input_layer(name: str, *dims: int) -> Message:
    return layer("Input", name, [], [name], input_param={"shape": {"dim": list(dims)}})


def train_val_text(model: Model) -> str:
    return BANNER + net_text(model.title, [data_layer(model, "TRAIN"), data_layer(model, "TEST"), *model.body()])


def bench_text(name: str, batch: int) -> str:
    """The training net of model `name` for `batch` images, fed by `Input` blobs `data` and `label` (class numbers)."""
    model = MODELS[name]
    inputs = [input_layer("data", batch, *model.image_shape), input_layer("label", batch)]
    return net_text(model.title, inputs + model.body())


def deploy_text(model: Model, batch: int = 10) -> str:
    """The net for inference: no labels, so no losses; only what leads to the last scores, and their probabilities."""
    body = model.body()
    scores = [entry["bottom"][0] for entry in body if entry["type"] == "SoftmaxWithLoss"][-1]
    needed, kept = {scores}, []
    for entry in reversed(body):
        if needed.intersection(entry["top"]) and "include" not in entry:
            needed.update(entry["bottom"])
            kept.append(entry)
    inference = [{key: value for key, value in entry.items() if key != "param"} for entry in reversed(kept)]
    probabilities = layer("Softmax", "prob", [scores], ["prob"])
    return BANNER + net_text(model.title, [input_layer("data", batch, *model.image_shape), *inference, probabilities])


def solver_text(name: str, model: Model) -> str:
    files = {"net": f"models/{name}/train_val.prototxt"}
    output = {"snapshot_prefix": f"models/{name}/{name}", "solver_mode": Word("CPU")}
    note = f"# {model.note}\n" if model.note else ""
    return BANNER + note + "\n".join(field_lines({**files, **model.schedule, **output})) + "\n"


def all_files() -> dict[str, str]:
    """Every file of the zoo: path relative to `models/` → text."""
    files: dict[str, str] = {}
    for name, model in MODELS.items():
        files[f"{name}/train_val.prototxt"] = train_val_text(model)
        files[f"{name}/deploy.prototxt"] = deploy_text(model)
        files[f"{name}/solver.prototxt"] = solver_text(name, model)
    return files


def main() -> None:
    for path, text in all_files().items():
        target = HERE / path
        target.parent.mkdir(exist_ok=True)
        target.write_text(text, encoding="utf-8")
        print(f"wrote {target}")


if __name__ == "__main__":
    main()
