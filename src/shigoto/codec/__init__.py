"""Arguments and results ⇄ JSON text, checked against the annotations of the task's function.

A payload is a JSON object of parameter name → value; nothing but JSON is ever stored. What is written at
enqueue is read back at once, by the very decoder the worker will use, so that a mismatch shows at the call.

    signature     what a task function must look like (`check_shape`), and one function, resolved (`Signature`)
    arguments     its arguments ⇄ payload, its return value ⇄ text, and the JSON Schema of both
    slot          one annotated place: whether msgspec or pydantic reads it, and what has to be watched there
    annotations   annotations as they are written, and which Python types they take
    values        walks over values that refuse what JSON would lose or change without a word
    text          writing JSON within limits of size and depth (`encode_json`), and saying why it failed

Annotations decide what arrives: a tuple passed for `Sequence[int]` arrives as a list, an object of a subclass
as one of the annotated class. What a type checker would refuse is refused, unless it arrives equal. Where they
decide nothing (`Any`, `object`, no annotation) only JSON types are accepted: None, bool, int, float, str,
list, and dict with str keys. A member of an IntEnum, or of another subclass of these, arrives as the JSON
type. Models of pydantic keep their own rules for what is inside them. Arguments from outside, which know only
JSON, may have their JSON form: a UUID its text, bytes base64, an object a dict.
"""

from shigoto.codec.annotations import JSON, Secret
from shigoto.codec.signature import Signature, check_shape, resolve
from shigoto.codec.text import encode_json

__all__ = ["JSON", "Secret", "Signature", "check_shape", "encode_json", "resolve"]
