"""The run-time type check under pytest: beartype, with an int welcome where a float is."""

from beartype import BeartypeConf, beartype

__all__ = ["check"]

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
