"""The worker's section: one model for `dspark.yaml` and for the worker's command line.

Decides which keys there are, what each may hold, and its default. Refuses to know the file.
"""

from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dsparkctl.config import defaults
from dsparkctl.config.fields import (
    AccountName,
    DataListener,
    FilePath,
    HostName,
    HttpAddress,
    Listener,
    Section,
)
from dsparkctl.contract.endpoint import Endpoint


class WorkerSettings(Section):
    """The worker (`dsparkctl worker serve`)."""

    checkpoint: FilePath = Field(description="the checkpoint's folder")
    receipt: FilePath | None = Field(None, description="its receipt, DSPARK_COPY_DONE (§6.7)")
    identity_from_files: bool = Field(
        False, description="instead of a receipt: hash the checkpoint's own files at start"
    )
    markov: FilePath | None = Field(None, description="markov_top_tokens.json, when there is one")
    hash_cache: FilePath | None = Field(
        None, description="file that keeps hashes; null: dsparkctl/hashes.json in the user's cache"
    )
    rehash: bool = Field(False, description="hash every file anew, whatever the hash cache says")
    markov_cache: bool = Field(True, description="keep bias rows of the tokens in the markov file")
    markov_cache_mb: int = Field(
        4096, ge=1, le=1 << 20, description="bound on the memory of these rows, in MiB"
    )
    allow_any_address: bool = Field(
        False, description="permit listening on every address of the machine (0.0.0.0, ::)"
    )
    listen: DataListener = Field(
        defaults.LISTEN, description="where the engine connects: one client, newest wins (§7.5)"
    )
    admin: tuple[Listener, ...] = Field(
        (defaults.ADMIN,),
        max_length=16,
        description="where probe, stats and reset connect (R37); may also be a link address (R38)",
    )
    metrics: HttpAddress | None = Field(
        None, description="ADDR:PORT on which Prometheus finds the metrics; null: nowhere"
    )
    wait_for_address_s: int = Field(
        0, ge=0, le=31_536_000, description="how long to wait for an address that is not there yet"
    )
    device: str = Field("cpu", pattern=r"^(cpu|cuda:[0-9]{1,3})$", description="cpu or cuda:N")
    dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="of the arithmetic; by itself float32 on cpu, bfloat16 on CUDA"
    )
    kv_quant: Literal["auto", "none", "mxfp8_32", "v4_record_64"] = Field(
        "auto", description="rounding of the window's KV; auto: v4_record_64 where it fits"
    )
    weight_cache_mb: int = Field(
        defaults.WEIGHT_CACHE_MB,
        ge=0,
        le=1 << 24,
        description="MiB for decoded EXL3 weights; what does not fit is decoded at every use",
    )
    backend: Literal["auto", "torch", "exllamav3"] = Field(
        "auto",
        description="of products with EXL3 weights; auto: exllamav3 on CUDA where it passes a test",
    )
    drafter: Literal["torch", "scripted"] = Field(
        "torch", description="torch drafts with the model; scripted is for tests"
    )
    max_slots: int = Field(
        defaults.MAX_SLOTS, ge=1, le=defaults.SLOTS_LIMIT, description="requests at a time (§6.2)"
    )
    max_rows_per_step: int | None = Field(
        None, ge=1, le=0xFFFFFFFF, description="rows of one STEP; null: max_slots x window"
    )
    max_model_len: int = Field(
        defaults.MAX_MODEL_LEN, ge=1, le=0xFFFFFFFF, description="tokens; positions end below it"
    )
    spin_us: int = Field(
        0, ge=0, le=1_000_000, description="how long to poll before sleeping for a message"
    )
    record: FilePath | None = Field(
        None, description="folder of the flight recorder; null: nothing is recorded"
    )
    record_mb: int = Field(64, ge=1, le=1 << 20, description="bound of its ring, in MiB")
    record_rows: bool = Field(False, description="record tap rows too, for a replay")
    log_json: bool = Field(False, description="log one JSON object a line instead of text")

    @model_validator(mode="after")
    def _has_one_identity(self) -> Self:
        if self.receipt is None and not self.identity_from_files:
            raise ValueError("expected a receipt, or identity_from_files: true, got neither")
        if self.receipt is not None and self.identity_from_files:
            raise ValueError("expected either a receipt or identity_from_files: true, got both")
        return self

    @field_validator("listen", "admin", "metrics")
    @classmethod
    def _listens_on_purpose(
        cls, value: Endpoint | tuple[Endpoint, ...] | None, info: ValidationInfo
    ) -> Endpoint | tuple[Endpoint, ...] | None:
        for endpoint in (value,) if isinstance(value, Endpoint) else value or ():
            if endpoint.is_wildcard and not info.data.get("allow_any_address"):
                raise ValueError(
                    f"expected one address, or allow_any_address: true, got {endpoint}"
                )
            taken = info.field_name != "listen" and endpoint == info.data.get("listen")
            if taken and endpoint.port:
                raise ValueError(f"expected another endpoint than listen's, got {endpoint}")
        return value

    @property
    def listeners(self) -> tuple[Endpoint, ...]:
        """Everything that it listens on."""
        return (self.listen, *self.admin, *((self.metrics,) if self.metrics else ()))


class WorkerSection(WorkerSettings):
    """The same in `dspark.yaml`, with what a rollout has to know beside it."""

    host: HostName | None = Field(None, description="the host it runs on, one of hosts")
    user: AccountName = Field("dspark", description="the account it runs under, made for it")
