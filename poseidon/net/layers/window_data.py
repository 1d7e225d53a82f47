"""WindowData: batches of windows of images, for R-CNN (poseidon/data/windows.py, window_file.py, warp.py).

    crop_size     in transform_param: the side of the square a window is warped to
    top 0         N × 3 × crop_size × crop_size
    top 1         N labels, 0 for the background

Windows are drawn at random, also in TEST phase, as in Caffe.
"""

from __future__ import annotations

from poseidon.data.shard import Share
from poseidon.data.warp import WarpOptions
from poseidon.data.window_file import NUM_CHANNELS, WindowFile, WindowFileOptions
from poseidon.data.windows import WindowBatches, WindowOptions
from poseidon.net.layer import Shape, text_of
from poseidon.net.layers.prefetched import MakeBatch, PrefetchedLayer
from poseidon.net.registry import register


@register("WindowData")
class WindowData(PrefetchedLayer):
    @property
    def batch_size(self) -> int:
        return self.spec.window_data_param.batch_size

    def record_shape(self) -> Shape:
        options = self.spec.window_data_param
        if not options.source:
            raise self.error("source must be given")
        self._options = self._window_options()
        self._windows = WindowFile(
            options.source,
            WindowFileOptions(options.fg_threshold, options.bg_threshold, options.root_folder, options.cache_images),
        )
        self._batches(Share())
        return NUM_CHANNELS, self._options.warp.crop_size, self._options.warp.crop_size

    def open_batches(self) -> MakeBatch:
        return self._batches(self.share).make

    def _batches(self, share: Share) -> WindowBatches:
        return WindowBatches(self._windows, self._options, share, self.batch_size, self.key_for("window"), self.memory)

    def _window_options(self) -> WindowOptions:
        options, transform = self.spec.window_data_param, self.transform_options()
        crop_size = transform.crop_size
        if crop_size < 1:
            raise self.error("transform_param.crop_size must be given and at least 1")
        if options.crop_mode not in ("warp", "square"):
            raise self.error(f"expected crop_mode 'warp' or 'square', got {options.crop_mode!r}")
        if 2 * options.context_pad >= crop_size:
            raise self.error(f"context_pad must be less than half of crop_size {crop_size}, got {options.context_pad}")
        if not 0 <= options.fg_fraction <= 1:
            raise self.error(f"fg_fraction must be from 0 to 1, got {options.fg_fraction:g}")
        if len(transform.mean_values) not in (0, 1, NUM_CHANNELS):
            raise self.error(f"expected 1 or {NUM_CHANNELS} mean_value, got {len(transform.mean_values)}")
        if transform.mean is not None:
            _, height, width = transform.mean.shape
            side = (width - crop_size) // 2 + crop_size
            if transform.mean.shape[0] != NUM_CHANNELS or width < crop_size or height < side:
                raise self.error(
                    f"mean_file must hold {NUM_CHANNELS} x {side} x {crop_size} values or more (it is used from "
                    f"{side - crop_size} on), got {text_of(transform.mean.shape)}"
                )
        return WindowOptions(
            WarpOptions(crop_size, options.context_pad, options.crop_mode == "square"),
            options.fg_fraction,
            transform.mirror,
            transform.scale,
            transform.mean,
            transform.mean_values,
        )
