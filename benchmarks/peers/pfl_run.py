"""Times a whole run of pfl-research: rounds, and its own checkpoint after each.

    python -m benchmarks.peers.pfl_run --clients=clients.npz --folder=run \
        --rounds=200 --cohort=100

To be run with the Python that `benchmarks.peers.pfl` names. `benchmarks.whole_run`
writes the clients: each user's rows, and the sizes of the model. The last line printed
is JSON: the seconds of all rounds but the first.
"""

import argparse
import json
import time

import numpy as np

from benchmarks.peers import pfl, workload


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--cohort", type=int, required=True)
    given = parser.parse_args()
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.restore_training import RestoreTrainingCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism

    content = np.load(given.clients)
    task = workload.Sentences(**json.loads(str(content["sizes"])))
    module = pfl.net(task)
    rows = np.split(content["rows"].astype(np.int64), content["ends"][:-1])
    users = {
        i: Dataset((torch.tensor(r[:, :-1]), torch.tensor(r[:, 1:])), user_id=str(i))
        for i, r in enumerate(rows)
    }
    ends: list[float] = []

    class Stopwatch(TrainingProcessCallback):
        """Notes when a round has ended, its checkpoint included."""

        def after_central_iteration(
            self, aggregate_metrics, model, *, central_iteration
        ):
            ends.append(time.perf_counter())
            return False, Metrics()

    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0, momentum=0.9),
    )
    algorithm = FederatedAveraging()
    algorithm.run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=given.rounds,
            evaluation_frequency=given.rounds + 1,
            train_cohort_size=given.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=FederatedDataset(
                users.__getitem__, get_user_sampler("minimize_reuse", list(users))
            ),
            val_data=None,
            postprocessors=[
                CentrallyAppliedPrivacyMechanism(
                    GaussianMechanism(workload.CLIP_NORM, workload.NOISE_MULTIPLIER)
                )
            ],
        ),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=workload.CLIENT_RATE,
            local_batch_size=task.batch,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=task.batch),
        callbacks=[
            RestoreTrainingCallback([model, algorithm], given.folder),
            Stopwatch(),
        ],
    )
    print(json.dumps({"seconds": ends[-1] - ends[0]}), flush=True)


if __name__ == "__main__":
    main()
