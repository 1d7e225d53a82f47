"""What a run tells while it goes on: when things happened (tracer.py), how fast and how well it learns (metrics.py),
and whom it is told to: a run folder (folder.py), TensorBoard, Prometheus, Weights & Biases.

Everything here listens to events of solver and scheduler. Nothing here waits for the network, or makes others wait.
"""
