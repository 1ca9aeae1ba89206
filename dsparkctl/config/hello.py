"""The HELLO parameters (§6.2) as one checked model, under the contract's own field names.

Decides the defaults and what a client could send at all; the worker alone decides what it accepts.
Refuses to know how the bytes lie: that is `dsparkctl.contract`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Protocol, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from dsparkctl import __version__
from dsparkctl.config import defaults
from dsparkctl.contract.codes import PayloadKind, SampleMode
from dsparkctl.contract.identity import NO_MARKOV
from dsparkctl.contract.receipt import parse_digest
from dsparkctl.contract.records import Hello

MAX_TAPS: Final = 4
CLIENT_NAME_BYTES: Final = 48
_BF16_BYTES: Final = 2

U32 = Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
Count = Annotated[int, Field(ge=1, le=0xFFFFFFFF)]
Identity = Annotated[str, AfterValidator(parse_digest)]


class DrafterShape(Protocol):
    """What HELLO needs to know of a checkpoint's configuration (its `ModelConfig`)."""

    @property
    def num_spec(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def tap_layer_ids(self) -> Sequence[int]: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def noise_token_id(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


def _client_name(text: str) -> str:
    if not text.isascii() or not text.isprintable() or len(text) > CLIENT_NAME_BYTES:
        raise ValueError(f"expected at most {CLIENT_NAME_BYTES} printable ASCII characters")
    return text


class HelloParams(BaseModel):
    """§6.2, field by field. Frozen; integers are integers, identities 64 hex digits."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    proto_min: Count = 1
    proto_max: Count = 1
    num_spec: Annotated[int, Field(ge=1, le=0xFFFF)]
    window: Annotated[int, Field(ge=1, le=0xFFFF)]
    hidden: Count
    n_taps: Annotated[int, Field(ge=1, le=MAX_TAPS)]
    tap_layer_ids: tuple[U32, U32, U32, U32]
    payload_kind: U32 = PayloadKind.TAPS_BF16.value
    row_bytes: Count
    noise_token_id: U32
    vocab_size: Count
    max_model_len: Count = defaults.MAX_MODEL_LEN
    max_slots: Annotated[int, Field(ge=1, le=defaults.SLOTS_LIMIT)] = defaults.MAX_SLOTS
    max_rows_per_step: Count
    sample_mode: U32 = SampleMode.GREEDY.value
    tp_size: Count = defaults.TP_SIZE
    reserved: U32 = 0
    drafter_identity: Identity
    markov_identity: Identity = NO_MARKOV.hex()
    client_name: Annotated[str, AfterValidator(_client_name)] = f"dsparkctl {__version__}"

    @model_validator(mode="before")
    @classmethod
    def _every_window_in_one_step(cls, data: Any) -> Any:
        """max_rows_per_step, where it is not given, follows from slots and window (§6.2)."""
        if not isinstance(data, dict) or data.get("max_rows_per_step") is not None:
            return data
        slots, window = data.get("max_slots", defaults.MAX_SLOTS), data.get("window")
        if type(slots) is not int or type(window) is not int:
            return data
        return {**data, "max_rows_per_step": defaults.max_rows_per_step(slots, window)}

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.proto_min > self.proto_max:
            raise ValueError("proto_min: expected at most proto_max")
        taps = self.n_taps if self.payload_kind == PayloadKind.TAPS_BF16 else 1
        if self.row_bytes != taps * self.hidden * _BF16_BYTES:
            raise ValueError(f"row_bytes: expected {taps} x {self.hidden} bf16 values")
        if self.noise_token_id >= self.vocab_size:
            raise ValueError("noise_token_id: expected an id below vocab_size")
        return self

    @classmethod
    def from_checkpoint(
        cls,
        shape: DrafterShape,
        *,
        drafter_identity: bytes,
        markov_identity: bytes = NO_MARKOV,
        **given: Any,
    ) -> Self:
        """What a client of this checkpoint sends; `given` overrides any field by its name.

        pydantic.ValidationError when the configuration or a given value cannot go into a HELLO.
        """
        taps = tuple(shape.tap_layer_ids)
        derived = {
            "num_spec": shape.num_spec,
            "window": shape.window,
            "hidden": shape.hidden,
            "n_taps": len(taps),
            "tap_layer_ids": taps + (0,) * (MAX_TAPS - len(taps)),
            "row_bytes": shape.row_bytes,
            "noise_token_id": shape.noise_token_id,
            "vocab_size": shape.vocab_size,
            "drafter_identity": drafter_identity.hex(),
            "markov_identity": markov_identity.hex(),
        }
        return cls.model_validate({**derived, **given})

    def record(self) -> Hello:
        """The record that goes on the wire."""
        fields = self.model_dump()
        for name in ("drafter_identity", "markov_identity"):
            fields[name] = bytes.fromhex(fields[name])
        fields["client_name"] = self.client_name.encode("ascii")
        return Hello(**fields)
