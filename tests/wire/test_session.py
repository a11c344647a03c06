import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.access.keys import Key, Role, Side, proof
from ciel.wire.errors import (
    FrameTooLargeError,
    KeyMismatchError,
    LocalProtocolError,
    RecordTooLargeError,
    RefusedError,
    RemoteProtocolError,
    VersionMismatchError,
    WireError,
)
from ciel.wire.frames import FrameReader, Record, encode_frames
from ciel.wire.limits import HELLO_MAX_BYTES, TEXT_MAX_LENGTH
from ciel.wire.session import HELLO, PROOF, REFUSED, TRANSITIONS, Session, State

CLUSTER = Key(bytes(range(32)))


def initiator(key: Key = CLUSTER, role: Role = Role.WORKER, **options: Any) -> Session:
    return Session.initiator(key, role, **{"software": "1.0", **options})


def acceptor(key: Key = CLUSTER, **options: Any) -> Session:
    return Session.acceptor(key.derive, **{"software": "1.0", "cluster_id": "c1", **options})


def role_key(role: Role, cluster: Key = CLUSTER) -> Key:
    key = cluster.derive(role)
    assert key is not None
    return key


class Cable:
    """Connects two sessions in memory. `cuts` gives the sizes of the pieces in which bytes
    arrive.
    """

    def __init__(self, left: Session, right: Session, cuts: Iterator[int] | None = None) -> None:
        self.ends = (left, right)
        self.got: dict[Session, list[Record]] = {left: [], right: []}
        self.errors: dict[Session, WireError] = {}
        self._cuts = cuts

    def carry(self, end: Session, data: bytes) -> None:
        """Deliver `data` from `end` to the peer session, and deliver its answers back."""
        other = self.ends[end is self.ends[0]]
        while data and other not in self.errors:
            size = next(self._cuts, len(data)) if self._cuts else len(data)
            piece, data = data[:size], data[size:]
            try:
                self.got[other] += other.receive(piece)
            except RemoteProtocolError as error:
                self.errors[other] = error
            self.carry(other, other.data_to_send())

    def shake_hands(self) -> "Cable":
        for end in self.ends:
            self.carry(end, end.data_to_send())
        return self

    def texts(self) -> list[str]:
        return [str(self.errors[end]) for end in self.ends]


def handshake_record(data: bytes) -> list[list[Any]]:
    reader = FrameReader()
    reader.feed(data)
    return [fields for frame in iter(reader.next_frame, None) for fields, _ in frame]


def said(*records: list[Any]) -> bytes:
    return b"".join(encode_frames([(fields, b"")]) for fields in records)


def hello(**changes: Any) -> list[Any]:
    """Return the fields of a hello record, some of them changed."""
    fields = {
        "kind": HELLO,
        "protocol": 1,
        "software": "1.0",
        "role": "worker",
        "cluster_id": "",
        "nonce": "11" * 32,
        "about": {},
    }
    return list((fields | changes).values())


@pytest.mark.parametrize("role", Role)
def test_both_ends_open_and_have_each_others_hello(role: Role) -> None:
    left = initiator(role=role, about={"id": "w1", "slots": 2})
    right = acceptor(about={"epoch": 7})
    Cable(left, right).shake_hands()
    assert left.is_open
    assert right.is_open
    assert left.peer is not None
    assert right.peer is not None
    assert (left.peer.cluster_id, left.peer.about) == ("c1", {"epoch": 7})
    assert (right.peer.role, right.peer.about) == (role, {"id": "w1", "slots": 2})


def test_role_key_is_enough_for_its_role() -> None:
    left, right = initiator(role_key(Role.WORKER)), acceptor()
    Cable(left, right).shake_hands()
    assert left.is_open
    assert right.is_open


cuts = st.lists(st.integers(1, 200), max_size=40).map(iter)
batches = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(st.tuples(st.just(["task", 1, "é"]), st.binary(max_size=50)), min_size=1),
    ),
    max_size=5,
)


@given(cuts, batches)
def test_records_survive_any_cutting_of_the_stream(
    cuts: Iterator[int], batches: list[tuple[bool, list[Record]]]
) -> None:
    left, right = initiator(), acceptor()
    cable = Cable(left, right, cuts).shake_hands()
    for from_left, batch in batches:
        sender = left if from_left else right
        cable.carry(sender, sender.send(batch))
    assert cable.got[right] == [r for from_left, batch in batches if from_left for r in batch]
    assert cable.got[left] == [r for from_left, batch in batches if not from_left for r in batch]


def test_a_stream_may_arrive_one_byte_at_a_time() -> None:
    left, right = initiator(), acceptor()
    cable = Cable(left, right, iter([1] * 5000)).shake_hands()
    cable.carry(left, left.send([(["task"], b"x" * 100)]))
    assert cable.got[right] == [(["task"], b"x" * 100)]


def test_an_initiator_may_send_records_together_with_its_proof() -> None:
    left, right = initiator(), acceptor()
    right.receive(left.data_to_send())
    left.receive(right.data_to_send())
    large = [(["task"], bytes(100_000))]
    assert right.receive(left.send(large)) == large


def test_an_acceptor_may_send_records_as_soon_as_it_has_the_proof() -> None:
    left, right = initiator(), acceptor()
    Cable(left, right).shake_hands()
    assert left.receive(right.send([(["welcome"], b"")])) == [(["welcome"], b"")]


def test_a_wrong_key_is_reported_alike_on_both_sides() -> None:
    cable = Cable(initiator(Key.new()), acceptor()).shake_hands()
    assert isinstance(cable.errors[cable.ends[0]], KeyMismatchError)
    first, second = cable.texts()
    assert first == second
    assert first.startswith("refused: the worker key does not match cluster c1;")
    assert not any(end.is_open or end.peer for end in cable.ends)


def test_a_peer_that_ignores_the_acceptors_proof_is_refused() -> None:
    right = acceptor()
    right.receive(said(hello()))
    right.data_to_send()
    with pytest.raises(KeyMismatchError):
        right.receive(said([PROOF, "00" * 32]))
    assert not right.is_open
    assert handshake_record(right.data_to_send())[0][0] == REFUSED


def test_key_of_another_role_cannot_be_used() -> None:
    with pytest.raises(LocalProtocolError, match="key for submit cannot prove the role worker"):
        initiator(role_key(Role.SUBMIT))


def test_key_of_another_role_in_disguise_does_not_match() -> None:
    disguised = Key(bytes.fromhex(role_key(Role.SUBMIT).text()[-64:]), Role.WORKER)
    cable = Cable(initiator(disguised), acceptor()).shake_hands()
    assert isinstance(cable.errors[cable.ends[0]], KeyMismatchError)


def test_role_that_the_acceptor_has_no_key_for_is_refused() -> None:
    cable = Cable(initiator(role=Role.SUBMIT), acceptor(role_key(Role.WORKER))).shake_hands()
    assert cable.texts() == ["refused: the role submit is not accepted here"] * 2


def test_unknown_role_is_refused() -> None:
    with pytest.raises(RefusedError, match="no role 'king'"):
        acceptor().receive(said(hello(role="king")))


def test_other_cluster_is_refused_by_name() -> None:
    cable = Cable(initiator(cluster_id="c9"), acceptor()).shake_hands()
    text = "refused: the accepting side is cluster c1, the connecting side looks for c9"
    assert cable.texts() == [text] * 2


def test_initiator_refuses_an_acceptor_of_another_cluster() -> None:
    left = initiator(cluster_id="c9")
    with pytest.raises(RefusedError, match="is cluster c1, the connecting side looks for c9"):
        left.receive(said(hello(cluster_id="c1")))


@pytest.mark.parametrize("reflected", ["acceptor's proof", "initiator's own"])
def test_a_proof_that_is_sent_back_is_refused(reflected: str) -> None:
    if reflected == "acceptor's proof":
        right = acceptor()
        right.receive(said(hello()))
        _, mirrored = handshake_record(right.data_to_send())
        with pytest.raises(KeyMismatchError):
            right.receive(said(mirrored))
        return
    left = initiator(nonce=b"n" * 32)
    (mirrored,) = handshake_record(left.data_to_send())
    own = proof(role_key(Role.WORKER), Role.WORKER, Side.INITIATOR, b"n" * 32, b"n" * 32)
    left.receive(said(mirrored))
    with pytest.raises(KeyMismatchError):
        left.receive(said([PROOF, own.hex()]))


def test_a_recorded_handshake_cannot_be_replayed() -> None:
    left, right = initiator(), acceptor()
    record = left.data_to_send()
    right.receive(record)
    left.receive(right.data_to_send())
    record += left.data_to_send()
    with pytest.raises(KeyMismatchError):
        acceptor().receive(record)


def test_proof_for_one_role_does_not_serve_another() -> None:
    # An attacker in the middle changes a reader's hello into a submitter's, and forwards the rest.
    left, right = initiator(role=Role.READ), acceptor()
    (greeting,) = handshake_record(left.data_to_send())
    right.receive(said([*greeting[:3], "submit", *greeting[4:]]))
    answer, evidence = handshake_record(right.data_to_send())
    with pytest.raises(KeyMismatchError):
        left.receive(said([*answer[:3], "read", *answer[4:]], evidence))


def test_an_acceptor_must_answer_in_the_requested_role() -> None:
    with pytest.raises(RemoteProtocolError, match="another role"):
        initiator(role=Role.READ).receive(said(hello(role="submit")))


def test_version_mismatch_names_both_versions_on_both_sides() -> None:
    left, right = initiator(), acceptor(software="2.0")
    (greeting,) = handshake_record(left.data_to_send())
    with pytest.raises(VersionMismatchError) as caught:
        right.receive(said([HELLO, 3, "9.9", "and", ["other", "fields"], greeting]))
    with pytest.raises(RefusedError) as told:
        left.receive(right.data_to_send())
    assert told.value.by_peer
    assert str(caught.value) == str(told.value)
    assert str(caught.value) == (
        "refused: the accepting side speaks protocol 1 (ciel 2.0), the connecting side protocol 3 "
        "(ciel 9.9); install the same version on both"
    )


def test_an_initiator_also_refuses_another_version() -> None:
    with pytest.raises(VersionMismatchError, match=r"accepting side speaks protocol 2 \(ciel x\)"):
        initiator().receive(said([HELLO, 2, "x"]))


@pytest.mark.parametrize(
    "fields",
    [
        [HELLO],
        [HELLO, 1],
        [HELLO, "1", "x"],
        [HELLO, 1, None],
        hello()[:-1],
        [*hello(), 1],
        hello(software="x" * 129),
        hello(cluster_id="x" * 129),
        hello(cluster_id=None),
        hello(nonce="11" * 31),
        hello(nonce="zz" * 32),
        hello(nonce="1 " * 32),
        hello(nonce=11),
        hello(about=[]),
        hello(about=None),
        hello(role=["worker"]),
    ],
)
def test_malformed_hello_is_refused(fields: list[Any]) -> None:
    right = acceptor()
    with pytest.raises(RemoteProtocolError, match="malformed hello"):
        right.receive(said(fields))
    assert handshake_record(right.data_to_send()) == [[REFUSED, "malformed hello"]]


@pytest.mark.parametrize(
    "fields",
    [[PROOF], [PROOF, 1], [PROOF, ""], [PROOF, "zz" * 32], [PROOF, "00" * 31], [PROOF, "00", "00"]],
)
def test_malformed_proof_is_refused(fields: list[Any]) -> None:
    right = acceptor()
    right.receive(said(hello()))
    with pytest.raises(RemoteProtocolError, match="malformed proof"):
        right.receive(said(fields))


@pytest.mark.parametrize(
    "data",
    [
        said([PROOF, "00" * 32]),
        said(["task"]),
        said(hello(), hello()),
        said(hello(), ["task"]),
        encode_frames([(hello(), b""), (["task"], b"")]),
        encode_frames([(hello(), b"payload")]),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0\0\0\x05\0\0\0\x05[[[[[",
    ],
)
def test_only_the_handshake_is_accepted_before_it_is_complete(data: bytes) -> None:
    right = acceptor()
    with pytest.raises(RemoteProtocolError):
        right.receive(data)
    assert not right.is_open
    with pytest.raises(LocalProtocolError):
        right.receive(said(hello()))


@given(st.binary(max_size=300))
def test_random_bytes_only_fail_the_session(data: bytes) -> None:
    for stream in (data, b"\0\0" + data, said(hello()) + data):
        right = acceptor()
        try:
            assert right.receive(stream) == []
        except RemoteProtocolError:
            pass
        assert not right.is_open


def test_an_unauthenticated_peer_cannot_announce_more_than_the_limit() -> None:
    right = acceptor()
    with pytest.raises(FrameTooLargeError) as caught:
        right.receive(struct.pack(">II", HELLO_MAX_BYTES - 7, 2))
    assert caught.value.limit_bytes == HELLO_MAX_BYTES


def test_the_limit_counts_all_bytes_of_an_unauthenticated_peer() -> None:
    right = acceptor()
    greeting = said(hello(about={"x": "x" * 3000}))
    right.receive(greeting)
    with pytest.raises(FrameTooLargeError) as caught:
        right.receive(struct.pack(">II", 2000, 2))
    assert caught.value.limit_bytes == HELLO_MAX_BYTES - len(greeting)


def test_largest_hello_that_may_be_sent_is_accepted_by_both_sides() -> None:
    def longest(make: Any) -> Session:
        for size in range(HELLO_MAX_BYTES, 0, -1):
            try:
                session: Session = make(about={"x": "x" * size})
            except RecordTooLargeError:
                continue
            return session
        raise AssertionError

    left, right = longest(initiator), longest(acceptor)
    Cable(left, right).shake_hands()
    assert left.is_open
    assert right.is_open


def test_a_flood_of_hellos_is_answered_once() -> None:
    right = acceptor()
    with pytest.raises(RemoteProtocolError, match="expected the peer's proof"):
        right.receive(said(*[hello()] * 1000))
    kinds = [fields[0] for fields in handshake_record(right.data_to_send())]
    assert kinds == [HELLO, PROOF, REFUSED]


def test_no_record_can_be_sent_before_the_session_is_open() -> None:
    for session in (initiator(), acceptor()):
        with pytest.raises(LocalProtocolError, match="waiting for the peer's hello"):
            session.send([(["task"], b"")])


def test_no_record_can_be_sent_or_received_after_a_failure() -> None:
    cable = Cable(initiator(Key.new()), acceptor()).shake_hands()
    for end in cable.ends:
        with pytest.raises(LocalProtocolError):
            end.send([(["task"], b"")])
        with pytest.raises(LocalProtocolError):
            end.receive(b"")


def test_a_fault_in_an_open_session_ends_it_and_is_reported() -> None:
    left, right = initiator(), acceptor()
    cable = Cable(left, right).shake_hands()
    with pytest.raises(RemoteProtocolError, match="not a frame"):
        right.receive(b"what?")
    cable.carry(right, right.data_to_send())
    assert str(cable.errors[left]).startswith("refused: not a frame")


def test_caller_may_refuse_for_its_own_reason() -> None:
    left, right = initiator(), acceptor()
    cable = Cable(left, right).shake_hands()
    error = right.refuse("worker w1 is already here")
    assert not error.by_peer
    cable.carry(right, right.data_to_send())
    assert str(cable.errors[left]) == str(error) == "refused: worker w1 is already here"


@pytest.mark.parametrize("fields", [[REFUSED], [REFUSED, ["x"]], [REFUSED, "a\nb\x1b[2J" * 250]])
def test_the_reason_of_a_peer_is_made_safe_to_show(fields: list[Any]) -> None:
    with pytest.raises(RefusedError) as caught:
        initiator().receive(said(fields))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= TEXT_MAX_LENGTH


def test_refusal_is_not_answered() -> None:
    right = acceptor()
    with pytest.raises(RefusedError):
        right.receive(said([REFUSED, "no"]))
    assert right.data_to_send() == b""


def test_the_stream_may_end_only_between_frames_of_an_open_session() -> None:
    left, right = initiator(), acceptor()
    with pytest.raises(RemoteProtocolError, match="awaited the peer's hello"):
        acceptor().receive_eof()
    Cable(left, right).shake_hands()
    right.receive_eof()
    right.receive(left.send([(["task"], b"payload")])[:-1])
    with pytest.raises(RemoteProtocolError, match="awaited the rest of a frame"):
        right.receive_eof()


def test_transitions_cover_all_states_and_lead_forward_only() -> None:
    order = list(State)
    assert set(TRANSITIONS) == set(order)
    for state, moves in TRANSITIONS.items():
        assert all(order.index(target) > order.index(state) for target in moves.values())


def all_of(session: Session) -> dict[str, Any]:
    return {name: getattr(session, name) for name in dir(session) if not name.startswith("__")}


def test_no_key_appears_in_sent_bytes_or_errors() -> None:
    stream: list[bytes] = []

    def wrong_and_right() -> Iterator[Sequence[Session]]:
        yield initiator(), acceptor()
        yield initiator(role_key(Role.WORKER)), acceptor()
        yield initiator(Key.new()), acceptor()

    for left, right in wrong_and_right():
        for _ in range(2):
            for sender, taker in ((left, right), (right, left)):
                data = sender.data_to_send()
                stream.append(data)
                try:
                    taker.receive(data)
                except WireError as error:
                    stream.append(repr(error).encode())
        stream.append(repr((all_of(left), all_of(right))).encode())
    everything = b"".join(stream)
    for key in (CLUSTER, role_key(Role.WORKER)):
        digits = key.text()[-64:]
        assert digits.encode() not in everything
        assert bytes.fromhex(digits) not in everything
        assert repr(bytes.fromhex(digits)).encode() not in everything
