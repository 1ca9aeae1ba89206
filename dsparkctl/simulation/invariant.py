"""What an invariant is, and how it is said to be broken."""


class InvariantBroken(Exception):  # noqa: N818 -- it is what was found
    """An invariant that does not hold; `name` says which."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail


def require(holds: bool, name: str, detail: object = "") -> None:
    if not holds:
        raise InvariantBroken(name, str(detail))
