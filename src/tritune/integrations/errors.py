"""What the integrations raise."""

from __future__ import annotations

from tritune.errors import TrituneError


class IntegrationError(TrituneError):
    """tritune cannot be used with another library; the message says why and what to do."""


class TrainingError(IntegrationError):
    """A model in training mode calls what is for inference only."""
