"""What to do about a storage that fails, told by what its library raised. None of them need be installed here."""

from __future__ import annotations

from collections.abc import Iterator

KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_CONNECTION_STRING",
}
"""The variables of the environment that credentials are in, by the extra that brings a scheme's package."""
MAKE = {"s3": "aws s3 mb {address}", "gs": "gcloud storage buckets create {address}"}
"""What makes a bucket."""
_NO_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "NoAuthTokenError",
    "ProfileNotFound",
    "TokenRetrievalError",
    "SSOTokenLoadError",
    "UnauthorizedSSOTokenError",
    "DefaultCredentialsError",
    "RefreshError",
    "ClientAuthenticationError",
    "CredentialUnavailableError",
}
"""Classes of botocore, google.auth and azure, by name."""
_NO_BUCKET = ("bucket does not exist", "container does not exist")


def advice(error: BaseException, address: str, extra: str | None) -> str:
    """What is to be done, in a sentence without its full stop.

    Args:
        error: what was raised.
        address: of the bucket or host.
        extra: which extra brings the package of its scheme; None for a scheme of none.
    """
    chain = list(_chain(error))
    if any(words in str(each) for each in chain for words in _NO_BUCKET):
        make = f", or make the bucket: {MAKE[extra].format(address=address)}" if extra in MAKE else ""
        return f"There is no {address}: correct the address{make}; then type the same again"
    names = {cls.__name__ for each in chain for cls in type(each).__mro__}
    keys = f" (set {KEYS[extra]})" if extra in KEYS else ""
    if names & _NO_CREDENTIALS:
        return f"Give the environment credentials for {address}{keys}, then type the same again"
    if "PermissionError" in names:
        return (
            f"The credentials in the environment do not allow that at {address}, or have run out: give it others{keys} "
            "or have these allowed it, then type the same again"
        )
    where = " (AWS_ENDPOINT_URL says where it is, if it is none of Amazon's)" if extra == "s3" else ""
    return f"See that the storage answers{where}, then type the same again"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came of."""
    following: BaseException | None = error
    while following is not None:
        yield following
        following = following.__cause__ or following.__context__
