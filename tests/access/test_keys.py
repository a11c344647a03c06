import copy
import logging
import pickle
import traceback

import pytest

from ciel.access.errors import MalformedKeyError
from ciel.access.keys import (
    Key,
    Role,
    Side,
    bearer_header,
    bearer_role,
    matches,
    proof,
)

CLUSTER = Key(bytes(range(32)))
NONCES = (b"i" * 32, b"a" * 32)


def derived(role: Role) -> Key:
    key = CLUSTER.derive(role)
    assert key is not None
    return key


def test_new_keys_differ() -> None:
    assert Key.new() != Key.new()


def test_keys_with_one_secret_and_two_roles_differ() -> None:
    assert Key(bytes(32), Role.READ) != Key(bytes(32), Role.SUBMIT)


@pytest.mark.parametrize("role", Role)
def test_text_form_reads_back_with_its_role(role: Role) -> None:
    key = derived(role)
    again = Key.from_text(key.text())
    assert again == key
    assert again.role is role


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0" * 63,
        "0" * 65,
        "g" * 64,
        "king-" + "0" * 64,
        "-" + "0" * 64 + " ",
        "0 " * 32,
        "00" * 31 + " 0",
        "é" * 64,
        "read-",
    ],
)
def test_an_invalid_key_is_refused_and_not_repeated_in_the_error(text: str) -> None:
    with pytest.raises(MalformedKeyError) as caught:
        Key.from_text(text)
    assert not text or text not in str(caught.value)


def test_role_keys_differ_from_one_another_and_from_the_cluster_key() -> None:
    assert len({derived(role).text().rpartition("-")[2] for role in Role}) == len(Role)


def test_a_key_that_may_submit_may_call_services() -> None:
    cluster = Key(b"k" * 32)
    submit = cluster.derive(Role.SUBMIT)
    assert submit is not None
    assert submit.derive(Role.SERVICE) == cluster.derive(Role.SERVICE)
    assert [submit.derive(role) for role in (Role.KV, Role.WORKER, Role.READ)] == [None] * 3


def test_role_key_derives_itself_and_no_other() -> None:
    worker = derived(Role.WORKER)
    assert worker.derive(Role.WORKER) == worker
    assert worker.derive(Role.SUBMIT) is None
    assert worker.derive(Role.ADMIN) is None


def test_the_derivation_never_changes() -> None:
    # A change here locks out every process that has a role key.
    assert derived(Role.WORKER).text() == (
        "worker-80dea5e01e7b2c10a45cea44c79192aa5e9dda45c1a4871e00357f05e499ca56"
    )


@pytest.mark.parametrize("role", Role)
def test_a_key_is_redacted_everywhere(role: Role, caplog: pytest.LogCaptureFixture) -> None:
    key = derived(role)
    digits = key.text().rpartition("-")[2]
    try:
        raise ValueError("failed with", key, {"key": key})
    except ValueError:
        shown = traceback.format_exc()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("ciel").info("key %s %r", key, key)
    shown += f"{key} {key!r} {key!s} {[key]} {caplog.text}"
    assert "redacted" in shown
    assert digits not in shown
    assert repr(bytes.fromhex(digits))[2:-1] not in shown


def test_key_is_neither_pickled_nor_copied() -> None:
    for leak in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(TypeError):
            leak(CLUSTER)


def test_a_proof_depends_on_key_role_side_and_both_nonces() -> None:
    worker = derived(Role.WORKER)
    right = proof(worker, Role.WORKER, Side.INITIATOR, *NONCES)
    others = [
        proof(derived(Role.SUBMIT), Role.WORKER, Side.INITIATOR, *NONCES),
        proof(worker, Role.SUBMIT, Side.INITIATOR, *NONCES),
        proof(worker, Role.WORKER, Side.ACCEPTOR, *NONCES),
        proof(worker, Role.WORKER, Side.INITIATOR, b"x" * 32, NONCES[1]),
        proof(worker, Role.WORKER, Side.INITIATOR, NONCES[0], b"x" * 32),
        proof(worker, Role.WORKER, Side.INITIATOR, *reversed(NONCES)),
        b"",
    ]
    assert matches(right, proof(worker, Role.WORKER, Side.INITIATOR, *NONCES))
    assert not any(matches(right, other) for other in others)


def test_moving_bytes_between_fields_changes_the_mac() -> None:
    assert CLUSTER.mac("x", b"ab", b"c") != CLUSTER.mac("x", b"a", b"bc")


@pytest.mark.parametrize("role", Role)
def test_a_bearer_header_proves_the_role_of_its_key(role: Role) -> None:
    assert bearer_role(bearer_header(derived(role)), CLUSTER.derive) is role


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Basic " + CLUSTER.text(),
        CLUSTER.text(),
        "Bearer " + "0" * 64,
        "Bearer worker-" + CLUSTER.text(),
    ],
)
def test_an_invalid_header_proves_no_role(header: str) -> None:
    assert bearer_role(header, CLUSTER.derive) is None


def test_a_role_key_verifies_only_its_own_role() -> None:
    worker = derived(Role.WORKER)
    assert bearer_role(bearer_header(worker), worker.derive) is Role.WORKER
    assert bearer_role(bearer_header(CLUSTER), worker.derive) is None


def test_each_role_permits_the_listed_roles() -> None:
    permitted = {(has, needs) for has in Role for needs in Role if has.permits(needs)}
    assert permitted == {
        *((Role.ADMIN, needs) for needs in Role),
        (Role.SUBMIT, Role.SUBMIT),
        (Role.SUBMIT, Role.READ),
        (Role.WORKER, Role.WORKER),
        (Role.WORKER, Role.READ),
        (Role.STANDBY, Role.STANDBY),
        (Role.STANDBY, Role.READ),
        (Role.MEMORY, Role.MEMORY),
        (Role.MEMORY, Role.READ),
        (Role.KV, Role.KV),
        (Role.SERVICE, Role.SERVICE),
        (Role.READ, Role.READ),
    }
