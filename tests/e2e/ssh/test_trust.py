"""Who is let in and who is believed, on a real sshd (issue 5, part 3)."""

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsparkctl.rollout.host import HostError, HostKeyError, SshError
from dsparkctl.rollout.ssh.config import route_to
from dsparkctl.rollout.ssh.known_hosts import Trust, fingerprint, known_keys
from tests.e2e.ssh.conftest import Opener
from tests.sshd import Sshd, make_key, running_sshd


def config(sshd: Sshd, path: Path, text: str) -> Path:
    """A client's configuration that leads to the server, with `text` in front."""
    path.write_text(
        f"{text}\nHost *\n  HostName 127.0.0.1\n  Port {sshd.port}\n"
        f"  IdentityFile {sshd.identity}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {sshd.known_hosts}\n  GlobalKnownHostsFile none\n"
    )
    return path


def own_fingerprint(sshd: Sshd) -> str:
    text = subprocess.run(
        ["ssh-keygen", "-lf", str(sshd.folder / "host_ed25519.pub")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return text.split()[1]


# --- the host's key -------------------------------------------------------------------------------


def test_an_unknown_key_is_refused_with_its_fingerprint(
    opened: Opener, sshd: Sshd, tmp_path: Path
) -> None:
    empty = tmp_path / "known"
    file = config(sshd, tmp_path / "c", f"Host box\n  UserKnownHostsFile {empty}")
    with pytest.raises(HostKeyError, match=r"nobody knows its key SHA256:") as caught:
        opened(file=file).run(("true",))
    assert own_fingerprint(sshd) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not empty.exists()


def test_accept_new_writes_an_unknown_key_down_once(
    opened: Opener, sshd: Sshd, tmp_path: Path
) -> None:
    known = tmp_path / "sub" / "known"
    file = config(sshd, tmp_path / "c", f"Host box\n  UserKnownHostsFile {known}")
    for _ in range(2):
        assert opened(file=file, trust=Trust.ACCEPT_NEW).run(("true",)).code == 0
    assert known.read_text() == f"[127.0.0.1]:{sshd.port} {sshd.host_key()}\n"


@pytest.mark.parametrize("trust", list(Trust))
def test_a_changed_key_is_refused_by_every_kind_of_trust(
    opened: Opener, sshd: Sshd, tmp_path: Path, trust: Trust
) -> None:
    other = make_key(tmp_path / "other")
    known = tmp_path / "known"
    line = f"[127.0.0.1]:{sshd.port} {' '.join(Path(f'{other}.pub').read_text().split()[:2])}\n"
    known.write_text("# a comment\n" + line)
    file = config(sshd, tmp_path / "c", f"Host box\n  UserKnownHostsFile {known}")
    with pytest.raises(HostKeyError, match=rf"{known}:2 knows SHA256:") as caught:
        opened(file=file, trust=trust).run(("true",))
    assert own_fingerprint(sshd) in str(caught.value)
    assert known.read_text() == "# a comment\n" + line


def test_a_pinned_fingerprint_decides_alone(opened: Opener, sshd: Sshd, tmp_path: Path) -> None:
    file = config(sshd, tmp_path / "c", f"Host box\n  UserKnownHostsFile {tmp_path / 'none'}")
    assert opened(file=file, pinned=own_fingerprint(sshd)).run(("true",)).code == 0
    wrong = "SHA256:" + "A" * 43
    with pytest.raises(HostKeyError, match=f"dspark.yaml pins {wrong}"):
        opened(pinned=wrong).run(("true",))


def test_hashed_names_aliases_negations_and_revoked_keys_are_understood(
    sshd: Sshd, tmp_path: Path
) -> None:
    known = tmp_path / "known"
    known.write_text(f"box.example,[10.0.0.1]:2222 {sshd.host_key()}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    with known.open("a") as file:
        file.write(f"*.lan,!bad.lan {sshd.host_key()}\n@revoked old {sshd.host_key()}\n")
        file.write(f"@cert-authority *.lan {sshd.host_key()}\nbroken line\n\n")
    for name, n in (
        ("box.example", 1), ("[10.0.0.1]:2222", 1), ("10.0.0.1", 0), ("x.lan", 1), ("X.LAN", 1),
        ("bad.lan", 0), ("old", 1), ("other", 0),
    ):  # fmt: skip
        assert len(known_keys(name, [known])) == n, name
    (revoked,) = known_keys("old", [known])
    assert revoked.is_revoked
    assert fingerprint(revoked.key) == own_fingerprint(sshd)


def test_ten_thousand_known_hosts_cost_no_time(sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_text("".join(f"host-{n} {sshd.host_key()}\n" for n in range(10_000)))
    started_s = time.thread_time()
    assert len(known_keys("host-9999", [known, tmp_path / "missing"])) == 1
    assert time.thread_time() - started_s < 1


# --- the configuration ----------------------------------------------------------------------------


def test_include_match_and_aliases_are_what_ssh_makes_of_them(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "included").write_text("Host inner\n  User included\n")
    file = config(
        sshd,
        tmp_path / "c",
        f"Include {tmp_path / 'included'}\n"
        "Match exec false\n  User never\n"
        "Match originalhost inner\n  HostKeyAlias the-alias\n"
        "Host many\n  HostName 10.9.8.7\n  Port 99\n  IdentityAgent none\n",
    )
    inner, many = route_to("inner", file=file), route_to("many", file=file)
    assert (inner.user, inner.known_as, inner.address) == ("included", "the-alias", "127.0.0.1")
    assert (many.address, many.port, many.known_as) == ("10.9.8.7", 99, "[10.9.8.7]:99")
    assert (many.agent, many.identities_only) == (None, True)
    assert route_to("many", user="me", port=22, file=file).known_as == "10.9.8.7"


def test_a_configuration_that_ssh_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("Host *\n  NoSuchOption yes\n")
    with pytest.raises(SshError, match=r"^box: ssh -G refuses it: .+") as caught:
        route_to("box", file=tmp_path / "c")
    assert "\n" not in str(caught.value)


def test_without_an_ssh_paramiko_reads_what_it_can_and_says_so(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    route = route_to("box", file=sshd.config)
    assert (route.address, route.port, route.is_partial) == ("127.0.0.1", sshd.port, True)
    with pytest.raises(SshError, match="needs OpenSSH's ssh"):
        route_to("box", jump="other", file=sshd.config)


def test_a_jump_is_taken_and_every_hops_key_is_looked_at(
    opened: Opener, sshd: Sshd, tmp_path: Path
) -> None:
    with running_sshd(tmp_path / "second", "AllowTcpForwarding yes") as second:
        keys = (sshd.folder / "authorized_keys").read_text()
        (second.folder / "authorized_keys").write_text(keys)
        text = f"Host far\n  ProxyJump gate\nHost gate\n  Port {second.port}\n"
        file = config(sshd, tmp_path / "c", text)
        with pytest.raises(HostKeyError, match=rf"127.0.0.1\]:{second.port}: nobody knows"):
            opened("far", file=file).run(("true",))
        with sshd.known_hosts.open("a") as known:
            known.write(second.known_hosts.read_text())
        far = opened("far", file=file)
        assert [hop.target for hop in far.route.hops] == ["gate"]
        assert far.run(("echo", "there")).text == "there"
        assert len(second.children()) == 1
        far.close()


def test_a_proxy_command_carries_the_connection(opened: Opener, sshd: Sshd, tmp_path: Path) -> None:
    script = tmp_path / "carry.py"
    script.write_text(
        "import socket,sys,threading,os\n"
        "s=socket.create_connection((sys.argv[1],int(sys.argv[2])))\n"
        "def up():\n while d:=os.read(0,65536): s.sendall(d)\n s.shutdown(1)\n"
        "threading.Thread(target=up,daemon=True).start()\nwhile d:=s.recv(65536): os.write(1,d)\n"
    )
    file = config(sshd, tmp_path / "c", f"Host box\n  ProxyCommand python3 {script} %h %p\n")
    assert opened(file=file).run(("echo", "carried")).text == "carried"


# --- logging in -----------------------------------------------------------------------------------


@contextmanager
def agent(folder: Path, *keys: Path) -> Iterator[str]:
    path = str(folder / "agent")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        while not Path(path).exists():
            time.sleep(0.02)
        for key in keys:
            subprocess.run(
                ["ssh-add", "-q", str(key)], env={**os.environ, "SSH_AUTH_SOCK": path}, check=True
            )
        yield path
    finally:
        process.kill()
        process.wait()


def test_an_agent_with_too_many_keys_does_not_lock_us_out(
    opened: Opener, sshd: Sshd, tmp_path: Path
) -> None:
    """A server cuts at six attempts: with IdentitiesOnly the agent's others are never offered."""
    others = [make_key(tmp_path / f"key{n}") for n in range(9)]
    with agent(tmp_path, *others) as path:
        assert opened(file=config(sshd, tmp_path / "c", f"IdentityAgent {path}")).run(("true",))
        file = config(sshd, tmp_path / "d", f"IdentityAgent {path}\nIdentitiesOnly no")
        assert opened(file=file).run(("true",)).code == 0
        text = f"IdentityAgent {path}\nIdentitiesOnly no\nHost no\n  IdentityFile {tmp_path}/none"
        (tmp_path / "e").write_text(
            f"{text}\nHost *\n  HostName 127.0.0.1\n  Port {sshd.port}\n"
            f"  UserKnownHostsFile {sshd.known_hosts}\n"
        )
        with pytest.raises(SshError, match="a server cuts at six"):
            opened("no", file=tmp_path / "e").run(("true",))


def test_a_key_that_only_the_agent_can_use_is_used(
    opened: Opener, sshd: Sshd, tmp_path: Path
) -> None:
    with agent(tmp_path, sshd.identity) as path:
        public = tmp_path / "named.pub"
        public.write_text((sshd.folder / "id_ed25519.pub").read_text())
        text = f"IdentityAgent {path}\nIdentitiesOnly yes\nIdentityFile {tmp_path / 'named'}\n"
        (tmp_path / "c").write_text(
            f"{text}Host *\n  HostName 127.0.0.1\n  Port {sshd.port}\n"
            f"  UserKnownHostsFile {sshd.known_hosts}\n"
        )
        assert opened(file=tmp_path / "c").run(("true",)).code == 0


def test_a_key_that_is_not_let_in_and_one_that_is_encrypted_are_named(
    opened: Opener, sshd: Sshd, tmp_path: Path
) -> None:
    wrong, secret = make_key(tmp_path / "wrong"), make_key(tmp_path / "secret", passphrase="12345")
    (tmp_path / "c").write_text(
        f"Host *\n  HostName 127.0.0.1\n  Port {sshd.port}\n  IdentitiesOnly yes\n  User root\n"
        f"  IdentityFile {wrong}\n  IdentityFile {secret}\n  IdentityAgent none\n"
        f"  UserKnownHostsFile {sshd.known_hosts}\n"
    )
    with pytest.raises(SshError) as caught:
        opened(file=tmp_path / "c").run(("true",))
    said = f"box: root is not let in: tried {wrong}; {secret} is encrypted: ssh-add it"
    assert str(caught.value) == said


# --- hosts that are not there ---------------------------------------------------------------------


def test_a_refused_connection_and_an_unknown_name_are_one_line_each(tmp_path: Path) -> None:
    from dsparkctl.rollout.ssh.machine import SshHost

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "c").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {port}\nHost gone\n  HostName no.such.invalid\n"
    )
    for name, words in (
        ("box", rf"^box: no connection to 127.0.0.1 port {port}: Connection refused$"),
        ("gone", r"^gone: no connection to no.such.invalid port 22: .+"),
    ):
        host = SshHost(name, route_to(name, file=tmp_path / "c"), ask_password=str)
        with pytest.raises(SshError, match=words):
            host.run(("true",))


def test_a_host_that_accepts_and_says_nothing_is_given_up(
    opened: Opener, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A black hole behind a listener: the banner has a deadline of its own."""
    monkeypatch.setattr("dsparkctl.rollout.ssh.dial.CONNECT_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        file = config(sshd, tmp_path / "c", f"Port {silent.getsockname()[1]}")
        started_s = time.monotonic()
        with pytest.raises(SshError, match="does not speak SSH with us"):
            opened(file=file).run(("true",))
        assert time.monotonic() - started_s < 10


def test_what_is_no_ssh_server_is_said_to_be_none(
    opened: Opener, sshd: Sshd, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            sock, _ = other.accept()
            with sock:
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 200)

        thread = threading.Thread(target=answer)
        thread.start()
        file = config(sshd, tmp_path / "c", f"Port {other.getsockname()[1]}")
        with pytest.raises(SshError, match="does not speak SSH with us") as caught:
            opened(file=file).run(("true",))
        thread.join()
        assert "\n" not in str(caught.value)


# --- ports and sudo -------------------------------------------------------------------------------


def test_a_port_of_the_hosts_network_is_reached_both_ways_and_half_closed(opened: Opener) -> None:
    n_threads = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def echo() -> None:
            sock, _ = server.accept()
            with sock:
                while data := sock.recv(65536):
                    sock.sendall(data)

        thread = threading.Thread(target=echo)
        thread.start()
        host = opened()
        data = os.urandom(3 << 20)
        with host.connect("127.0.0.1", server.getsockname()[1], timeout_s=5) as sock:

            def send() -> None:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)

            sender = threading.Thread(target=send)
            sender.start()
            found = bytearray()
            while piece := sock.recv(1 << 20):
                found += piece
            sender.join()
        assert bytes(found) == data
        thread.join(5)
        host.close()
    end_s = time.monotonic() + 5
    while threading.active_count() > n_threads and time.monotonic() < end_s:
        time.sleep(0.05)
    assert threading.active_count() <= n_threads


def test_a_near_end_that_is_closed_closes_the_far_one(opened: Opener) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = opened()
        near = host.connect("127.0.0.1", server.getsockname()[1], timeout_s=5)
        far, _ = server.accept()
        far.settimeout(5)
        near.close()
        assert far.recv(1) == b""
        far.close()


def test_a_port_that_nobody_listens_on_is_named(opened: Opener) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    host = opened()
    with pytest.raises(HostError, match=f"^box: nothing answers there at 127.0.0.1 port {port}"):
        host.connect("127.0.0.1", port, timeout_s=5)
    assert host.run(("echo", "still here")).text == "still here"


def test_root_needs_no_sudo(opened: Opener) -> None:
    """The tests' server logs us in as whoever runs it."""
    if os.getuid() != 0:
        pytest.skip("needs root")
    assert opened().run(("id", "-u"), as_root=True).text == "0"
