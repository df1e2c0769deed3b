"""The lab's Slurm with accounting: a database and slurmdbd on the switch, and what `sacct` says."""

from __future__ import annotations

import shutil

from tests.cluster import lab
from tests.slurm.slurm_lab import SITE, SLURM_CONF, SlurmLab

PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacct", "sacctmgr")
PACKAGES = "slurmdbd mariadb-server"
SOCKET = "/run/mysqld/mysqld.sock"  # where slurmdbd's client library looks for "localhost"
DATA = "/run/mariadb"
ADDRESS = f"{lab.NETWORK}.{lab.SWITCH}"
NONE = "AccountingStorageType=accounting_storage/none"
SERVED = f"""AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={ADDRESS}
AccountingStoragePass={SITE}/munge/socket"""
SLURMDBD_CONF = f"""
DbdHost=switch
DbdAddr={ADDRESS}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={SITE}/munge/socket
PidFile=/run/slurmdbd.pid
LogFile={SITE}/log/slurmdbd
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
"""


def missing() -> str:
    """Why there can be no accounting here, "" if there can."""
    lacking = [program for program in PROGRAMS if not shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")]
    return f"needs {', '.join(lacking)} (Debian: {PACKAGES})" if lacking else ""


class AccountedLab(SlurmLab):
    configuration = SLURM_CONF.replace(NONE, SERVED)

    def _serve_accounts(self) -> None:
        switch, place = self.lab.switch, (f"--datadir={DATA}", "--user=root")
        self.ask("mkdir", "-p", "/run/mysqld", DATA)
        fresh = ("--no-defaults", *place, "--auth-root-authentication-method=normal", "--skip-test-db")
        self.ask("mariadb-install-db", *fresh)
        self._daemon(switch, "mariadbd", "--no-defaults", *place, f"--socket={SOCKET}", "--skip-networking")
        self.until(lambda: self.ask("test", "-S", SOCKET, check=False).code == 0, "a database")
        file = self.folder / "etc/slurm/slurmdbd.conf"
        file.touch(mode=0o600)
        file.write_text(SLURMDBD_CONF)
        self._daemon(switch, "slurmdbd", "-D")
        self.until(lambda: self.ask("sacctmgr", "show", "cluster", check=False).code == 0, "slurmdbd")
        self.ask("sacctmgr", "-i", "add", "cluster", "lab")

    def accounted(self, number: str) -> list[tuple[str, str, str]]:
        """Each attempt of a job and of its steps, the oldest first: id, state, exit code."""
        columns = ("--format=JobID,State,ExitCode", "--duplicates", "--parsable2", "--noheader")
        lines = self.ask("sacct", "-j", number, *columns).stdout.splitlines()
        found: list[tuple[str, str, str]] = []
        for line in lines:
            name, state, code = line.split("|")
            found.append((name.removeprefix(number), state.split()[0], code))
        return found
