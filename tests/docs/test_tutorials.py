"""The tutorials, and pages that share a cluster or a bucket, work command by command."""

from pathlib import Path
from typing import Final

import pytest

from tests.backup.s3server import NoServer, s3_server
from tests.docs.runners import BUCKET, SHARED, TUTORIALS, each, places
from tests.docs.tutorial import UP, Reader

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

# The state that pages with a shared cluster expect: a certificate, a second manifest, a message in a backup, an open
# transaction.
_BEFORE: Final = """
openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=console.example -keyout tls.key -out tls.crt 2>/dev/null
cp examples/pipelines/archive.yaml more.yaml
orderlymq send orders created --key order-4711
orderlymq backup create --to backups
python - <<END
from orderlymq import TransactionState
from orderlymq.blocking import TransactionProducer

def nobody_knows(message):
    return TransactionState.UNKNOWN

with TransactionProducer("bookings", check=nobody_knows) as producer:
    producer.send_in_transaction("orders", "chair", key="shop-1", execute=nobody_knows)
END
"""


@pytest.mark.parametrize(("page", "section"), each(TUTORIALS))
def test_a_tutorial_does_what_it_says(page: Path, section: str, tmp_path: Path) -> None:
    """Each command succeeds and prints what the page shows."""
    Reader(tmp_path).follow(page, section=section)


@pytest.mark.long
def test_pages_that_share_a_cluster_do_what_they_say(tmp_path: Path) -> None:
    """No page leaves anything that disturbs the next one."""
    with Reader(tmp_path) as reader:
        reader.run(UP + _BEFORE)
        for page, section in places(SHARED):
            reader.read(page, section)


@pytest.mark.long
@pytest.mark.timeout(600)  # the store is installed if it is missing
def test_a_backup_goes_to_a_bucket_as_the_guide_says(tmp_path: Path) -> None:
    """The store is moto's, at the address in `AWS_ENDPOINT_URL`."""
    try:
        with s3_server("my-bucket") as address, Reader(tmp_path) as reader:
            reader.run(f"{UP}\nexport AWS_ENDPOINT_URL={address}")
            for page, section in places(BUCKET):
                reader.read(page, section)
    except NoServer as error:
        pytest.skip(f"moto's server cannot be installed: {error}")
