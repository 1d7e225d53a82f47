"""Writes the model zoo: `python -m models.generate` renders train_val, deploy and solver prototxt of every model.

`bench_text(model, batch)` gives the training net with `Input` layers for images and labels, to be timed without data.
Paths inside the files are relative to the folder that holds `models/`, where the commands are run.
"""

from __future__ import annotations

from pathlib import Path

from caffe.net_spec import NetSpec
from models.model import Model
from models.parts import L, P
from models.prototxt import compact_text, solver_fields
from models.zoo import MODELS
from poseidon.spec import caffe_pb2

HERE = Path(__file__).resolve().parent
BANNER = "# Written by models/generate.py: change the net in models/zoo/.\n"


def data_layer(model: Model, phase: str) -> NetSpec:
    """A spec with images and labels from the phase's database."""
    n = NetSpec()
    mirror = {"mirror": True} if model.mirrors and phase == "TRAIN" else {}
    n.data, n.label = L.Data(
        source=model.sources[phase],
        batch_size=model.batches[phase],
        backend=P.Data.LMDB,
        include={"phase": caffe_pb2.Phase.Value(phase)},
        transform_param={**mirror, **model.transform},
        ntop=2,
    )
    return n


def input_layers(model: Model, batch: int) -> NetSpec:
    n = NetSpec()
    n.data = L.Input(shape={"dim": [batch, *model.image_shape]})
    n.label = L.Input(shape={"dim": [batch]})
    return n


def titled(model: Model, *layers: caffe_pb2.LayerParameter) -> str:
    return compact_text(caffe_pb2.NetParameter(name=model.title, layer=layers))


def train_val_text(model: Model) -> str:
    testing = data_layer(model, "TEST").to_proto().layer
    training = data_layer(model, "TRAIN")
    model.body(training)
    first, *rest = training.to_proto().layer
    return BANNER + titled(model, first, *testing, *rest)


def bench_net(model: Model, batch: int) -> list[caffe_pb2.LayerParameter]:
    """The training net for `batch` images, fed by two `Input` layers."""
    n = input_layers(model, batch)
    model.body(n)
    return list(n.to_proto().layer)


def bench_text(name: str, batch: int) -> str:
    """The training net of model `name` for `batch` images, fed by `Input` blobs `data` and `label` (class numbers)."""
    return titled(MODELS[name], *bench_net(MODELS[name], batch))


def deploy_text(model: Model, batch: int = 10) -> str:
    """The net for inference: no labels, so no losses; only what leads to the last scores, and their probabilities."""
    images, _, *body = bench_net(model, batch)
    scores = [layer.bottom[0] for layer in body if layer.type == "SoftmaxWithLoss"][-1]
    needed, kept = {scores}, []
    for layer in reversed(body):
        if needed.intersection(layer.top) and not layer.include:
            needed.update(layer.bottom)
            layer.ClearField("param")
            kept.append(layer)
    probabilities = caffe_pb2.LayerParameter(name="prob", type="Softmax", bottom=[scores], top=["prob"])
    return BANNER + titled(model, images, *reversed(kept), probabilities)


def solver_text(name: str, model: Model) -> str:
    files = {"net": f"models/{name}/train_val.prototxt"}
    output = {"snapshot_prefix": f"models/{name}/{name}", "solver_mode": caffe_pb2.SolverParameter.CPU}
    note = f"# {model.note}\n" if model.note else ""
    return BANNER + note + solver_fields({**files, **model.schedule, **output})


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
