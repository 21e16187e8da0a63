"""What every loader raises when the data is at fault."""


class DataError(ValueError):
    """Data that is missing, broken or not what its name promises; the message names it and the fix."""
