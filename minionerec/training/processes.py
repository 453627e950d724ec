"""The processes of a distributed launch, for code that runs before a trainer exists."""

from contextlib import AbstractContextManager


def main_process_first() -> AbstractContextManager[None]:
    """A block that the first process goes through while the others wait for it.

    It joins the processes into a group, which the trainer then finds ready.
    """
    from accelerate import PartialState

    return PartialState().main_process_first()
