"""ImageData: batches of the images that a text file lists, `path label` per line (poseidon/data/image_list.py).

root_folder             put in front of every path
new_height, new_width   resize to; both or none
is_color                three channels (the default) or one
shuffle                 each epoch has its own order
top 0                   N × C × H × W, transformed (poseidon/data/transformer.py)
top 1                   N labels
"""

from __future__ import annotations

from poseidon.data.image_list import ImageList, ImageOptions
from poseidon.data.source import RecordSource
from poseidon.net.layers.records import RecordLayer
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2


@register("ImageData")
class ImageData(RecordLayer):
    @property
    def options(self) -> caffe_pb2.ImageDataParameter:
        return self.spec.image_data_param

    @property
    def shuffles(self) -> bool:
        return self.options.shuffle

    def open_source(self, path: str) -> RecordSource:
        options = self.options
        new_size = (options.new_height, options.new_width)
        if (new_size[0] == 0) != (new_size[1] == 0):
            raise self.error(f"new_height and new_width go together, got {new_size[0]} and {new_size[1]}")
        self.check_room("an image", (3, *new_size))
        return ImageList(path, ImageOptions(options.root_folder, options.is_color, new_size if all(new_size) else None))
