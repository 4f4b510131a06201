"""The next-word LSTM: training, gradients and scores without work on padding."""
