"""Errors that a user can act on. The command line prints their message and exits with 2."""


class OmniDraftError(Exception):
    """Base class. The message says what was wrong and what to do."""


class OptionError(OmniDraftError, ValueError):
    """An option is of another type or out of its range; the message names it."""


class ContextOverflowError(OmniDraftError):
    """A prompt or a generation does not fit the model's context."""


class ModelInUseError(OmniDraftError):
    """A model is in the middle of another answer."""


class CancelledError(OmniDraftError):
    """An answer was cancelled while it waited for its turn."""


class ModelNotFoundError(OmniDraftError):
    """No model has that name or path, or it cannot be fetched here."""


class DamagedFileError(OmniDraftError):
    """A file is truncated, of another format, or fails its checksum."""


class MissingDependencyError(OmniDraftError):
    """An optional package is needed; the message names the extra to install."""
