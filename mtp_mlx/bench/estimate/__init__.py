"""What a pair would do on this machine, before it is downloaded: its real shapes with random weights, part by part."""

from mtp_mlx.bench.estimate.predict import Estimate, estimate

__all__ = ["Estimate", "estimate"]
