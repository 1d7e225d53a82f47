"""The model zoo: one folder per model, written by `python -m models.generate`."""
