"""Hosts over SSH: `dsparkctl.rollout.host`'s verbs by paramiko, configured as OpenSSH would be.

From the bottom: `config` (what ssh itself would do), `known_hosts`, `keys`, `dial` (one verified,
authenticated connection), `running` (one command), `upload`, `forward`, `machine` (the Host).
"""
