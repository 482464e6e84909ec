export type { Appended, MultiReply, Transaction } from "./emit/appended.js";
export type { Awaited, CallOptions, WaitOptions } from "./emit/awaited.js";
export type { EmitParts } from "./emit/draft.js";
export {
    type AwaitedOptions,
    type EmitOptions,
    type Emitted,
    Emitter,
    type EmitterOptions,
} from "./emit/emitter.js";
export type { EventEnd, EventStatus } from "./emit/end.js";
export type { ClientLike, RedisLike } from "./emit/link.js";
export type { EmittedMany } from "./emit/many.js";
export type {
    Cancelled as CancelResult,
    Scheduled,
    ScheduleItem,
    ScheduleOptions,
} from "./emit/schedule.js";
export {
    EmitError,
    type EmitErrorKind,
    EmitManyError,
    EndRefused,
    EndTimedOut,
    EventFailed,
    Full,
    type FullDetail,
    InvalidDue,
    InvalidEvent,
    InvalidKey,
    InvalidName,
    KeyReused,
    NotAwaitable,
    type ObjectFailed,
    OutcomeUnknown,
    OutOfMemory,
    Refused,
    ScheduleManyError,
    TooLarge,
    Unconnected,
    Unreplicated,
    WaitClosed,
    WaitError,
    WrongType,
} from "./errors.js";
export { RawJson } from "./event.js";
export type { Fence, HandlerContext } from "./worker/context.js";
export { EmitsFull, HandlerEnded, InvalidResult, WorkerTooOld } from "./worker/effects.js";
export type { Handler, JsonValue } from "./worker/handlers.js";
export type { Log, LogLevel } from "./worker/log.js";
export {
    Cancelled,
    Outcome,
    Postponed,
    Rejected,
    Transient,
    Unavailable,
    Unknown,
} from "./worker/outcomes.js";
export { ProcessEnded } from "./worker/processes.js";
export { ProgramMissing } from "./worker/program.js";
export { ProtocolError } from "./worker/protocol.js";
export { InvalidProgress } from "./worker/reports.js";
export { type Time, Worker, WorkerEnded, type WorkerOptions } from "./worker/worker.js";
