"""The exception of this package."""


class MultigridError(ValueError):
    """Error raised for a mistake that the caller can correct.

    Examples are an invalid argument, a data set that does not return clips, and a loop that does
    not call `Training.begin`. The message says what to change.
    """
