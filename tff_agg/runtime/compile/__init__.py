"""From a TFF computation to TensorFlow functions of this process."""
