"""Arguments and results ⇄ JSON text, checked against the annotations of the task's function.

A payload is a JSON object of parameter name → value; nothing but JSON is ever stored. What is written at
enqueue is read back at once, by the very decoder the worker will use, so that a mismatch shows at the call.

    declaration   what a task function must look like (`check_shape`), and what its annotations mean
    signature     one function, resolved (`Signature`, `resolve`)
    arguments     its arguments ⇄ payload
    result        its return value ⇄ text
    slot          one annotated place: whether msgspec or pydantic reads it, and what has to be watched there
    adapter       pydantic's part
    schema        the JSON Schema of all that
    annotations   annotations as they are written
    text          writing JSON within limits of size and depth (`encode_json`), and saying why it failed
    values        walks over values that refuse what JSON would lose or change without a word
    kinds         which Python types an annotation takes

Annotations decide what arrives: a tuple passed for `Sequence[int]` arrives as a list, an object of a subclass
as one of the annotated class. What a type checker would refuse is refused, unless it arrives equal. Where they
decide nothing (`Any`, `object`, no annotation) only JSON types are accepted: None, bool, int, float, str,
list, and dict with str keys. A member of an IntEnum, or of another subclass of these, arrives as the JSON
type. Models of pydantic keep their own rules for what is inside them. Arguments from outside, which know only
JSON, may have their JSON form: a UUID its text, bytes base64, an object a dict.
"""

from shigoto.codec.annotations import JSON, Secret
from shigoto.codec.declaration import check_shape
from shigoto.codec.signature import Signature, resolve
from shigoto.codec.text import encode_json

__all__ = ["JSON", "Secret", "Signature", "check_shape", "encode_json", "resolve"]
