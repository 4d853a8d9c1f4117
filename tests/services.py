"""Private MariaDB, MySQL and Redis servers for tests, gone when the test run is.

Each server is a context manager that starts it, and an object tests may hurt: ``stop``, ``kill``,
``restart``, ``freeze`` and ``thaw``. The port stays the same over a restart. All methods block;
call them from async tests through ``anyio.to_thread.run_sync``. A missing program is a failure
that names the remedy, never a skip.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
START_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0

# Waits for the end of the test run, however it ends: then standard input closes.
_GUARD = 'read -r _; kill -9 "$0"; rm -rf "$1"'


class ServiceError(RuntimeError):
    """A server could not be found, started or reached. The message says what to do."""


def find_program(names: Sequence[str], remedy: str) -> str:
    """The path of the first of ``names`` that is installed, else ServiceError with the remedy."""
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
    for name in names:
        if found := shutil.which(name, path=path):
            return found
    raise ServiceError(f"{names[0]} is not installed. {remedy}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Server:
    """What the servers have in common. A subclass says how to prepare, start and greet its own."""

    name = "server"

    def __init__(self) -> None:
        self.port = 0
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    # What a subclass fills in.
    def prepare(self) -> None:
        """Make in ``folder`` what the server needs before its first start."""

    def command(self) -> tuple[str, list[str]]:
        """The program and its arguments (argv, with the name it is called by)."""
        raise NotImplementedError

    def greet(self) -> None:
        """Return when the server answers; any exception means: not yet."""
        raise NotImplementedError

    # What tests use.
    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise ServiceError(f"{self.name} has not been started")
        return self._folder

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServiceError(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """The last lines the server wrote."""
        path = self.folder / "server.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-30:])

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix=f"crontask-{self.name}-"))
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start and wait until it answers. A first start tries another port if one is taken."""
        if self.running:
            return
        tries = 1 if self.port else 3
        for left in range(tries - 1, -1, -1):
            self.port = self.port or free_port()
            try:
                self._launch()
                return
            except ServiceError:
                self.kill()
                if not left:
                    raise
                self.port = 0

    def stop(self) -> None:
        """End it in good order (what it had acknowledged stays); at once if that takes too long."""
        if self._process is None:
            return
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._forget()

    def kill(self) -> None:
        """kill -9: nothing more is written, no connection is closed in good order."""
        if self._process is not None:
            self._process.kill()
        self._forget()

    def restart(self) -> None:
        """Stop in good order and start again on the same port and folder."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        if self.running:
            os.kill(self.pid, signal.SIGCONT)

    # Inside.
    def _launch(self) -> None:
        program, argv = self.command()
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                executable=program,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for the test run, which then stops us
            )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, str(self._process.pid), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        until = time.monotonic() + START_TIMEOUT
        while True:
            if not self.running:
                raise ServiceError(f"{self.name} ended while starting:\n{self.log()}")
            try:
                self.greet()
                return
            except Exception as error:
                if time.monotonic() > until:
                    raise ServiceError(f"{self.name} does not answer:\n{self.log()}") from error
                time.sleep(0.05)

    def _forget(self) -> None:
        if self._process is not None:
            self._process.wait(STOP_TIMEOUT)
            self._process = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait(STOP_TIMEOUT)
            if self._guard.stdin is not None:
                self._guard.stdin.close()
            self._guard = None


class SqlServer(Server):
    """MariaDB or MySQL. ``flush`` is innodb_flush_log_at_trx_commit; ``options`` are added last."""

    user = "crontask"
    password = "crontask"

    def __init__(self, flush: int = 1, options: Sequence[str] = ()) -> None:
        super().__init__()
        self.flush = flush
        self.options = tuple(options)
        self._numbers = itertools.count(1)

    def url(self, database: str = "", *, password: str | None = None) -> str:
        """The SQLAlchemy URL of a database on this server."""
        secret = self.password if password is None else password
        return f"mysql+asyncmy://{self.user}:{secret}@{HOST}:{self.port}/{database}"

    @contextlib.contextmanager
    def database(self, charset: str = "utf8mb4") -> Iterator[str]:
        """The URL of a new empty database, dropped at the end if the server still runs."""
        name = f"t{os.getpid()}_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} CHARACTER SET {charset}")
        try:
            yield self.url(name)
        finally:
            if self.running:
                self.thaw()
                self.execute(f"DROP DATABASE IF EXISTS {name}")

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements one by one on a connection of their own; the rows of the last one."""
        with ThreadPoolExecutor(1) as thread:  # there may be a running loop in this one
            return thread.submit(asyncio.run, self._execute(statements)).result()

    def greet(self) -> None:
        self.execute("SELECT 1")

    def kill_connections(self) -> int:
        """End every client connection but our own, as a database admin would. Returns how many."""
        rows = self.execute(
            "SELECT id FROM information_schema.processlist "
            "WHERE user = 'crontask' AND id <> connection_id()"
        )
        for (connection,) in rows:
            with contextlib.suppress(Exception):  # it may have left by itself
                self.execute(f"KILL {connection}")
        return len(rows)

    def server_options(self) -> list[str]:
        """The options both kinds of server share: small, and as careful as asked."""
        return [
            f"--datadir={self.folder / 'data'}",
            # A server that starts removes what another has in a temporary folder they share.
            f"--tmpdir={self.folder / 'tmp'}",
            f"--socket={self.folder / 's'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--port={self.port}",
            f"--bind-address={HOST}",
            f"--init-file={self.folder / 'init.sql'}",
            f"--innodb-flush-log-at-trx-commit={self.flush}",
            "--skip-name-resolve",
            "--max-connections=400",
            "--innodb-buffer-pool-size=128M",
            "--max-allowed-packet=16M",
            *self.options,
        ]

    def prepare(self) -> None:
        (self.folder / "init.sql").write_text(
            f"CREATE USER IF NOT EXISTS '{self.user}'@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{self.user}'@'%' WITH GRANT OPTION;\n"
        )
        (self.folder / "data").mkdir()
        (self.folder / "tmp").mkdir()
        account = server_account()
        if account is not None:
            for path in (self.folder, *self.folder.iterdir()):
                os.chown(path, account.pw_uid, account.pw_gid)
        self.initialise()

    def initialise(self) -> None:
        """Fill the empty ``data`` folder."""
        raise NotImplementedError

    async def _execute(self, statements: Sequence[str]) -> list[tuple[Any, ...]]:
        import asyncmy

        connection = await asyncmy.connect(
            host=HOST, port=self.port, user=self.user, password=self.password, autocommit=True
        )
        try:
            async with connection.cursor() as cursor:
                for statement in statements:
                    await cursor.execute(statement)
                return list(await cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()


class MariaDb(SqlServer):
    """The MariaDB of the system (10.6 or later; Debian 12 has 10.11)."""

    name = "mariadb"
    remedy = "Run `make services` as root, or install mariadb-server-core and mariadb-client-core."

    def initialise(self) -> None:
        self._program = find_program(["mariadbd"], self.remedy)
        run_quietly(
            [
                find_program(["mariadb-install-db"], self.remedy),
                "--no-defaults",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
                f"--datadir={self.folder / 'data'}",
                *user_option(),
            ]
        )

    def command(self) -> tuple[str, list[str]]:
        options = ["--innodb-log-file-size=64M", *self.server_options()]
        return self._program, ["mariadbd", "--no-defaults", *user_option(), *options]


class MySql(SqlServer):
    """A real MySQL, unpacked by tools/mysql.sh beside the system's own programs."""

    name = "mysql"
    unpacked = ROOT / ".mysql" / "root"

    def initialise(self) -> None:
        mysqld = self.unpacked / "usr/sbin/mysqld"
        if not mysqld.exists():
            raise ServiceError("There is no MySQL server here. Run `make test-mysql`.")
        loaders = sorted(self.unpacked.glob("usr/lib/*/ld-linux*"))
        if not loaders:
            raise ServiceError(f"{self.unpacked} is incomplete. Remove it and run it again.")
        # It brings its own C library, so it is started by its own loader.
        self._loader = loaders[0]
        self._argv = [
            self._loader.name,
            "--library-path",
            f"{self._loader.parent}:{self._loader.parent / 'private'}",
            str(mysqld),
            "--no-defaults",
            f"--basedir={self.unpacked / 'usr'}",
            *(["--user=root"] if os.geteuid() == 0 else []),
        ]
        data = f"--datadir={self.folder / 'data'}"
        run_quietly([str(self._loader), *self._argv[1:], data, "--initialize-insecure"])

    def command(self) -> tuple[str, list[str]]:
        options = ["--mysqlx=OFF", "--secure-file-priv=NULL", "--skip-log-bin"]
        return str(self._loader), [*self._argv, *options, *self.server_options()]


class Redis(Server):
    """The Redis of the system. It keeps nothing on disk: a restart forgets everything."""

    name = "redis"

    def prepare(self) -> None:
        # redis-check-rdb is the same program under another name, and comes without a daemon.
        self._program = find_program(
            ["redis-server", "redis-check-rdb"],
            "Run `make services` as root, or install redis-tools.",
        )

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def command(self) -> tuple[str, list[str]]:
        options = {"port": str(self.port), "bind": HOST, "dir": str(self.folder), "save": ""}
        return self._program, [
            "redis-server",
            *itertools.chain.from_iterable((f"--{key}", value) for key, value in options.items()),
        ]

    def greet(self) -> None:
        if self.ask("PING") != "+PONG":
            raise ServiceError("redis is not ready")

    def flush(self) -> None:
        """Forget everything; start it first if a test left it stopped."""
        self.start()
        self.thaw()
        self.ask("FLUSHALL")

    def ask(self, command: str) -> str:
        """The first line of the answer to a command."""
        with socket.create_connection((HOST, self.port), timeout=5) as connection:
            connection.sendall(command.encode() + b"\r\n")
            return connection.makefile("rb").readline().decode().strip()


def server_account() -> pwd.struct_passwd | None:
    """The account a database server runs as: it refuses to be root. None when we are not root."""
    if os.geteuid() != 0:
        return None
    for name in ("mysql", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ServiceError("root cannot run a database server, and there is no account `nobody`")


def user_option() -> list[str]:
    account = server_account()
    return [] if account is None else [f"--user={account.pw_name}"]


def run_quietly(argv: Sequence[str]) -> None:
    """Run a command to its end; ServiceError with what it said if it fails."""
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ServiceError(f"{Path(argv[0]).name} failed:\n{(done.stdout + done.stderr)[-2000:]}")
