"""Pieces of a computation, as functions of flat tensors."""

from typing import Protocol

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.runtime import disclosure, errors
from tff_agg.runtime.compile import graphs


class Call(Protocol):
    """A function of flat tensors that was made from graphs."""

    graphs: list[tf.compat.v1.GraphDef]

    def __call__(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """Runs it."""


class Stage:
    """A TFF computation with a TensorFlow body, as a function of flat tensors."""

    def __init__(self, computation: tff.Computation):
        self.program = graphs.program_of(computation)
        self.graphs = [self.program.graph_def]
        # A process's `prepare` gets the whole state and reads only the model in it.
        self._used = graphs.used_feeds(self.program)
        self._variables = graphs.Variables(self.program)
        # A data set may read them long after the call.
        self._variables_are_lent = bool(self.program.variables) and any(
            isinstance(leaf, tff.SequenceType)
            for leaf in graphs.leaf_types(self.program.result)
        )
        specs = graphs.specs_of(self.program.parameter)
        # One that computes nothing needs no call: `prepare` picks the model out.
        self._picked: list[int] | None = None
        if set(self.program.fetches) <= set(self.program.feeds):
            self._picked = [self.program.feeds.index(n) for n in self.program.fetches]
            return
        self._call = graphs.function(
            self._body,
            [specs[i] for i in self._used] + graphs.variable_specs(self.program),
        )

    def _body(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        arguments: list[tf.Tensor | None] = [None] * len(self.program.feeds)
        for i, tensor in zip(self._used, tensors, strict=False):
            arguments[i] = tensor
        return graphs.embed(self.program, arguments, tensors[len(self._used) :])

    def __call__(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """Runs it on flat arguments."""
        if self._picked is not None:
            return [tensors[i] for i in self._picked]
        used = [tensors[i] for i in self._used]
        variables = self._variables
        if self._variables_are_lent:
            variables = graphs.Variables(self.program)
        return list(self._call(*used, *variables.handles))


def need_no_variables(program: graphs.Program, stage: str) -> None:
    """Refuses a stage with variables where none can be given."""
    if program.variables:
        names = ", ".join(node.name for node in program.variables)
        raise errors.RuntimeUnsupportedError(
            f"the stage '{stage}' of this computation has variables of its own "
            f"({names}), which lanes do not run; use tff_agg.runtime.use('worker')"
        )


def run_stage(
    name: str,
    call: Call,
    *tensors: tf.Tensor,
    show_data: bool = False,
    device: str | None = None,
) -> list[tf.Tensor]:
    """Calls a server stage on a device; an error of TensorFlow's names the stage."""
    try:
        with tf.device(device):
            return call(*tensors)
    except tf.errors.OpError as error:
        cause = error
    reason = disclosure.describe(cause, call.graphs, show_data)
    raise errors.server_error(name, reason) from (cause if show_data else None)
