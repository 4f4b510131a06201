"""The clients' part of a MapReduce form, as one TensorFlow function.

What a lane calls for each of its clients; who calls it, with what, is in `lanes.work`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.runtime.compile import dataset_options, graphs, values
from tff_agg.runtime.compile.stages import Stage, need_no_variables


class ClientForm(NamedTuple):
    """The part of a MapReduce form that lanes run, as TFF computations."""

    zero: tff.Computation
    work: tff.Computation
    accumulate: tff.Computation
    secure_modular_sum_modulus: tff.Computation

    @classmethod
    def of(cls, form: tff.backends.mapreduce.MapReduceForm) -> "ClientForm":
        """Takes it out of a `tff.backends.mapreduce.MapReduceForm`."""
        return cls(*(getattr(form, name) for name in cls._fields))

    def to_protos(self) -> tuple[Any, ...]:
        """Returns it in a form that can be sent."""
        return tuple(map(tff.framework.serialize_computation, self))

    @classmethod
    def from_protos(cls, protos: Sequence[Any]) -> "ClientForm":
        """Makes it again of what was sent."""
        return cls(*map(tff.framework.deserialize_computation, protos))


class SecureSums:
    """What stands next to the plain aggregate: TFF's three kinds of secure sums.

    In one process nobody is kept from seeing anything; they are sums of integers, the
    third kind modulo a number. The leaves follow those of the plain accumulator.
    """

    def __init__(self, form: ClientForm):
        _, *secure = (
            t for _, t in tff.structure.to_elements(form.work.type_signature.result)
        )
        self.specs = [spec for t in secure for spec in graphs.specs_of(t)]
        self.count = len(self.specs)
        modular = values.leaf_count(secure[-1])
        self._moduli: list[np.ndarray | None] = [None] * (self.count - modular)
        if modular:
            moduli = Stage(form.secure_modular_sum_modulus)()
            one_for_all = len(moduli) == 1
            self._moduli += [
                tf.get_static_value(moduli[0 if one_for_all else i])
                for i in range(modular)
            ]

    def zero(self) -> list[tf.Tensor]:
        """Returns sums of nothing."""
        return [tf.zeros(spec.shape, spec.dtype) for spec in self.specs]

    def add(
        self, left: Sequence[tf.Tensor], right: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Adds two of them."""
        return [
            a + b if modulus is None else tf.math.floormod(a + b, modulus)
            for a, b, modulus in zip(left, right, self._moduli, strict=True)
        ]


class StepFunction:
    """`work` and `accumulate` as one function."""

    def __init__(self, form: ClientForm, sums: SecureSums):
        self.program = graphs.program_of(form.work)
        accumulate = graphs.program_of(form.accumulate)
        need_no_variables(accumulate, "accumulate")
        self.graphs = [self.program.graph_def, accumulate.graph_def]
        accumulator, update = (
            t for _, t in tff.structure.to_elements(accumulate.parameter)
        )
        inputs = len(self.program.feeds)
        plain = values.leaf_count(accumulator)
        updates = values.leaf_count(update)
        input_types = graphs.leaf_types(self.program.parameter)

        def body(*tensors: tf.Tensor) -> list[tf.Tensor]:
            given = dataset_options.without_threads(tensors[:inputs], input_types)
            rest = tensors[inputs:]
            total, rest = rest[:plain], rest[plain:]
            secure, handles = rest[: sums.count], rest[sums.count :]
            out = graphs.embed(self.program, given, handles)
            added = graphs.embed(accumulate, [*total, *out[:updates]])
            return added + sums.add(secure, out[updates:])

        self._call = graphs.function(
            body,
            graphs.specs_of(self.program.parameter)
            + graphs.specs_of(accumulator)
            + sums.specs
            + graphs.variable_specs(self.program),
        )

    def __call__(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """Adds a client to its lane's sum."""
        return list(self._call(*tensors))
