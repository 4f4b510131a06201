"""One LSTM layer over packed rows, forward and backward, without padding.

What does not depend on the step before is one product over all steps: the input's
projection in front of the time loop, the gradients of both kernels and of the input
behind it. Inside the loop stay the recurrent product and element-wise operations, on
the rows that are still alive. The loop is unrolled: sizes differ from step to step, the
number of steps does not.

All tensors may have a users' axis in front: the weights of each user, and as many rows
alive at a step for all of them. Products are then products for each user.
"""

from typing import NamedTuple

import tensorflow as tf


class Trace(NamedTuple):
    """What the backward pass needs, each over all predictions in packed order.

    The gates are after their activations, in the order of Keras. `cells` are before a
    step, `squashed` is the tanh of the cells after it. `earlier` are the states before
    each step but the first, where they are zero.
    """

    inputs: tf.Tensor
    input_gate: tf.Tensor
    forget_gate: tf.Tensor
    candidate: tf.Tensor
    output_gate: tf.Tensor
    cells: tf.Tensor
    squashed: tf.Tensor
    earlier: tf.Tensor


class Gradients(NamedTuple):
    """Gradients of the layer's inputs and weights."""

    inputs: tf.Tensor
    kernel: tf.Tensor
    recurrent: tf.Tensor
    bias: tf.Tensor


def forward(
    inputs: tf.Tensor,
    sizes: tf.Tensor,
    kernel: tf.Tensor,
    recurrent: tf.Tensor,
    bias: tf.Tensor,
) -> tuple[tf.Tensor, Trace]:
    """Runs the layer.

    Args:
      inputs: float32 [n, width], packed.
      sizes: int32 [steps], rows alive at each step.
      kernel: [width, 4 · units].
      recurrent: [units, 4 · units].
      bias: [4 · units].

    Returns:
      The states [n, units] in packed order, and what `backward` needs.
    """
    alive = tf.unstack(sizes)
    if bias.shape.rank > 1:
        bias = bias[:, None, :]
    drives = tf.split(tf.matmul(inputs, kernel) + bias, sizes, num=len(alive), axis=-2)
    # An empty step: what the first one finds before it.
    state = tf.zeros_like(drives[0][..., : recurrent.shape[-2]])
    cell = state
    states, earlier, columns = [], [state[..., :0, :]], []
    for step, drive in enumerate(drives):
        if step:
            state = state[..., : alive[step], :]
            cell = cell[..., : alive[step], :]
            earlier.append(state)
            drive += tf.matmul(state, recurrent)
        to_input, to_forget, to_candidate, to_output = tf.split(drive, 4, axis=-1)
        input_gate, forget_gate = tf.sigmoid(to_input), tf.sigmoid(to_forget)
        candidate, output_gate = tf.tanh(to_candidate), tf.sigmoid(to_output)
        before, cell = cell, forget_gate * cell + input_gate * candidate
        squashed = tf.tanh(cell)
        state = output_gate * squashed
        states.append(state)
        columns.append(
            (input_gate, forget_gate, candidate, output_gate, before, squashed)
        )
    whole = [tf.concat(parts, -2) for parts in zip(*columns, strict=True)]
    trace = Trace._make([inputs, *whole, tf.concat(earlier, -2)])
    return tf.concat(states, -2), trace


def backward(
    gradient: tf.Tensor,
    sizes: tf.Tensor,
    kernel: tf.Tensor,
    recurrent: tf.Tensor,
    trace: Trace,
) -> Gradients:
    """Returns the gradients, given that of the states [n, units]; for one user."""
    drive = drive_gradients(gradient, sizes, recurrent, trace)
    return Gradients(
        inputs=tf.matmul(drive, kernel, transpose_b=True),
        kernel=tf.matmul(trace.inputs, drive, transpose_a=True),
        recurrent=tf.matmul(trace.earlier, drive[sizes[0] :], transpose_a=True),
        bias=tf.reduce_sum(drive, 0),
    )


def drive_gradients(
    gradient: tf.Tensor, sizes: tf.Tensor, recurrent: tf.Tensor, trace: Trace
) -> tf.Tensor:
    """Returns the gradient of the gates' drives [n, 4 · units], given the states'."""
    alive = tf.unstack(sizes)
    count = len(alive)
    input_gate, forget_gate = trace.input_gate, trace.forget_gate
    candidate, output_gate = trace.candidate, trace.output_gate
    # Derivatives that are known before the loop, over all steps at once: of the cell by
    # the drives of three gates, of the state by the drive of the output gate and by the
    # cell, and of the cell by the cell before.
    slopes = (
        candidate * input_gate * (1.0 - input_gate),
        trace.cells * forget_gate * (1.0 - forget_gate),
        input_gate * (1.0 - candidate * candidate),
        trace.squashed * output_gate * (1.0 - output_gate),
        output_gate * (1.0 - trace.squashed * trace.squashed),
        forget_gate,
    )
    steps = list(
        zip(
            *(
                tf.split(whole, sizes, num=count, axis=-2)
                for whole in (gradient, *slopes)
            ),
            strict=True,
        )
    )
    transposed = _transpose(recurrent)
    outer = [[0, 0]] * (recurrent.shape.rank - 2)
    drives: list[tf.Tensor] = []
    to_state = to_cell = None
    for step in reversed(range(count)):
        state, by_input, by_forget, by_candidate, by_output, by_cell, keep = steps[step]
        if to_state is None:
            cell = state * by_cell
        else:
            # Rows that end here receive nothing from the step behind.
            missing = [*outer, [0, alive[step] - alive[step + 1]], [0, 0]]
            state += tf.pad(to_state, missing)
            cell = state * by_cell + tf.pad(to_cell, missing)
        drive = tf.concat(
            [
                cell * by_input,
                cell * by_forget,
                cell * by_candidate,
                state * by_output,
            ],
            -1,
        )
        drives.append(drive)
        if step:
            to_state, to_cell = tf.matmul(drive, transposed), cell * keep
    return tf.concat(drives[::-1], -2)


def _transpose(matrix: tf.Tensor) -> tf.Tensor:
    """Transposes in memory: thin products with a transposed factor are slow.

    TensorFlow's optimizer would fold a plain transposition back into the products; a
    reshape between them keeps it from doing so.
    """
    rows, columns = matrix.shape[-2:]
    turned = tf.linalg.matrix_transpose(matrix[None])
    return tf.reshape(
        turned, [-1, columns, rows] if matrix.shape.rank > 2 else [columns, rows]
    )
