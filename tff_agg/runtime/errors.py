"""Errors that say which client, which round and which stage.

The caller knows what its clients are called; the runtime only sees positions in a list.
`naming` gives it the names for as long as the `with` block lasts.
"""

import contextlib
import contextvars
import re
import reprlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, NotRequired, TypedDict

# With this and a number after it, an assertion in the work of a group says which of its
# members it is about.
MEMBER = "member of the group:"
_MEMBER = re.compile(re.escape(MEMBER) + r"\W*(\d+)")


class _Names(NamedTuple):
    round: object = None
    client_ids: Sequence[object] | None = None


_NO_NAMES = _Names()
_names: contextvars.ContextVar[_Names] = contextvars.ContextVar("tff_agg_runtime_names")


class RuntimeUnsupportedError(TypeError):
    """A computation that the chosen runtime cannot run; it names one that can."""


class ComputationError(RuntimeError):
    """A computation failed while it ran.

    Attributes:
      stage: Which part of the round failed, such as 'prepare', 'work' or 'update'.
      round: The round as given to `naming`, else None.
    """

    def __init__(self, message: str, *, stage: str, round: object = None):
        super().__init__(message)
        self.stage = stage
        self.round = round


class ClientError(ComputationError):
    """A client's part of a computation failed.

    Attributes:
      client_id: The client's id as given to `naming`, else its position. Where the
        failure is that of one member of a group, the member's id.
      position: Where the client stands in the list given to the computation.
      member: Where the member stands in its group; None if it is not about one.
    """

    def __init__(
        self,
        message: str,
        *,
        stage: str,
        round: object = None,
        client_id: object = None,
        position: int = 0,
        member: int | None = None,
    ):
        super().__init__(message, stage=stage, round=round)
        self.client_id = client_id
        self.position = position
        self.member = member


class ClientDataError(ClientError, TypeError):
    """A client's data is not of the type that the computation declares."""


@contextlib.contextmanager
def naming(
    *,
    round: object = None,
    client_ids: Sequence[object] | None = None,
) -> Iterator[None]:
    """Names the round and the clients of computations inside the block, for errors.

    Args:
      round: Whatever the caller calls the round.
      client_ids: One name for each client, in the order of the data. The name of a
        client that is a group of users is the list of their names.

    Yields:
      Nothing.

    Example:
      with naming(round=7, client_ids=['ada', 'bob']):
        output = process.next(state, [data_of_ada, data_of_bob])
    """
    token = _names.set(_Names(round, client_ids))
    try:
        yield
    finally:
        _names.reset(token)


def check_names(clients: int) -> None:
    """Raises where `naming` was given another number of names than of clients."""
    given = _names.get(_NO_NAMES).client_ids
    if given is not None and len(given) != clients:
        raise ValueError(
            f"client_ids: naming(...) was given {len(given)} values, but the "
            f"computation got the data of {clients} clients; give one for each"
        )


def failed_member(cause: BaseException) -> int | None:
    """Returns which member of a group an assertion is about; None if about none."""
    match = _MEMBER.search(str(cause))
    return None if match is None else int(match.group(1))


class FailureDetails(TypedDict):
    """The arguments of `client_error` that follow the position."""

    stage: str
    reason: str
    kind: NotRequired[type[ClientError]]
    member: NotRequired[int | None]


def client_error(
    position: int,
    stage: str,
    reason: str,
    kind: type[ClientError] = ClientError,
    member: int | None = None,
) -> ClientError:
    """Builds the error for a client, with the names that are in force."""
    names = _names.get(_NO_NAMES)
    ids = names.client_ids
    client = position if ids is None else ids[position]
    place = f"position {position}"
    if member is not None:
        place += f", member {member} of its group"
        if isinstance(client, list | tuple):
            client = client[member]
    shown = reprlib.repr(client) if isinstance(client, list | tuple) else repr(client)
    where = "" if names.round is None else f" in round {names.round}"
    return kind(
        f"client {shown} ({place}){where} failed at stage '{stage}': {reason}",
        stage=stage,
        round=names.round,
        client_id=client,
        position=position,
        member=member,
    )


class LaneFailure(Exception):
    """A client failed; what the error about it needs, without the client's data.

    Attributes:
      position: Where the client stands in the list.
      details: The other arguments of `client_error`.
    """

    def __init__(self, position: int, details: FailureDetails):
        super().__init__(position, details)
        self.position = position
        self.details = details

    def error(self) -> ClientError:
        """Returns the error, with the names that are in force."""
        return client_error(self.position, **self.details)


def server_error(stage: str, reason: str) -> ComputationError:
    """Builds the error for a stage that runs once per round."""
    name = _names.get(_NO_NAMES).round
    where = "" if name is None else f" in round {name}"
    return ComputationError(
        f"the server{where} failed at stage '{stage}': {reason}",
        stage=stage,
        round=name,
    )
