"""Who holds which argument: bringing any signature to (server, clients).

MapReduce form wants a computation of two arguments, one at the server and one at the
clients, and two results. Others that mean the same, such as an evaluation that returns
metrics only or an initialisation without any argument, are wrapped into that form.
"""

import tensorflow_federated as tff

from tff_agg.runtime.compile.values import Value


def contains_federated(*types: tff.Type | None) -> bool:
    """Returns whether a placement appears anywhere in the types."""
    return any(_has_federated(t) for t in types if t is not None)


def _has_federated(type_spec: tff.Type) -> bool:
    if isinstance(type_spec, tff.FederatedType):
        return True
    if isinstance(type_spec, tff.StructType):
        return any(_has_federated(t) for _, t in tff.structure.to_elements(type_spec))
    if isinstance(type_spec, tff.FunctionType):
        return contains_federated(type_spec.parameter, type_spec.result)
    return False


class Arguments:
    """The arguments of a federated computation, by placement.

    Args:
      signature: The computation's type.
    """

    def __init__(self, signature: tff.FunctionType):
        self._signature = signature
        parameter = signature.parameter
        self._single = isinstance(parameter, tff.FederatedType)
        if parameter is None:
            self._types: list[tff.Type] = []
        elif self._single:
            self._types = [parameter]
        elif isinstance(parameter, tff.StructType):
            self._types = [t for _, t in tff.structure.to_elements(parameter)]
        else:
            self._types = [parameter]
        self.is_iterative = _is_iterative(signature)

    def two_by_two(self, comp: tff.Computation) -> tff.Computation:
        """Returns `comp`, or a computation around it, with two arguments and results.

        The first result of the wrapped computation is its first argument, unchanged.
        """
        if self.is_iterative:
            return comp
        for t in self._types:
            if not isinstance(t, tff.FederatedType):
                raise TypeError(
                    f"its argument of type {t} is neither at the server nor at the "
                    "clients"
                )
            if t.placement is tff.CLIENTS and t.all_equal:
                raise TypeError(f"its argument of type {t} is equal at all clients")
        _check_at_server(self._signature.result)
        server = [t.member for t in self._types if t.placement is tff.SERVER]
        clients = [t.member for t in self._types if t.placement is tff.CLIENTS]

        @tff.federated_computation(
            tff.FederatedType(tff.StructType(server), tff.SERVER),
            tff.FederatedType(tff.StructType(clients), tff.CLIENTS),
        )
        def wrapped(at_server, at_clients):
            counts = {tff.SERVER: 0, tff.CLIENTS: 0}
            parts = []
            for t in self._types:
                source = at_server if t.placement is tff.SERVER else at_clients
                parts.append(source[counts[t.placement]])
                counts[t.placement] += 1
            result = comp(*parts)
            if not isinstance(self._signature.result, tff.FederatedType):
                result = tff.federated_zip(result)
            return at_server, result

        return wrapped

    def split(self, arg: Value) -> tuple[Value, list[Value]]:
        """Returns the server's value and the list of the clients' values."""
        parts = self._parts(arg)
        if self.is_iterative:
            return parts[0], _client_list(parts[1])
        server, clients = [], []
        for t, part in zip(self._types, parts, strict=True):
            if t.placement is tff.SERVER:
                server.append(part)
            else:
                clients.append(_client_list(part))
        if len({len(c) for c in clients}) > 1:
            raise ValueError(
                "the lists of client values differ in length: "
                f"{[len(c) for c in clients]}; give one value for each client"
            )
        return tuple(server), [tuple(c) for c in zip(*clients, strict=True)]

    def _parts(self, arg: Value) -> list[Value]:
        if not self._types:
            return []
        if self._single or len(self._types) == 1:
            if isinstance(arg, tff.structure.Struct) and not self._single:
                return [part for _, part in tff.structure.to_elements(arg)]
            return [arg]
        if isinstance(arg, tff.structure.Struct):
            return [part for _, part in tff.structure.to_elements(arg)]
        return list(arg.values()) if isinstance(arg, dict) else list(arg)


def _is_iterative(signature: tff.FunctionType) -> bool:
    """Returns whether the type is (S@SERVER, D@CLIENTS) -> (S@SERVER, M@SERVER)."""
    parameter, result = signature.parameter, signature.result
    if not (
        isinstance(parameter, tff.StructType)
        and isinstance(result, tff.StructType)
        and len(parameter) == len(result) == 2
    ):
        return False
    types = [parameter[0], parameter[1], result[0], result[1]]
    return (
        all(isinstance(t, tff.FederatedType) for t in types)
        and [t.placement for t in types]
        == [tff.SERVER, tff.CLIENTS, tff.SERVER, tff.SERVER]
        and not parameter[1].all_equal
        and parameter[0].is_assignable_from(result[0])
    )


def _check_at_server(result: tff.Type) -> None:
    if isinstance(result, tff.FederatedType):
        if result.placement is not tff.SERVER:
            raise TypeError(f"its result of type {result} is not at the server")
    elif isinstance(result, tff.StructType):
        for _, t in tff.structure.to_elements(result):
            _check_at_server(t)
    else:
        raise TypeError(f"its result of type {result} is not at the server")


def _client_list(value: Value) -> list[Value]:
    if not isinstance(value, list | tuple):
        raise TypeError(
            "the clients' data must be a list with one entry for each client, found a "
            f"{type(value).__name__}"
        )
    return list(value)
