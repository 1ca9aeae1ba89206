"""What the collector sends, as values; a host is believed no more than any other peer.

Decides which answers are bearable. Refuses to judge them.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(max_length=400)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Version = tuple[Count, Count, Count]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Memory(_Part):
    total_bytes: Count
    available_bytes: Count


class Unit(_Part):
    """The worker's unit, where systemd knows it."""

    active: Text
    pid: Count | None
    memlock_bytes: Count | None
    """None: no limit."""
    memory_bytes: Count
    """What it uses now."""


class Interpreter(_Part):
    version: Version
    has_venv: bool
    has_pip: bool


class Installed(_Part):
    version: Text
    contract: Text


class Gpu(_Part):
    index: Count
    name: Text
    driver: Text
    compute: Text
    """Capability, as in `8.6`."""
    total_bytes: Count | None
    """None: it has none of its own."""
    free_bytes: Count | None


class Gpus(_Part):
    list: tuple[Gpu, ...]
    error: Text | None
    is_missing: bool
    """Whether there is no nvidia-smi."""


class Disk(_Part):
    at: str
    """The nearest folder above the path that is there."""
    free_bytes: Count
    is_read_only: bool


class ReceiptFile(_Part):
    content: str | None
    """base64."""
    error: Text | None


class Folder(_Part):
    sizes: dict[str, Count | None]
    error: Text | None


class Holder(_Part):
    """A listener."""

    address: Text
    port: Count
    pid: Count | None
    command: Text | None
    unit: Text | None


class Interface(_Part):
    name: Text
    mtu: Count
    is_up: bool
    """Switched on, with a carrier."""
    speed_mbit: Count | None
    addresses: tuple[Text, ...]


class Route(_Part):
    interface: Text | None
    gateway: Text | None
    error: Text | None = None


class Ping(_Part):
    whole_ok: bool
    small_ok: bool
    is_missing: bool
    said: Text


class Gid(_Part):
    index: Count
    address: Text
    kind: Text
    interface: Text


class RdmaPort(_Part):
    device: Text
    port: Count
    state: Text
    rate: Text
    gids: tuple[Gid, ...]


class Libfabric(_Part):
    version: Text | None
    """None: it cannot be loaded."""
    providers: tuple[Text, ...] | None
    """Those that offer connections; None: nothing there lists them."""
    has_headers: bool
    has_compiler: bool


class Seen(_Part):
    """One host. A part is None when it was not asked for, or could not be found out (`errors`)."""

    clock_s: float
    python: Version
    is_root: bool
    errors: dict[str, Text] = {}
    memory: Memory | None = None
    memlock_bytes: Count | None = None
    unit: Unit | None = None
    interpreters: dict[str, Interpreter | None] | None = None
    installed: dict[str, Installed | None] | None = None
    gpus: Gpus | None = None
    gpu_driver: Text | None = None
    disks: dict[str, Disk] | None = None
    receipt: ReceiptFile | None = None
    checkpoint: Folder | None = None
    ports: tuple[Holder, ...] | None = None
    free_ports: dict[str, Count] | None = None
    interfaces: tuple[Interface, ...] | None = None
    routes: dict[str, Route] | None = None
    pings: dict[str, Ping] | None = None
    rdma: tuple[RdmaPort, ...] | None = None
    libfabric: Libfabric | None = None

    def interface_of(self, address: str) -> Interface | None:
        """The interface that has the address."""
        return next((one for one in self.interfaces or () if address in one.addresses), None)


class Login(_Part):
    """What came of talking to a host at all."""

    echoed: str
    """What stood before the word that was asked for; empty when nothing did."""
    sudo_error: str | None
    """Why there is no root; None where there is."""
    offset_s: tuple[float, float] | None
    """Between what the host's clock is ahead of this machine's, at least and at most."""


class Round(_Part):
    """Messages of one size."""

    n_bytes: Count
    us: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] = Field(max_length=1000)


class Transfer(_Part):
    """What was measured over one link, from the Spark to the worker's host."""

    rtt_us: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] = Field(max_length=1000)
    rounds: tuple[Round, ...] = Field(max_length=16)
    error: Text | None = None
