"""Text into a page. Names come from files that anybody may have written: whatever they hold, they stay text.

html(…)     between tags and in quoted attributes
data(…)     a value as JSON inside <script type="application/json">: there only `</script` and `<!--` could end or
            change what the block is, so every `<`, `>` and `&` is written as an escape of JSON's
"""

from __future__ import annotations

import html as _html
import json
import re
from typing import Any

_HTML_IN_JSON = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)
# What HTML and XML cannot hold at all.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")


def html(text: object) -> str:
    """Text for a page."""
    return _html.escape(_CONTROL.sub("\ufffd", str(text)), quote=True)


def data(value: Any) -> str:
    """A value as JSON for a page. What is no finite number must be None already."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _CONTROL.sub("\ufffd", text).translate(_HTML_IN_JSON)
