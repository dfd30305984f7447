"""Making a draft for a target: data, training, measuring."""
