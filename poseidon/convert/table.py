"""The table of layers: type → how it is written for ONNX and for PyTorch. To add a layer, add its line here.

    onnx    an Emission to the names of its tops' values (poseidon/convert/to_onnx)
    torch   a Writing to lines of Python (poseidon/convert/to_torch)

A type that is not here cannot be converted; the message names the layer and offers to end the net before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from poseidon.convert.to_onnx import arithmetic as onnx_arithmetic
from poseidon.convert.to_onnx import dense as onnx_dense
from poseidon.convert.to_onnx import forks as onnx_forks
from poseidon.convert.to_onnx import losses as onnx_losses
from poseidon.convert.to_onnx import neurons as onnx_neurons
from poseidon.convert.to_onnx import pooling as onnx_pooling
from poseidon.convert.to_onnx import recurrent as onnx_recurrent
from poseidon.convert.to_onnx import selection as onnx_selection
from poseidon.convert.to_onnx import shapes as onnx_shapes
from poseidon.convert.to_onnx import windows as onnx_windows
from poseidon.convert.to_onnx.builder import Emission
from poseidon.convert.to_torch import arithmetic as torch_arithmetic
from poseidon.convert.to_torch import dense as torch_dense
from poseidon.convert.to_torch import forks as torch_forks
from poseidon.convert.to_torch import losses as torch_losses
from poseidon.convert.to_torch import neurons as torch_neurons
from poseidon.convert.to_torch import pooling as torch_pooling
from poseidon.convert.to_torch import recurrent as torch_recurrent
from poseidon.convert.to_torch import selection as torch_selection
from poseidon.convert.to_torch import shapes as torch_shapes
from poseidon.convert.to_torch import windows as torch_windows
from poseidon.convert.to_torch.writing import Writing


@dataclass(frozen=True, slots=True)
class Emitters:
    onnx: Callable[[Emission], str | Sequence[str]]
    torch: Callable[[Writing], Any]


TABLE: dict[str, Emitters] = {
    "AbsVal": Emitters(onnx_neurons.absval, torch_neurons.absval),
    "Accuracy": Emitters(onnx_losses.accuracy, torch_losses.accuracy),
    "ArgMax": Emitters(onnx_selection.argmax, torch_selection.argmax),
    "Axpy": Emitters(onnx_forks.axpy, torch_forks.axpy),
    "BNLL": Emitters(onnx_neurons.bnll, torch_neurons.bnll),
    "BatchNorm": Emitters(onnx_arithmetic.batch_norm, torch_arithmetic.batch_norm),
    "BatchReindex": Emitters(onnx_selection.batch_reindex, torch_selection.batch_reindex),
    "Bias": Emitters(onnx_arithmetic.bias, torch_arithmetic.bias),
    "Clip": Emitters(onnx_neurons.clip, torch_neurons.clip),
    "Concat": Emitters(onnx_shapes.concat, torch_shapes.concat),
    "ContrastiveLoss": Emitters(onnx_losses.contrastive_loss, torch_losses.contrastive_loss),
    "Convolution": Emitters(onnx_windows.convolution, torch_windows.convolution),
    "ConvolutionDepthwise": Emitters(onnx_windows.convolution, torch_windows.convolution),
    "Crop": Emitters(onnx_shapes.crop, torch_shapes.crop),
    "Deconvolution": Emitters(onnx_windows.deconvolution, torch_windows.deconvolution),
    "DepthwiseConvolution": Emitters(onnx_windows.convolution, torch_windows.convolution),
    "Dropout": Emitters(onnx_neurons.identity, torch_neurons.dropout),
    "ELU": Emitters(onnx_neurons.elu, torch_neurons.elu),
    "Eltwise": Emitters(onnx_arithmetic.eltwise, torch_arithmetic.eltwise),
    "Embed": Emitters(onnx_dense.embed, torch_dense.embed),
    "EuclideanLoss": Emitters(onnx_losses.euclidean_loss, torch_losses.euclidean_loss),
    "Exp": Emitters(onnx_neurons.exp, torch_neurons.exp),
    "Filter": Emitters(onnx_selection.filter_, torch_selection.filter_),
    "Flatten": Emitters(onnx_shapes.flatten, torch_shapes.flatten),
    "HingeLoss": Emitters(onnx_losses.hinge_loss, torch_losses.hinge_loss),
    "Im2col": Emitters(onnx_windows.im2col, torch_windows.im2col),
    "InfogainLoss": Emitters(onnx_losses.infogain_loss, torch_losses.infogain_loss),
    "InnerProduct": Emitters(onnx_dense.inner_product, torch_dense.inner_product),
    "Interp": Emitters(onnx_forks.interp, torch_forks.interp),
    "LRN": Emitters(onnx_pooling.lrn, torch_pooling.lrn),
    "LSTM": Emitters(onnx_recurrent.lstm, torch_recurrent.lstm),
    "LSTMUnit": Emitters(onnx_recurrent.lstm_unit, torch_recurrent.lstm_unit),
    "Log": Emitters(onnx_neurons.log, torch_neurons.log),
    "MVN": Emitters(onnx_arithmetic.mvn, torch_arithmetic.mvn),
    "MultinomialLogisticLoss": Emitters(onnx_losses.multinomial_logistic_loss, torch_losses.multinomial_logistic_loss),
    "Normalize": Emitters(onnx_forks.normalize, torch_forks.normalize),
    "PReLU": Emitters(onnx_neurons.prelu, torch_neurons.prelu),
    "Parameter": Emitters(onnx_arithmetic.parameter, torch_arithmetic.parameter),
    "Permute": Emitters(onnx_forks.permute, torch_forks.permute),
    "Pooling": Emitters(onnx_pooling.pooling, torch_pooling.pooling),
    "Power": Emitters(onnx_neurons.power, torch_neurons.power),
    "PriorBox": Emitters(onnx_forks.prior_box, torch_forks.prior_box),
    "RNN": Emitters(onnx_recurrent.rnn, torch_recurrent.rnn),
    "ReLU": Emitters(onnx_neurons.relu, torch_neurons.relu),
    "ReLU6": Emitters(onnx_forks.relu6, torch_forks.relu6),
    "Reduction": Emitters(onnx_arithmetic.reduction, torch_arithmetic.reduction),
    "Reorg": Emitters(onnx_forks.reorg, torch_forks.reorg),
    "Reshape": Emitters(onnx_shapes.reshape, torch_shapes.reshape),
    "SPP": Emitters(onnx_pooling.spp, torch_pooling.spp),
    "Scale": Emitters(onnx_arithmetic.scale, torch_arithmetic.scale),
    "ShuffleChannel": Emitters(onnx_forks.shuffle_channel, torch_forks.shuffle_channel),
    "Sigmoid": Emitters(onnx_neurons.sigmoid, torch_neurons.sigmoid),
    "SigmoidCrossEntropyLoss": Emitters(
        onnx_losses.sigmoid_cross_entropy_loss, torch_losses.sigmoid_cross_entropy_loss
    ),
    "Slice": Emitters(onnx_shapes.slice_, torch_shapes.slice_),
    "Softmax": Emitters(onnx_neurons.softmax, torch_neurons.softmax),
    "SoftmaxWithLoss": Emitters(onnx_losses.softmax_with_loss, torch_losses.softmax_with_loss),
    "Split": Emitters(onnx_shapes.split, torch_shapes.split),
    "Swish": Emitters(onnx_neurons.swish, torch_neurons.swish),
    "TanH": Emitters(onnx_neurons.tanh, torch_neurons.tanh),
    "Threshold": Emitters(onnx_neurons.threshold, torch_neurons.threshold),
    "Tile": Emitters(onnx_shapes.tile, torch_shapes.tile),
    "Upsample": Emitters(onnx_forks.upsample, torch_forks.upsample),
}


def emitters(layer: Any) -> Emitters:
    """The line of a layer's type."""
    found = TABLE.get(layer.type_name)
    if found is None:
        bottoms = ",".join(layer.spec.bottom)
        nearest = f"end the net before it with --until {bottoms}" if bottoms else "replace it by an Input layer"
        raise layer.error(
            f"layers of type {layer.type_name} cannot be converted: "
            f"there is no such operation outside Poseidon; {nearest}, or write it with other layers"
        )
    return found
