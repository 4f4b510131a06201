"""The DP-FTRL process: client work, aggregation, the server's step and its average."""
