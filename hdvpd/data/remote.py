"""Data sets in a remote store, `gs://`, `s3://` or `http(s)://`, read through TensorStore.

A `RemotePath` stands where the folder of a data set stands: it joins and prints like a path, its
small files are read whole, and arrays are opened by `kvstore`. It is never listed and never
written: whatever would write raises a `UserError`. A store that does not answer ends in a
`UserError` too: a refused connection after `RETRIES`, a silent one after the time limits below.
"""

import os
from collections.abc import Mapping
from pathlib import Path, PosixPath
from typing import Any, NoReturn

import tensorstore

from hdvpd.basics.errors import UserError

SCHEMES = ("gs", "s3", "http", "https")
RETRIES: dict[str, Any] = {"max_retries": 5, "initial_delay": "500ms", "max_delay": "8s"}
"""Of every request: about 20 s until a server that is not there is given up."""
_TIME_LIMITS = {
    "TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS": "10",
    # A request that moves less than a byte per second for so long is repeated.
    "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "20",
    "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": "1",
}
_DRIVERS = {"gs": "gcs", "s3": "s3", "http": "http", "https": "http"}
_REMEDIES = {
    "s3": "Credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or from AWS_PROFILE, "
    "the region from AWS_REGION, and the address of another store than Amazon's from "
    "AWS_ENDPOINT_URL_S3",
    "gs": "Credentials come from GOOGLE_APPLICATION_CREDENTIALS or from `gcloud auth "
    "application-default login`",
    "http": "Open the address in a browser or with curl",
}
_DENIED = ("PERMISSION_DENIED", "UNAUTHENTICATED")
_OF_THE_DATA = ("NOT_FOUND", "DATA_LOSS", "INVALID_ARGUMENT", "OUT_OF_RANGE")
"""What TensorStore says of a store that did answer."""


class RemotePath(PosixPath):
    """A place in a remote store, `<scheme>://<host or bucket>/<path>`."""

    def __str__(self) -> str:
        """Return the address."""
        scheme, _, rest = super().__str__().partition(":/")
        return f"{scheme}://{rest}"

    @property
    def scheme(self) -> str:
        """One of `SCHEMES`."""
        return self.parts[0].removesuffix(":")

    def read_bytes(self) -> bytes:
        """Read a small file.

        Raises:
          FileNotFoundError: the store answers that there is none.
          UserError: the store does not answer, or refuses.
        """
        try:
            found = tensorstore.KvStore.open(kvstore(self.parent)).result().read(self.name).result()
        except ValueError as error:
            raise _unreadable(self, error) from error
        if found.state != "value":
            raise FileNotFoundError(f"{self} is not there")
        return found.value

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """Read a small text; arguments and errors as of `Path.read_text` and `read_bytes`."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def is_file(self) -> bool:
        """Say whether there is such a file; folders do not exist in a store.

        Raises:
          UserError: the store does not answer, or refuses.
        """
        try:
            self.read_bytes()
        except FileNotFoundError:
            return False
        return True

    def exists(self) -> bool:
        """Say whether there is such a file; errors as of `is_file`."""
        return self.is_file()

    def __fspath__(self) -> NoReturn:
        """Refuse to be opened by the system, which is how files are written."""
        raise UserError(
            f"{self} lies in a remote store, which hdvpd reads and never writes to. Work on a "
            "local copy of the data set and upload it again, or name a local folder with --out "
            "where the command has that flag."
        )


def locate(path: str | Path) -> Path:
    """Return the folder of a data set, or its place in a remote store.

    Args:
      path: of a folder, or an address; that of an address may have lost a slash in `Path`.

    Raises:
      UserError: the address names no server or bucket, or has a query.
    """
    if isinstance(path, RemotePath):
        return path
    text = str(path)
    scheme, colon, rest = text.partition(":/")
    if not colon or scheme not in SCHEMES:
        return Path(path)
    if any(mark in rest for mark in "?#"):
        raise UserError(
            f"{text} has a query or a fragment, which no file of a data set has. Give the address "
            "of the data set's folder; settings of a store come from the environment "
            "(docs/data-format.md)."
        )
    if not rest.strip("/"):
        raise UserError(f"{text} names no {'bucket' if scheme in ('s3', 'gs') else 'server'}.")
    return RemotePath(f"{scheme}:/{rest.strip('/')}")


def require_local(path: Path) -> None:
    """Refuse to write to a remote store.

    Raises:
      UserError: the path is of one.
    """
    path = locate(path)
    if isinstance(path, RemotePath):
        os.fspath(path)


def kvstore(folder: Path) -> dict[str, Any]:
    """Return TensorStore's specification of a folder, local or remote."""
    if not isinstance(folder, RemotePath):
        return {"driver": "file", "path": str(folder)}
    for name, value in _TIME_LIMITS.items():
        os.environ.setdefault(name, value)
    try:
        spec = tensorstore.KvStore.Spec(f"{folder}/").to_json()
    except ValueError as error:
        raise UserError(
            f"{folder} is no address that can be read: {_first_line(error)}."
        ) from error
    driver = _DRIVERS[folder.scheme]
    more: dict[str, Any] = {f"{driver}_request_retries": RETRIES}
    if driver == "s3":
        more |= _s3_settings(os.environ)
    return {**spec, **more}


def _s3_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Read what Amazon's tools read too: endpoint, region, credentials."""
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    settings: dict[str, Any] = {}
    if endpoint:
        # Stores of others know no regions, but requests are signed with one.
        settings |= {"endpoint": endpoint.rstrip("/"), "aws_region": region or "us-east-1"}
    elif region:
        settings["aws_region"] = region
    if environment.get("AWS_ACCESS_KEY_ID"):
        settings["aws_credentials"] = {"type": "environment"}
    elif profile := environment.get("AWS_PROFILE"):
        settings["aws_credentials"] = {"type": "profile", "profile": profile}
    return settings


def explain(place: Path, error: Exception) -> UserError | None:
    """Return what to tell of an error of TensorStore's, if it is the store's and not the data's."""
    status = str(error).split(":", 1)[0]
    if not isinstance(place, RemotePath) or status in _OF_THE_DATA:
        return None
    return _unreadable(place, error)


def missing_dataset(place: RemotePath) -> UserError:
    """Return what to tell where there is no dataset.json."""
    what = "the address may be wrong"
    if place.scheme in ("s3", "gs"):
        what = "the bucket or the folder in it may be wrong"
        # Reading says the same of both; a list of one name does not.
        one = tensorstore.KvStore.KeyRange("dataset.json", "dataset.json\0")
        try:
            tensorstore.KvStore.open(kvstore(place)).result().list(one).result()
        except ValueError as error:
            if "NoSuchBucket" in str(error) or str(error).startswith("NOT_FOUND"):
                what = f"there is no bucket {place.parts[1]!r}"
    remedy = _REMEDIES["http" if place.scheme == "https" else place.scheme]
    return UserError(
        f"There is no data set at {place}: dataset.json is not there, {what}. {remedy}."
    )


def _unreadable(place: RemotePath, error: Exception) -> UserError:
    reason = _first_line(error)
    denied = reason.startswith(_DENIED)
    what = "refuses to be read" if denied else "cannot be read"
    if "was ignored by server" in str(error):
        return UserError(
            f"{place}: the server does not answer requests for a part of a file (byte ranges), "
            "which reading frames needs. Serve the data set with another: Python's http.server is "
            "one that cannot."
        )
    remedy = _REMEDIES["http" if place.scheme == "https" else place.scheme]
    return UserError(f"{place} {what}: {reason}. {remedy}; what is saved of a run is intact.")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].split(" [", 1)[0].rstrip(". ")[:300]
