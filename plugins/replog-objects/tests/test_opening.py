"""What a URL may say, and which stores are refused at the first call."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bad_proxy import bad_proxy
from s3_server import Bucket, unsigned

from replog.errors import ConfigError, MetastoreCorruptError, MetastoreError
from replog.registry import Registry
from replog_objects.errors import BucketRefusedError
from replog_objects.layout import NAME_BYTES_MAX, DamagedError, Stored, name_of, word_of
from replog_objects.metastore import ObjectsMetastore
from replog_objects.options import ObjectsOptions, Target


def test_url_names_a_bucket_and_a_prefix() -> None:
    assert Target.parse("s3://bucket/some/prefix/") == Target("s3", "bucket", "some/prefix")
    assert str(Target.parse("gs://bucket")) == "gs://bucket"


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "bucket",
        "s3:bucket",
        "s3://",
        "s3:///prefix",
        "file:///tmp/x",
        "s3://b/a b",
        "s3://b/a//b",
        "s3://b/../a",
        "s3://b/" + "a" * 201,
    ],
)
def test_url_without_a_usable_bucket_is_refused(rest: str) -> None:
    with pytest.raises(ConfigError):
        Target.parse(rest)


@pytest.mark.parametrize(
    "url",
    [
        "objects:s3://AKIAKEY:hush-hush@bucket/prefix",
        "objects:s3://bucket/prefix?secret_access_key=hush-hush",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Registry().open_metastore(url)
    assert "hush-hush" not in str(raised.value)


@pytest.mark.parametrize(
    "option", ["timeout_s=0", "lease_s=-1", "poll_s=nan", "requests_max=0", "endpoint=host:9000", "tombstone_s=-1"]
)
def test_impossible_option_is_refused(option: str) -> None:
    with pytest.raises(ConfigError):
        Registry().open_metastore(f"objects:s3://bucket?{option}")


@unsigned
async def test_store_without_conditional_replacing_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    """obstore's local directory has no conditional replacing; a proxy takes conditions away."""
    with bad_proxy(bucket.server.address) as (proxy, address):
        proxy.ignores_conditions_of = ("PUT",)
        async with bucket.client(address) as metastore:
            with pytest.raises(BucketRefusedError, match="ignores conditions"):
                await metastore.create("a", b"1")
        assert bucket.names() == ["replog-metastore"]
        proxy.ignores_conditions_of = ()
        async with bucket.client(address) as metastore:
            await metastore.create("a", b"1")
    metastore = ObjectsMetastore(Target("http", bucket.server.address, bucket.name), ObjectsOptions(timeout_s=0.6))
    with pytest.raises(MetastoreError):
        await metastore.create("a", b"1")


async def test_place_of_another_program_is_refused(bucket: Bucket) -> None:
    bucket.put("some/prefix/replog-metastore", b"A metastore of replog, format 2. ...")
    async with bucket.client() as metastore:
        with pytest.raises(MetastoreCorruptError, match="newer format"):
            await metastore.create("a", b"1")
    assert bucket.names() == ["replog-metastore"]


async def test_fork_refuses_the_metastore_of_its_parent(bucket: Bucket) -> None:
    async with bucket.client() as metastore:
        await metastore.create("a", b"1")
        metastore._calls._process = os.getpid() + 1
        with pytest.raises(MetastoreError, match="fork"):
            await metastore.get("a")


# -- the layout ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word", ["orders", "a.b", "a b", "commandé", "é", "*", "=", "==", "a=20b", "%2F", "日本語のログ", "." * 3 + "a"]
)
def test_words_come_back_from_names(word: str) -> None:
    name = name_of(f"logs/{word}")
    assert word_of(name) == word
    assert name.isascii()
    assert name.count("/") == 2


def test_longest_keys_fit_into_names() -> None:
    for key in ("*/" * 239 + "**", "é" * 240, "/".join(["*" * 50] * 9), "w" * 480):
        assert len(name_of(key)) <= NAME_BYTES_MAX - 56, "and so does a prefix of 55 bytes"


@pytest.mark.parametrize(
    "name", ["k/it=zz=", "k/=61=", "k/==YQ=", "k/===", "k/a b=", "k/==w6=", "k/=é=", "k/orders", "k/="]
)
def test_foreign_names_are_damage(name: str) -> None:
    with pytest.raises(DamagedError):
        word_of(name)


def test_content_is_written_as_documented() -> None:
    nonce = "0123456789abcdef" * 2
    assert Stored(7, nonce, b"text").encode() == b"value 1 00000000000000000007 %b 1a17247c\ntext" % nonce.encode()
    gone = Stored(8, nonce, None)
    assert len(gone.encode()) == 70 == len(Stored(8, nonce, b"").encode()) - 1
    assert Stored.decode(gone.encode()) == gone
