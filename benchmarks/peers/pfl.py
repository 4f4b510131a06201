"""Times rounds of pfl-research on PyTorch: federated averaging, clipping, noise.

    python -m benchmarks.peers.pfl --task=lstm --users=100 --examples=8 --rounds=5

To be run with the Python of an environment of its own:

    python3.11 -m venv pfl; pfl/bin/pip install torch==2.13.0
    pfl/bin/pip install 'pfl[pytorch]==0.6.0'

The last line printed is JSON: seconds and processor seconds of each round.
"""

import json
import time
from typing import Any

from benchmarks.peers import workload


def net(task: workload.Sentences | workload.Pictures) -> Any:
    """Returns the workload's model, with the loss that pfl asks its models for."""
    import torch
    from torch import nn

    if isinstance(task, workload.Sentences):
        body: Any = _next_word(task)
        ignored = 0
    elif task.convolutions:
        body = nn.Sequential(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(12 * 12 * 64, 128),
            nn.ReLU(),
            nn.Linear(128, task.classes),
        )
        ignored = -100
    else:
        body = nn.Linear(task.shape[0], task.classes)
        ignored = -100

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = body

        def loss(self, inputs, labels, eval=False):
            return torch.nn.functional.cross_entropy(
                self.body(inputs), labels.flatten(), ignore_index=ignored
            )

        def metrics(self, inputs, labels, eval=False):
            return {}

    return Net()


def _next_word(task: workload.Sentences) -> Any:
    """Returns the next-word model: rows of ids in, logits of every place out."""
    from torch import nn

    class NextWord(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(task.ids, task.width, padding_idx=0)
            self.lstm = nn.LSTM(task.width, task.units, batch_first=True)
            self.dense = nn.Linear(task.units, task.width)
            self.output = nn.Linear(task.width, task.ids)

        def forward(self, rows):
            states, _ = self.lstm(self.embedding(rows))
            return self.output(self.dense(states)).flatten(0, 1)

    return NextWord()


def tensors(task: Any, users: int, examples: int) -> list[tuple[Any, Any]]:
    """Returns inputs and labels of each user."""
    import torch

    if isinstance(task, workload.Sentences):
        cohort = workload.sentences(task, users, examples)
        return [(torch.tensor(r[:, :-1]), torch.tensor(r[:, 1:])) for r in cohort]
    pairs = []
    for x, y in workload.pictures(task, users, examples):
        # PyTorch's convolutions have the channels first.
        x = x.transpose(0, 3, 1, 2) if task.convolutions else x
        pairs.append((torch.tensor(x), torch.tensor(y)))
    return pairs


def main() -> None:
    given = workload.arguments()
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism

    task = workload.TASKS[given.task]
    module = net(task)
    users = {
        i: Dataset(pair, user_id=str(i))
        for i, pair in enumerate(tensors(task, given.users, given.examples))
    }
    found: dict[str, list[float]] = {"rounds": [], "cpu": []}

    class Stopwatch(TrainingProcessCallback):
        """Notes what lies between one round's end and the next one's."""

        def _restart(self):
            self.start = time.perf_counter(), time.process_time()

        def on_train_begin(self, *, model):
            self._restart()
            return Metrics()

        def after_central_iteration(
            self, aggregate_metrics, model, *, central_iteration
        ):
            began, before = self.start
            found["rounds"].append(time.perf_counter() - began)
            found["cpu"].append(time.process_time() - before)
            self._restart()
            return False, Metrics()

    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=given.rounds,
            evaluation_frequency=given.rounds + 1,
            train_cohort_size=given.users,
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
        model=PyTorchModel(
            model=module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), 1.0, momentum=0.9),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=workload.CLIENT_RATE,
            local_batch_size=task.batch,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=task.batch),
        callbacks=[Stopwatch()],
    )
    print(json.dumps({"pfl": found}), flush=True)


if __name__ == "__main__":
    main()
