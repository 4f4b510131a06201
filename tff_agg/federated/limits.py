"""A plan's limits, looked at before a round begins.

The noisy mean refuses a round beyond the plan and a cohort above it inside the
computation, whatever runs it. But it is the last part of a round: by then all clients
have trained in vain. Here the same is asked of the arguments, when they are given.
"""

import tensorflow_federated as tff

from tff_agg.privacy import Plan
from tff_agg.server import state as states


class _WithinPlan(tff.framework.ConcreteComputation):
    """A computation `(state, clients' data) -> …` that looks at a plan first."""

    plan: Plan

    def __call__(self, *args: object, **kwargs: object) -> object:
        parameters = tff.structure.to_elements(self.type_signature.parameter)
        given = dict(zip([name for name, _ in parameters], args, strict=False)) | kwargs
        if len(given) == 2:
            state, clients = (given.get(name) for name, _ in parameters)
            check(self.plan, state, clients)
        return super().__call__(*args, **kwargs)


def within_plan(computation: tff.Computation, plan: Plan) -> tff.Computation:
    """Returns a process's `next` that refuses what the plan does not cover.

    Inside of another TFF computation, where arguments are not known yet, it is
    `computation` as it was.

    Args:
      computation: `next` of a process of `build_dp_ftrl_process`.
      plan: The plan.

    Example:
      within_plan(process.next, plan)(state, [])
    """
    checked = _WithinPlan(
        computation_proto=type(computation).get_proto(computation),
        context_stack=tff.framework.get_context_stack(),
        annotated_type=computation.type_signature,
    )
    checked.plan = plan
    return checked


def check(plan: Plan, state: object, clients: object) -> None:
    """Raises if the plan does not cover another round on a state, or its cohort.

    Args:
      plan: The plan.
      state: The state before the round; not looked at where it is not known yet.
      clients: The clients' data, one for each client.

    Raises:
      ValueError: The run is over, or there are too many clients.

    Example:
      check(plan, process.initialize(), [dataset] * (plan.cohort_size + 1))
      # ValueError: the plan is for at most 4 clients per round; there were 5
    """
    if isinstance(state, tff.learning.templates.LearningAlgorithmState):
        done = int(states.round_of(state))
        if done >= plan.rounds:
            raise ValueError(
                f"the plan ends after {plan.rounds} rounds; the state is after {done}. "
                "Another round would spend more than was planned"
            )
    most = plan.most_users
    if most is not None and isinstance(clients, list | tuple) and len(clients) > most:
        raise ValueError(
            f"the plan is for at most {most} clients per round; there were "
            f"{len(clients)}"
        )
