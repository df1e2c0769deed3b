from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogBatch(_message.Message):
    __slots__ = ["parts", "pieces", "receipts", "terms"]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    parts: bool
    pieces: _containers.RepeatedCompositeFieldContainer[LogPiece]
    receipts: _containers.RepeatedCompositeFieldContainer[LogReceipt]
    terms: LogTerms
    def __init__(self, pieces: _Optional[_Iterable[_Union[LogPiece, _Mapping]]] = ..., receipts: _Optional[_Iterable[_Union[LogReceipt, _Mapping]]] = ..., terms: _Optional[_Union[LogTerms, _Mapping]] = ..., parts: bool = ...) -> None: ...

class LogFrame(_message.Message):
    __slots__ = ["batch", "hello", "welcome"]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    batch: LogBatch
    hello: LogHello
    welcome: LogWelcome
    def __init__(self, hello: _Optional[_Union[LogHello, _Mapping]] = ..., welcome: _Optional[_Union[LogWelcome, _Mapping]] = ..., batch: _Optional[_Union[LogBatch, _Mapping]] = ...) -> None: ...

class LogHello(_message.Message):
    __slots__ = ["caller", "job_id", "proof", "version"]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    caller: str
    job_id: str
    proof: bytes
    version: int
    def __init__(self, version: _Optional[int] = ..., job_id: _Optional[str] = ..., caller: _Optional[str] = ..., proof: _Optional[bytes] = ...) -> None: ...

class LogPiece(_message.Message):
    __slots__ = ["base", "ends", "file", "lines", "position", "stream"]
    BASE_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    base: int
    ends: bool
    file: int
    lines: bytes
    position: int
    stream: int
    def __init__(self, stream: _Optional[int] = ..., file: _Optional[int] = ..., base: _Optional[int] = ..., position: _Optional[int] = ..., lines: _Optional[bytes] = ..., ends: bool = ...) -> None: ...

class LogReceipt(_message.Message):
    __slots__ = ["ended", "position", "stream"]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ended: bool
    position: int
    stream: int
    def __init__(self, stream: _Optional[int] = ..., position: _Optional[int] = ..., ended: bool = ...) -> None: ...

class LogTerms(_message.Message):
    __slots__ = ["pause_ms", "trouble", "window_bytes"]
    PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    pause_ms: int
    trouble: str
    window_bytes: int
    def __init__(self, window_bytes: _Optional[int] = ..., pause_ms: _Optional[int] = ..., trouble: _Optional[str] = ...) -> None: ...

class LogWelcome(_message.Message):
    __slots__ = ["proof"]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    def __init__(self, proof: _Optional[bytes] = ...) -> None: ...
