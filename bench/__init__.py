"""Measurements. Every figure stands beside a limit or a peer that was measured in the same run."""
