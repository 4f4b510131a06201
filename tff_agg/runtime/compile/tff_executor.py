"""TFF's own executor, for small computations that do not fit TFF's MapReduce form.

Results that stay at the clients, an argument that is placed nowhere: such a computation
is a helper of a few lines, and whoever calls it should not have to change runtimes. It
goes to TFF's worker, a process of its own that ends with this one (`worker`).

That worker listens on all network interfaces without authentication, and it rounds
otherwise than lanes do. So two kinds of computations are never handed over: those that
take data sets, and the steps of a process, which is where users' data and noise are.
"""

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow_federated as tff

from tff_agg.runtime import errors, worker

if TYPE_CHECKING:
    from tff_agg.runtime.compile.values import Value

_log = logging.getLogger(__name__)


class TffExecutor:
    """TFF's worker, started when it is first needed.

    Args:
      wanted: Whether it may be started at all.
      show_data: As `show_data_in_errors` of `LocalContext`.
    """

    def __init__(self, wanted: bool, show_data: bool):
        self._wanted = wanted
        self._show_data = show_data
        self._lock = threading.Lock()
        self._context: tff.framework.SyncContext | None = None

    def why_not(self, signature: tff.FunctionType) -> str | None:
        """Says why a computation of this type is not handed over; None if it is."""
        if not self._wanted:
            return "this runtime was made with worker=False"
        if _contains(signature.parameter, tff.SequenceType):
            return (
                "it takes data sets, and TFF's executor, which could run it, listens "
                "on all network interfaces without authentication"
            )
        if _is_step(signature):
            return (
                "it is the step of a process, and TFF's executor, which could run it, "
                "would give other bits"
            )
        if _contains(signature.result, tff.FunctionType):
            return "its result is a function"
        return worker.why_missing()

    def call_of(self, comp: tff.Computation, reason: str) -> "Callable[[Value], Value]":
        """Makes a call of a computation that `why_not` has nothing against.

        Args:
          comp: The computation.
          reason: Why it does not run in this process.
        """
        signature = comp.type_signature

        def call(arg: "Value") -> "Value":
            context = self._started(signature, reason)
            try:
                return context.invoke(comp, arg)
            except errors.ComputationError as error:
                failed = error
            raise errors.ComputationError(
                f"{failed}. TFF's executor was asked because {reason}",
                stage=failed.stage,
                round=failed.round,
            ) from None

        return call

    def close(self) -> None:
        """Ends the worker; another call would start a new one."""
        with self._lock:
            if self._context is not None:
                self._context.close()

    def _started(
        self, signature: tff.FunctionType, reason: str
    ) -> tff.framework.SyncContext:
        """Returns the context; the first time, says that and why there is one."""
        with self._lock:
            if self._context is None:
                _log.warning(
                    "TFF's own executor runs a computation of type %s, and others like "
                    "it from now on: %s.",
                    signature.compact_representation(),
                    reason,
                )
                # Among no clients TFF finds no value, not even one equal at all.
                self._context = worker.create_worker_context(
                    default_num_clients=1, show_data_in_errors=self._show_data
                )
            return self._context


def _contains(type_spec: tff.Type | None, kind: type[tff.Type]) -> bool:
    return type_spec is not None and tff.types.contains(
        type_spec, lambda t: isinstance(t, kind)
    )


def _is_step(signature: tff.FunctionType) -> bool:
    """Returns whether the type is (S@SERVER, …@CLIENTS, …) -> (S@SERVER, …)."""
    parameter, result = signature.parameter, signature.result
    if not (
        isinstance(parameter, tff.StructType)
        and isinstance(result, tff.StructType)
        and len(parameter)
        and len(result)
    ):
        return False
    before, after = parameter[0], result[0]
    return (
        isinstance(before, tff.FederatedType)
        and before.placement is tff.SERVER
        and before.is_assignable_from(after)
        and any(
            isinstance(t, tff.FederatedType) and t.placement is tff.CLIENTS
            for _, t in tff.structure.to_elements(parameter)
        )
    )
