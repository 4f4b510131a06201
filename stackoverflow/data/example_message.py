"""The message `tf.train.Example`, read by protobuf without loading TensorFlow.

TensorFlow's generated class comes with all of TensorFlow, which takes seconds in every
process that prepares data. The few fields needed are described here, and protobuf makes
the class: the same numbers on the wire, so the same messages.
"""

import functools
from collections.abc import Iterable
from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message,
    message_factory,
)

_FIELD = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "tff_agg.example"


def first_texts(serialized: bytes, names: Iterable[str]) -> dict[str, bytes]:
    r"""Returns the first texts of features of a serialized `tf.train.Example`.

    Args:
      serialized: The message.
      names: The features to look for. Those without text are left out.

    Raises:
      ValueError: The message is cut off or is no message.

    Example:
      >>> first_texts(b'\n\r\n\x0b\n\x01a\x12\x06\n\x04\n\x02hi', ['a', 'b'])
      {'a': b'hi'}
    """
    example = _example_class()()
    try:
        example.ParseFromString(serialized)
    except message.DecodeError as error:
        raise ValueError("the message is cut off, or is none") from error
    feature = example.features.feature
    return {
        name: feature[name].bytes_list.value[0]
        for name in names
        if name in feature and feature[name].bytes_list.value
    }


@functools.cache
def _example_class() -> Any:
    """Makes the class of the message."""
    file = descriptor_pb2.FileDescriptorProto(
        name="tff_agg/example.proto", package=_PACKAGE, syntax="proto3"
    )
    _add(file, "BytesList", ("value", 1, _FIELD.TYPE_BYTES, "", True))
    _add(file, "Feature", ("bytes_list", 1, _FIELD.TYPE_MESSAGE, "BytesList", False))
    features = _add(
        file,
        "Features",
        ("feature", 1, _FIELD.TYPE_MESSAGE, "Features.FeatureEntry", True),
    )
    entry = _add(
        features,
        "FeatureEntry",
        ("key", 1, _FIELD.TYPE_STRING, "", False),
        ("value", 2, _FIELD.TYPE_MESSAGE, "Feature", False),
    )
    entry.options.map_entry = True
    _add(file, "Example", ("features", 1, _FIELD.TYPE_MESSAGE, "Features", False))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    described = pool.FindMessageTypeByName(f"{_PACKAGE}.Example")
    return message_factory.GetMessageClass(described)


def _add(parent: Any, name: str, *fields: tuple[str, int, Any, str, bool]) -> Any:
    """Adds a message type with fields (name, number, type, type's name, repeated)."""
    nested = parent.message_type if hasattr(parent, "message_type") else None
    added = (parent.nested_type if nested is None else nested).add(name=name)
    for field, number, kind, type_name, repeated in fields:
        added.field.add(
            name=field,
            number=number,
            type=kind,
            type_name=f".{_PACKAGE}.{type_name}" if type_name else None,
            label=_FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL,
        )
    return added
