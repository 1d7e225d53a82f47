"""Where training data comes from: sources of records, and what turns records into batches."""

from __future__ import annotations

import os

# A few bytes can claim to be an image of any size, and OpenCV makes room for a gigapixel. It reads this limit when it
# is first imported, which our own modules do after this one; somebody with larger images sets it himself.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(1 << 28))
