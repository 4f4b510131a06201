"""The runtime for many machines: lanes are actors of Ray.

The server's part of a round runs here, as on the local runtime. What is broadcast goes
into Ray's object store once, and from there once to each machine; a lane adds up its
clients, by the code of the local runtime, and returns one sum; sums are merged in the
order of lanes. Which client is in which lane, and the order of additions, are those of
the local runtime with as many lanes, and so are the bits.
"""

import itertools
import logging
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg import checks
from tff_agg.processes import usable_cores
from tff_agg.runtime import errors
from tff_agg.runtime.compile.client_work import ClientForm, SecureSums
from tff_agg.runtime.compile.mapreduce import MapReduceContext
from tff_agg.runtime.compile.values import Value
from tff_agg.runtime.errors import LaneFailure
from tff_agg.runtime.lanes import balancing, facts
from tff_agg.runtime.lanes.data import LaneData, Source
from tff_agg.runtime.lanes.pool import ClientRun, Lane, assign
from tff_agg.runtime.lanes.work import Observer, ingested
from tff_agg.runtime.ray import transport
from tff_agg.runtime.ray.actor import LaneActor, LaneSettings, LaneSum, SharedData
from tff_agg.runtime.ray.session import RaySession

if TYPE_CHECKING:
    import ray

_log = logging.getLogger(__name__)

# So often a lane's process may die. Its work of the round is begun again each time, and
# while Ray finds out that a machine is gone.
_RESTARTS = 20
_LONGEST_REASON = 600


#: What lanes read clients' data from: by identity, the source and its reference.
_Sources: TypeAlias = dict[int, tuple[Source, "ray.ObjectRef"]]
#: A client's data on their way.
_Packed = list[transport.Packed] | SharedData


class Traffic(NamedTuple):
    """What the latest round has sent, in bytes of payload.

    Attributes:
      broadcast: What was put into the object store for all lanes.
      data: Clients' data, by lane; no more than names where lanes read them.
      sums: What came back, by lane.
    """

    broadcast: int
    data: dict[int, int]
    sums: dict[int, int]


class RayContext(MapReduceContext):
    """Runs TFF computations with lanes on a Ray cluster.

    Args:
      address: The cluster, as for `ray.init`, 'auto' or 'host:port'; None starts one on
        this machine, which ends with this process and listens on loopback only.
      lanes: How many; as many as the cluster has room for now, where None. Their number
        decides the last bits of results, so name it where results must be repeated.
      cpus_per_lane: How many CPUs of the cluster a lane takes.
      gpus_per_lane: How many GPUs; lanes share one where it is less than 1.
      gpu_memory_mb: How much memory of a GPU a lane may take, in MB; where None, it
        grows as needed.
      on_client: Called with a `ClientRun` for each client, when its lane has ended.
      show_data_in_errors: As for `LocalContext`.
      object_store_bytes: The size of the object store that is started here; Ray's own
        choice where None.
      worker: As for `LocalContext`.

    Attributes:
      traffic: What the latest round has sent; None before the first.

    Example:
      with tff_agg.runtime.running_on('ray', address='head:6379', lanes=64):
        state = process.initialize()
        state, metrics = process.next(state, datasets)
    """

    #: What computes the same bits, with as many lanes.
    same_bits_as = "LocalContext"

    def __init__(
        self,
        *,
        address: str | None = None,
        lanes: int | None = None,
        cpus_per_lane: float = 1,
        gpus_per_lane: float = 0,
        gpu_memory_mb: float | None = None,
        on_client: Observer | None = None,
        show_data_in_errors: bool = False,
        object_store_bytes: int | None = None,
        worker: bool = True,
    ):
        super().__init__(show_data_in_errors, worker)
        lanes = None if lanes is None else checks.whole("lanes", lanes)
        checks.number("cpus_per_lane", cpus_per_lane, "(0, inf)")
        checks.number("gpus_per_lane", gpus_per_lane, "[0, inf)")
        if gpu_memory_mb is not None:
            checks.number("gpu_memory_mb", gpu_memory_mb, "(0, inf)")
            if not gpus_per_lane:
                raise ValueError(
                    f"gpu_memory_mb={gpu_memory_mb:g} needs gpus_per_lane above 0: "
                    "lanes have no GPU"
                )
        self._on_client = on_client
        self.traffic: Traffic | None = None
        cpus = max(usable_cores(), (lanes or 0) * cpus_per_lane)
        session = RaySession(address, cpus=cpus, object_store_bytes=object_store_bytes)
        self._crew = _Crew(
            session,
            lanes,
            cpus_per_lane,
            gpus_per_lane,
            gpu_memory_mb,
            show_data_in_errors,
        )
        weakref.finalize(self, self._crew.close)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes; those on other processors than this one's say so."""
        return self._crew.lanes()

    @property
    def lane_processes(self) -> tuple[int, ...]:
        """The lanes' process ids, each on its own machine."""
        return tuple(pid for *_, pid in self._crew.places())

    def close(self) -> None:
        """Ends the lanes, and the Ray that was started here."""
        self._crew.close()
        super().close()

    def _lanes_for(self, form: tff.backends.mapreduce.MapReduceForm) -> "_RayLanes":
        return _RayLanes(ClientForm.of(form), self._crew, self)


class _Crew:
    """The actors."""

    def __init__(
        self,
        session: RaySession,
        lanes: int | None,
        cpus: float,
        gpus: float,
        gpu_memory_mb: float | None,
        show_data: bool,
    ):
        import ray

        self._session = session
        self.show_data = show_data
        self.tickets = itertools.count()
        room = ray.cluster_resources()
        fits = int(room.get("CPU", 0) / cpus)
        if gpus:
            fits = min(fits, int(room.get("GPU", 0) / gpus))
        if lanes is None and not fits:
            self.close()
            raise ValueError(
                f"lanes: the cluster has {room.get('CPU', 0):g} CPUs and "
                f"{room.get('GPU', 0):g} GPUs, no room for a lane of {cpus:g} CPUs and "
                f"{gpus:g} GPUs; ask for less, or name the lanes and add machines"
            )
        if lanes is not None and lanes > fits:
            _log.warning(
                "The cluster has room for %d of %d lanes; rounds wait for machines",
                fits,
                lanes,
            )
        settings = LaneSettings(
            facts.lane_facts(),
            inter_op=max(1, round(cpus)),
            show_data=show_data,
            gpu_memory_mb=gpu_memory_mb,
        )
        actor = ray.remote(LaneActor).options(
            num_cpus=cpus,
            num_gpus=gpus,
            max_restarts=_RESTARTS,
            max_task_retries=-1,
            # One at work, and one to be told to stop.
            max_concurrency=2,
        )
        count = fits if lanes is None else lanes
        self.actors = [actor.remote(settings) for _ in range(count)]

    def places(self) -> list[tuple[str, str, int]]:
        asked = [actor.place.remote() for actor in self.actors]
        return [self.get(lane, answer) for lane, answer in enumerate(asked)]

    def lanes(self) -> tuple[Lane, ...]:
        here = facts.processor()
        return tuple(
            Lane(i, device if processor == here else f"{device} on {processor}")
            for i, (device, processor, _) in enumerate(self.places())
        )

    def get(self, lane: int, reference: "ray.ObjectRef") -> Any:
        """Returns what a lane has answered."""
        import ray

        try:
            return ray.get(reference)
        except ray.exceptions.RayError as error:
            # What Ray says of a dead process is about the process. An exception out of
            # a lane's call might be about data.
            may_quote = (
                isinstance(error, ray.exceptions.RayActorError) or self.show_data
            )
            detail = f": {str(error)[-_LONGEST_REASON:]}" if may_quote else ""
            reason = (
                f"lane {lane} cannot be brought up, or has died more than {_RESTARTS} "
                f"times ({type(error).__name__}{detail})"
            )
        raise errors.server_error("work", reason)

    def tell(self, method: str, *arguments: object) -> None:
        """Calls a method of all lanes, without waiting."""
        for actor in self.actors:
            getattr(actor, method).remote(*arguments)

    def forget(self, program: str) -> None:
        import ray

        if self.actors and ray.is_initialized():
            self.tell("forget", program)

    def close(self) -> None:
        import ray

        actors, self.actors = getattr(self, "actors", []), []
        if ray.is_initialized():
            for actor in actors:
                ray.kill(actor)
        self._session.close()


class _RayLanes:
    """The client part of one computation, in the lanes of a cluster."""

    def __init__(self, form: ClientForm, crew: _Crew, context: RayContext):
        import ray

        self._crew = crew
        # Not the context itself: it owns what owns this.
        self._context = weakref.ref(context)
        self.sums = SecureSums(form)
        self.data_type = form.work.type_signature.parameter[0]
        self._program = ray.put(form.to_protos())
        self._sources: _Sources = {}
        weakref.finalize(self, crew.forget, self._program.hex())

    def ingest(self, clients: Sequence[Value]) -> list[_Packed]:
        """Turns clients' data into what can be sent."""
        known, self._sources = self._sources, {}
        return [self._packed(i, client, known) for i, client in enumerate(clients)]

    def work(
        self, clients: Sequence[_Packed], broadcast: Sequence[tf.Tensor]
    ) -> Iterator[list[tf.Tensor]]:
        """Yields the sums of the lanes that had clients, in the order of lanes."""
        import ray

        actors, ticket = self._crew.actors, next(self._crew.tickets)
        costs = balancing.costs_of(len(clients))
        shares = assign(len(clients), len(actors), costs)
        due = [i for i, share in enumerate(shares) if share] or [0]
        arrays = [tensor.numpy() for tensor in broadcast]
        traffic = Traffic(transport.size(arrays), {}, {})
        sent = ray.put(arrays)
        pending = {}
        for lane in due:
            mine = [clients[i] for i in shares[lane]]
            traffic.data[lane] = sum(map(transport.size, mine))
            call = actors[lane].fold.remote(ticket, [self._program], sent, mine)
            pending[call] = lane
        failures: list[LaneFailure] = []
        sums: dict[int, list[tf.Tensor]] = {}
        try:
            while pending:
                (done,), _ = ray.wait(list(pending))
                lane = pending.pop(done)
                answer = self._crew.get(lane, done)
                if isinstance(answer, LaneFailure):
                    self._crew.tell("stop", ticket)
                    position = shares[lane][answer.position]
                    failures.append(LaneFailure(position, answer.details))
                elif answer is not None:
                    traffic.sums[lane] = transport.size(answer.total)
                    sums[lane] = [tf.convert_to_tensor(x) for x in answer.total]
                    self._observe(lane, shares[lane], answer)
                while not failures and due and due[0] in sums:
                    yield sums.pop(due.pop(0))
        except BaseException:
            self._crew.tell("stop", ticket)
            raise
        if failures:
            raise min(failures, key=lambda failure: failure.position)
        if (context := self._context()) is not None:
            context.traffic = traffic

    def _packed(self, position: int, client: Value, known: _Sources) -> _Packed:
        if isinstance(client, LaneData):
            return SharedData([self._reference(client.source, known)], client.key)
        leaves = ingested(position, client, self.data_type, self._crew.show_data)
        try:
            return transport.pack(leaves, self.data_type)
        except tf.errors.OpError as error:
            kind = type(error).__name__
        # A dataset that is read here, and fails.
        details: errors.FailureDetails = {
            "stage": "data",
            "reason": f"its dataset failed with {kind}",
        }
        raise LaneFailure(position, details)

    def _reference(self, source: Source, known: _Sources) -> "ray.ObjectRef":
        """Puts a source into the object store, unless the last round used it."""
        import ray

        key = id(source)
        if key not in self._sources:
            self._sources[key] = known.get(key) or (source, ray.put(source))
        return self._sources[key][1]

    def _observe(self, lane: int, share: Sequence[int], lane_sum: LaneSum) -> None:
        context = self._context()
        if context is None or context._on_client is None:
            return
        for position, seconds in zip(share, lane_sum.seconds, strict=True):
            context._on_client(ClientRun(position, Lane(lane, ""), seconds))
