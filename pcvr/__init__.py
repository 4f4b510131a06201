"""pCVR: predicted conversion after a click, by DP-SGD, on the experiment layer."""
