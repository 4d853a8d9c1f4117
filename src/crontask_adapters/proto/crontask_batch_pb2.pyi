from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestMeta(_message.Message):
    __slots__ = ("request_id", "app_code", "caller")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    APP_CODE_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    app_code: str
    caller: str
    def __init__(self, request_id: _Optional[str] = ..., app_code: _Optional[str] = ..., caller: _Optional[str] = ...) -> None: ...

class CronBatchRequest(_message.Message):
    __slots__ = ("meta", "run_id", "worker_id", "batch_size", "lock_ttl_ms", "pending_publish_max_age_ms", "publishing_session_max_age_ms")
    META_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    LOCK_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    PENDING_PUBLISH_MAX_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHING_SESSION_MAX_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    meta: RequestMeta
    run_id: str
    worker_id: str
    batch_size: int
    lock_ttl_ms: int
    pending_publish_max_age_ms: int
    publishing_session_max_age_ms: int
    def __init__(self, meta: _Optional[_Union[RequestMeta, _Mapping]] = ..., run_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., batch_size: _Optional[int] = ..., lock_ttl_ms: _Optional[int] = ..., pending_publish_max_age_ms: _Optional[int] = ..., publishing_session_max_age_ms: _Optional[int] = ...) -> None: ...

class CronBatchResponse(_message.Message):
    __slots__ = ("claimed_count", "processed_count", "success_count", "failure_count", "has_more", "backlog", "oldest_pending_age_ms")
    CLAIMED_COUNT_FIELD_NUMBER: _ClassVar[int]
    PROCESSED_COUNT_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_COUNT_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    OLDEST_PENDING_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    claimed_count: int
    processed_count: int
    success_count: int
    failure_count: int
    has_more: bool
    backlog: int
    oldest_pending_age_ms: int
    def __init__(self, claimed_count: _Optional[int] = ..., processed_count: _Optional[int] = ..., success_count: _Optional[int] = ..., failure_count: _Optional[int] = ..., has_more: _Optional[bool] = ..., backlog: _Optional[int] = ..., oldest_pending_age_ms: _Optional[int] = ...) -> None: ...
