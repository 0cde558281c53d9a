from __future__ import annotations

import pytest

from headrace.errors import broker_error
from headrace.protocol.codes import Perm, RequestCode, ResponseCode, SysFlag


@pytest.mark.parametrize(
    ("code", "number"),
    [
        (RequestCode.SEND_MESSAGE_V2, 310),
        (RequestCode.LITE_PULL_MESSAGE, 361),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, 105),
        (ResponseCode.TOPIC_NOT_EXIST, 17),
        (Perm.READ | Perm.WRITE, 6),
        (SysFlag.COMPRESSED | SysFlag.ZLIB, 769),
    ],
)
def test_codes_have_the_numbers_of_the_protocol(code: int, number: int) -> None:
    assert int(code) == number


def test_our_own_errors_have_classes() -> None:
    for code in (
        ResponseCode.FENCED,
        ResponseCode.PREDECESSOR_MISMATCH,
        ResponseCode.STAGED_PART_MISSING,
        ResponseCode.STORAGE_FAILED,
    ):
        assert type(broker_error(code, "")).response_code == code
