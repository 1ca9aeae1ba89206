"""Sessions and seq (§7.5, R1 to R5) against a model that remembers every applied seq."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from dsparkctl.contract.codes import FrameStatus
from dsparkctl.contract.records import Hello
from dsparkctl.state.session import Session, judge_frame, judge_hello, opened

OWN = Hello(
    *(1, 1, 5, 128, 5120, 3, (37, 38, 39, 0), 1, 30720, 128799, 129280, 327680, 4, 512, 1, 2, 0),
    *(b"d" * 32, b"m" * 32, b"worker"),
)
IDS = st.sampled_from([1, 2, 0xFFFFFFFF])
SEQS = st.one_of(st.integers(0, 8), st.integers(0, (1 << 64) - 1))


class SessionMachine(RuleBasedStateMachine):
    """One data listener: connections come and go, newest wins; the session outlives them."""

    @initialize()
    def start(self) -> None:
        self.session: Session | None = None
        self.bound = False
        # The model: which session lives, what it applied, and whether this connection said HELLO.
        self.living: int | None = None
        self.applied: set[int] = set()
        self.said_hello = False

    @rule()
    def connect(self) -> None:
        """§7.5: the previous connection is closed; the new one has no session yet (R4)."""
        self.bound = False
        self.said_hello = False

    @rule(session_id=IDS, max_model_len=st.integers(1, OWN.max_model_len))
    def hello(self, session_id: int, max_model_len: int) -> None:
        """§6.2: accepted; a new id drops the old session, the same one keeps its seq (R3)."""
        hello = OWN._replace(max_model_len=max_model_len)
        assert judge_hello(hello, session_id, OWN).status is FrameStatus.OK
        self.session, is_new = opened(self.session, session_id, hello)
        self.bound = True
        assert is_new == (session_id != self.living)
        if session_id != self.living:
            self.living, self.applied = session_id, set()
        self.said_hello = True
        assert self.session.max_model_len == max_model_len

    @rule(
        session_id=IDS,
        hello=st.sampled_from(
            [
                OWN._replace(proto_min=2, proto_max=2),
                OWN._replace(drafter_identity=bytes(32)),
                OWN._replace(window=64),
                OWN._replace(max_slots=5),
            ]
        ),
    )
    def refused_hello(self, session_id: int, hello: Hello) -> None:
        """R5: only an accepted HELLO changes the session; the connection has none after it."""
        assert judge_hello(hello, session_id, OWN).status is not FrameStatus.OK
        self.bound = False
        self.said_hello = False

    @rule(session_id=IDS, seq=SEQS, is_whole=st.booleans())
    def frame(self, session_id: int, seq: int, is_whole: bool) -> None:
        """A STEP or RESET; a MALFORMED one is judged but records nothing (R2)."""
        verdict = judge_frame(self.session, self.bound, session_id, seq)
        if not self.said_hello or session_id != self.living:
            assert verdict.status is FrameStatus.NO_SESSION
        elif seq == 0 or any(seq <= earlier for earlier in self.applied):
            assert verdict.status is FrameStatus.STALE_SEQ
        else:
            assert verdict.status is FrameStatus.OK
            assert self.session is not None
            if is_whole:
                self.session = self.session._replace(last_seq=seq)
                self.applied.add(seq)

    @rule(step=st.integers(1, 3))
    def next_frame(self, step: int) -> None:
        """What a client sends: the next seq, gaps allowed."""
        if self.said_hello and self.living is not None:
            seq = max(self.applied, default=0) + step
            self.frame(session_id=self.living, seq=min(seq, (1 << 64) - 1), is_whole=True)


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(max_examples=80, stateful_step_count=30)
