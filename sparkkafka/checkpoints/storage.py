"""The files of a checkpoint: on local disks, or through Arrow on S3, GCS, Azure and HDFS.

A checkpoint is not trusted: a link, a device, or a file larger than any that Spark writes is an
error that names it, before it is read. A file is written completely or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from sparkkafka.errors import CheckpointError

MAX_FILE_BYTES = 64 << 20
"""Maximum size of a file. A plan of 100,000 partitions has 3 MB; commits of large stateful queries
are somewhat larger."""
MAX_FILES = 1_000_000
"""Maximum number of files in one folder. By default Spark keeps those of the last 100 batches."""

# Hadoop's names, and Arrow's for the same.
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_SCHEMES = ("s3", "gs", "abfs", "abfss", "hdfs", "viewfs", *_ALIASES)


class StorageEntry(NamedTuple):
    """A file or folder in a folder. `modified_at_s` is in seconds since 1970, None if unknown."""

    name: str
    is_file: bool
    size_bytes: int
    modified_at_s: float | None


class Storage(ABC):
    """The folder of one checkpoint. Names are relative to it, with slashes: "offsets/7"."""

    location: str
    """The folder's path or URL for messages, without secrets."""

    def location_of(self, name: str = "") -> str:
        """Return the path or URL of a file, or of the folder itself, for messages."""
        return f"{self.location.rstrip('/')}/{name}" if name else self.location

    @abstractmethod
    def entries(self, name: str = "") -> list[StorageEntry]:
        """List a folder, sorted by name; empty if it does not exist. Raises CheckpointError."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return a file's content, None if it does not exist. Raises CheckpointError."""

    @abstractmethod
    def write(self, name: str, content: bytes, *, checksum: bool = True) -> None:
        """Create or replace a file, completely or not at all. Folders are created.

        With `checksum`, a local file gets Hadoop's checksum if other files of its folder have one.
        Raises CheckpointError.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it exists. Raises CheckpointError."""

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold the checkpoint's lock, on file systems that have locks (local ones). Raises
        CheckpointError if another process holds it."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _errors_of(self, name: str) -> Iterator[None]:
        """Raise CheckpointError, which names the file, for an OSError in the block."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise CheckpointError(f"{self.location_of(name)}: {reason}") from error


def storage_of(location: str | Path) -> Storage:
    """Return the storage of a path or URL.

    Raises CheckpointError for a URL that cannot be opened, and for one with a password.
    """
    text = os.fspath(location)
    if not text or "\0" in text:
        raise CheckpointError(f"{text!r} is not the path of a checkpoint")
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", text)
    if match is None:
        return LocalStorage(text)
    scheme = match[1].lower()
    if scheme == "file":
        return LocalStorage(unquote(urlsplit(text).path))
    if scheme == "dbfs":
        raise CheckpointError(f"{text}: give a path of DBFS as /dbfs{urlsplit(text).path}")
    if scheme not in _SCHEMES:
        raise CheckpointError(
            f"{scheme}: is not a file system that checkpoints are read from: give a local path, or "
            f"a URL that begins with {', '.join(_SCHEMES)}"
        )
    parts = urlsplit(text)
    if parts.password is not None:
        raise CheckpointError(
            f"the {scheme} URL holds a password: leave it out, and give credentials as the file "
            "system's own tools take them (environment, profile, instance role)"
        )
    shown = f"{scheme}://{parts.netloc}{parts.path}"
    try:
        from pyarrow import fs

        uri = _ALIASES.get(scheme, scheme) + text[len(scheme) :]
        filesystem, path = fs.FileSystem.from_uri(uri)
    except ImportError as error:
        raise CheckpointError(f"{shown}: this pyarrow has no file system for {scheme}") from error
    except (OSError, ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{shown}: {error}") from error
    return ArrowStorage(filesystem, path, shown, renames=scheme in ("hdfs", "viewfs"))


# --- local --------------------------------------------------------------------------------------


class LocalStorage(Storage):
    """A local folder."""

    def __init__(self, path: str) -> None:
        self.location = path
        self._root = Path(path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the checkpoint's folder during the block. Raises CheckpointError if another process
        has the lock. On a mount that has no locks it does nothing."""
        folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CheckpointError(
                    f"{self.location} is being changed by another process of this command: wait "
                    "until that has ended, and try again"
                ) from None
            except OSError:
                pass  # a mount without locks
            yield
        finally:
            os.close(folder)

    def entries(self, name: str = "") -> list[StorageEntry]:
        """List a folder of the checkpoint ("": its root) by name; [] if it does not exist."""
        folder = self._root / name
        with self._errors_of(name), contextlib.suppress(FileNotFoundError):
            # The path of the checkpoint may contain links; nothing in the checkpoint is one.
            if name and stat.S_ISLNK(folder.lstat().st_mode):
                raise _link_error(self.location_of(name))
            with os.scandir(folder) as files:
                listed = []
                for file in files:
                    status = file.stat(follow_symlinks=False)
                    is_file = not stat.S_ISDIR(status.st_mode)
                    listed.append(StorageEntry(file.name, is_file, status.st_size, status.st_mtime))
                    if len(listed) > MAX_FILES:
                        raise _too_many_files_error(self.location_of(name))
            return sorted(listed)
        return []

    def read(self, name: str) -> bytes | None:
        """Return a file's content, None if it does not exist. Links, pipes, folders, and files
        above MAX_FILE_BYTES are errors."""
        with self._errors_of(name), contextlib.suppress(FileNotFoundError):
            try:
                # O_NONBLOCK: opening a named pipe would wait for a writer.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                file = os.open(self._root / name, flags)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.EMLINK):  # a link; EMLINK on FreeBSD
                    raise _link_error(self.location_of(name)) from None
                raise
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                os.close(file)
                raise _no_file_error(self.location_of(name))
            with os.fdopen(file, "rb", buffering=0) as opened:
                check_size(self.location_of(name), status.st_size)
                content = opened.read(MAX_FILE_BYTES + 1)
            check_size(self.location_of(name), len(content))
            return content
        return None

    def write(self, name: str, content: bytes, *, checksum: bool = True) -> None:
        """Write a file, with its checksum file if others in the folder have one. The file is
        replaced in one step, so that a crash leaves the old or the new one."""
        target = self._root / name
        checksum_file = target.with_name(f".{target.name}.crc")
        with self._errors_of(name):
            target.parent.mkdir(parents=True, exist_ok=True)
            checksum = checksum and any(target.parent.glob(".*.crc"))
            temporary = _write_temporary(target, content)
            if checksum:
                # Hadoop's local file system refuses a file that does not match its checksum, and
                # accepts one without: so the old checksum is removed first.
                checksum_file.unlink(missing_ok=True)
            temporary.replace(target)
            _flush_folder(target.parent)
            if checksum:
                _write_temporary(checksum_file, checksums(content)).replace(checksum_file)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists, and its checksum file."""
        target = self._root / name
        with self._errors_of(name):
            target.with_name(f".{target.name}.crc").unlink(missing_ok=True)
            target.unlink(missing_ok=True)
            _flush_folder(target.parent)


def _write_temporary(target: Path, content: bytes) -> Path:
    """Write the content to a temporary file beside the target and flush it to the disk.

    The file gets the folder's owner and the permissions of the file that it will replace: the
    query's user must be able to read it.
    """
    path = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags, 0o644), "wb") as file:
            file.write(content)
            file.flush()
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(target.lstat().st_mode))
            folder = target.parent.stat()
            with contextlib.suppress(PermissionError):
                os.fchown(file.fileno(), folder.st_uid, folder.st_gid)
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def _flush_folder(folder: Path) -> None:
    """Flush a folder to the disk, so that renamed and removed files stay so after a crash."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def checksums(content: bytes) -> bytes:
    """Return the content of .NAME.crc, the file in which Hadoop's ChecksumFileSystem keeps a CRC-32
    of each 512 bytes."""
    starts = range(0, len(content), 512)
    numbers = [512, *(zlib.crc32(content[start : start + 512]) for start in starts)]
    return b"crc\0" + b"".join(number.to_bytes(4, "big") for number in numbers)


# --- Arrow --------------------------------------------------------------------------------------


class ArrowStorage(Storage):
    """A folder of a pyarrow.fs.FileSystem.

    Object stores show a file only once it is complete. On file systems (`renames`) a temporary file
    is written and renamed. `shown`: the location for messages.
    """

    def __init__(self, filesystem: Any, path: str, shown: str, *, renames: bool) -> None:
        self.location = shown
        self._filesystem = filesystem
        self._path = path.rstrip("/")
        self._renames = renames

    def entries(self, name: str = "") -> list[StorageEntry]:
        """List a folder of the checkpoint ("": its root) by name; [] if it does not exist."""
        from pyarrow import fs

        folder = self._full_path(name)
        with self._errors_of(name):
            files = self._filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        if len(files) > MAX_FILES:
            raise _too_many_files_error(self.location_of(name))
        return sorted(
            StorageEntry(
                file.base_name,
                file.type != fs.FileType.Directory,
                file.size or 0,
                None if file.mtime is None else file.mtime.timestamp(),
            )
            for file in files
        )

    def read(self, name: str) -> bytes | None:
        """Return a file's content, None if it does not exist. A folder, and a file above
        MAX_FILE_BYTES, are errors."""
        from pyarrow import fs

        path = self._full_path(name)
        with self._errors_of(name), contextlib.suppress(FileNotFoundError):
            info = self._filesystem.get_file_info(path)
            if info.type == fs.FileType.NotFound:
                return None
            if info.type != fs.FileType.File:
                raise _no_file_error(self.location_of(name))
            check_size(self.location_of(name), info.size or 0)
            with self._filesystem.open_input_stream(path) as file:
                content = bytes(file.read(MAX_FILE_BYTES + 1))
            check_size(self.location_of(name), len(content))
            return content
        return None

    def write(self, name: str, content: bytes, *, checksum: bool = True) -> None:
        """Write a file; `checksum` is not used. Where files can be renamed (`_renames`), it is
        written under another name first; an object store shows only complete objects."""
        path = self._full_path(name)
        target = path
        folder, _, base = path.rpartition("/")
        with self._errors_of(name):
            if self._renames:
                self._filesystem.create_dir(folder, recursive=True)
                target = f"{folder}/.{base}.{uuid.uuid4().hex}.tmp"
            with self._filesystem.open_output_stream(target) as file:
                file.write(content)
            if self._renames:
                self._filesystem.move(target, path)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with self._errors_of(name), contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(self._full_path(name))

    def _full_path(self, name: str) -> str:
        """Return the path of a file in the file system."""
        return f"{self._path}/{name}" if name else self._path


# --- errors -------------------------------------------------------------------------------------


def check_size(where: str, size_bytes: int) -> None:
    """Raise CheckpointError if a file is larger than any that Spark writes."""
    if size_bytes > MAX_FILE_BYTES:
        raise CheckpointError(
            f"{where} has {size_bytes:,} bytes, and no log of a checkpoint is larger than "
            f"{MAX_FILE_BYTES:,}: something else has written it"
        )


def _link_error(where: str) -> CheckpointError:
    return CheckpointError(
        f"{where} is a symbolic link, which Spark never creates: check where it leads"
    )


def _no_file_error(where: str) -> CheckpointError:
    return CheckpointError(f"{where} is not a file: Spark writes only files")


def _too_many_files_error(where: str) -> CheckpointError:
    return CheckpointError(f"{where} has more than {MAX_FILES:,} files: is it a checkpoint?")
