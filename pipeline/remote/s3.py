"""S3 and what speaks its language: writes that hold only if the object is (not) there, or is still the same."""

from __future__ import annotations

from typing import Any

from pipeline.remote.storage import Stat, Storage

REFUSED = (409, 412)
"""HTTP: another conditional write of the object is under way; the condition does not hold."""


class S3(Storage):
    """A bucket."""

    atomic_swap = True

    def list(self, folder: str) -> dict[str, Stat]:
        """All objects below a folder, by key, as they are now: a request a thousand."""
        begin, found, more = self._object(""), dict[str, Stat](), dict[str, Any]()
        asked = {"Bucket": begin["Bucket"], "Prefix": f"{begin['Key']}{folder}/"}
        with self.told(folder, "cannot be listed"):
            while True:
                answer = self.system.call_s3("list_objects_v2", **asked, **more)
                for item in answer.get("Contents", []):
                    key = item["Key"].removeprefix(begin["Key"])
                    found[key] = Stat(str(item["ETag"]).strip('"'), int(item["Size"]))
                if not answer.get("IsTruncated"):
                    return found
                more = {"ContinuationToken": answer["NextContinuationToken"]}

    def _read(self, key: str) -> tuple[bytes, str]:
        import fsspec

        async def get() -> tuple[bytes, str]:
            answer = await self.system._call_s3("get_object", **self._object(key))
            async with answer["Body"] as body:
                return await body.read(), str(answer["ETag"]).strip('"')

        found: tuple[bytes, str] = fsspec.asyn.sync(self.system.loop, get)
        return found

    def _put(self, key: str, data: bytes) -> str:
        answer = self.system.call_s3("put_object", **self._object(key), Body=data)
        return str(answer["ETag"]).strip('"')

    def _create(self, key: str, data: bytes) -> str | None:
        return self._if(key, data, IfNoneMatch="*")

    def _swap(self, key: str, data: bytes, tag: str) -> str | None:
        return self._if(key, data, IfMatch=f'"{tag}"')

    def _if(self, key: str, data: bytes, **condition: str) -> str | None:
        try:
            answer = self.system.call_s3("put_object", **self._object(key), Body=data, **condition)
        except FileNotFoundError:
            if "IfMatch" in condition:  # it was deleted
                return None
            raise
        except OSError as error:
            if _status(error) in REFUSED:
                return None
            raise
        return str(answer["ETag"]).strip('"')

    def _delete(self, keys: tuple[str, ...]) -> None:
        objects = [{"Key": self._object(key)["Key"]} for key in keys]
        bucket = self._object(keys[0])["Bucket"]
        answer = self.system.call_s3("delete_objects", Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        if failed := answer.get("Errors"):
            raise OSError(f"{failed[0].get('Key')}: {failed[0].get('Message')}")

    def _object(self, key: str) -> dict[str, str]:
        bucket, _, rest = self.path(key).partition("/")
        return {"Bucket": bucket, "Key": rest}


def _status(error: BaseException) -> int | None:
    response: Any = getattr(error.__cause__, "response", None)
    return response["ResponseMetadata"].get("HTTPStatusCode") if isinstance(response, dict) else None
