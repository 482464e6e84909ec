/** The emits, schedules, cancels and the result of a handler. They take effect with its success, or not at all. */
import { checkDue, checkKeep, checkSchedule, type Due, type ScheduleOptions } from "../emit/schedule.js";
import { EVENT_BYTES_MAX, toJson } from "../event.js";
import { checkKey, type Keys, uniqueKey } from "../names.js";

/** The most emits of one event. A schedule or a cancel counts as two. */
export const EMITS_MAX = 1000;
/** The most bytes of names, events, keys, results and values of subtasks of one event. */
export const EFFECT_BYTES_MAX = 2 * 1024 * 1024;
/** The largest result, and the largest value of a subtask, in bytes of JSON. */
export const VALUE_BYTES_MAX = 64 * 1024;

/** The handlers of one event have emitted too much. */
export class EmitsFull extends Error {
    override readonly name = "EmitsFull";
    readonly kind = "full";

    constructor() {
        super(
            `the handler of one event emits at most ${EMITS_MAX} events with ${EFFECT_BYTES_MAX} bytes, object names included: ` +
                "emit fewer, and let the handler of one of them emit the others",
        );
    }
}

/** The result of a handler is invalid or too large. An earlier result stays. */
export class InvalidResult extends Error {
    override readonly name = "InvalidResult";
    readonly kind = "result";
}

/** The handler has ended, so it can emit nothing and set no result. */
export class HandlerEnded extends Error {
    override readonly name = "HandlerEnded";
    readonly kind = "ended";
}

/** The worker process is too old for emits, results and subtasks. */
export class WorkerTooOld extends Error {
    override readonly name = "WorkerTooOld";

    constructor() {
        super("the program seriatim is too old for emits, results and subtasks of handlers; update it");
    }
}

/** An emit of a handler. `event` is JSON. */
export interface EmitEffect {
    readonly object: string;
    readonly event: string;
}

/** A schedule of a handler. */
export interface ScheduleEffect extends EmitEffect {
    readonly key: string;
    readonly due: Due;
    readonly keep: ScheduleOptions["keep"];
}

/** A cancel of a handler. */
export interface CancelEffect {
    readonly object: string;
    readonly key: string;
}

/** Collects the effects of one handler. */
export class Effects {
    readonly emits: EmitEffect[] = [];
    readonly schedules: ScheduleEffect[] = [];
    readonly cancels: CancelEffect[] = [];
    /** The result, as JSON. */
    result: string | undefined;
    private emitsLeft = EMITS_MAX;
    private bytesLeft: number;
    private isOver = false;

    /** `valueBytes`: the bytes of the values of subtasks that are done. */
    constructor(
        private readonly keys: Keys,
        valueBytes: number,
    ) {
        this.bytesLeft = EFFECT_BYTES_MAX - valueBytes;
    }

    /** @throws {HandlerEnded} if the handler has ended. */
    checkOpen(what: string): void {
        if (this.isOver) {
            throw new HandlerEnded(`the handler has ended; it must ${what} before it ends`);
        }
    }

    emit(object: string, value: unknown): void {
        const name = this.keys.object(object);
        const event = toJson(value, EVENT_BYTES_MAX);
        this.take(1, name, event);
        this.emits.push({ object: name, event });
    }

    schedule(object: string, value: unknown, options: ScheduleOptions): string {
        checkSchedule("cx.schedule", options);
        const name = this.keys.object(object);
        const event = toJson(value, EVENT_BYTES_MAX);
        const due = checkDue(options);
        const keep = checkKeep(options.keep);
        const key = options.key === undefined ? uniqueKey() : checkKey(options.key);
        this.take(2, name, event, key);
        this.schedules.push({ object: name, event, key, due, keep });
        return key;
    }

    cancel(object: string, key: string): void {
        const effect = { object: this.keys.object(object), key: checkKey(key) };
        this.take(2, effect.object, effect.key);
        this.cancels.push(effect);
    }

    setResult(value: unknown): void {
        const json = toJson(value, VALUE_BYTES_MAX, (why) => {
            const advice = why.bytes === undefined ? "" : "; keep it in a store, and return a reference";
            return new InvalidResult(
                why.bytes === undefined
                    ? why.text("result")
                    : `the result has ${why.bytes} bytes of JSON, the limit is ${VALUE_BYTES_MAX}${advice}`,
            );
        });
        this.checkOpen("set its result");
        const bytes = Buffer.byteLength(json) - Buffer.byteLength(this.result ?? "");
        if (bytes > this.bytesLeft) {
            throw new InvalidResult(
                `the results and emits of the handlers of one event have at most ${EFFECT_BYTES_MAX} bytes together`,
            );
        }
        this.bytesLeft -= bytes;
        this.result = json;
    }

    /** Takes the bytes of a subtask's value. Returns whether they fit. */
    takeValue(bytes: number): boolean {
        const fits = bytes <= this.bytesLeft;
        this.bytesLeft -= fits ? bytes : 0;
        return fits;
    }

    /** Whether the handler has done anything that takes effect with its success. */
    get isEmpty(): boolean {
        return (
            this.emits.length + this.schedules.length + this.cancels.length === 0 && this.result === undefined
        );
    }

    /** The handler has ended. */
    end(): void {
        this.isOver = true;
    }

    /** Returns the members of the answer `ok`, beginning with a comma; empty if there are none. */
    members(): string {
        const list = (name: string, items: string[]) =>
            items.length === 0 ? "" : `,"${name}":[${items.join(",")}]`;
        const event = ({ object, event }: EmitEffect) =>
            `{"object":${JSON.stringify(object)},"event":${inOneLine(event)}`;
        return (
            list(
                "emit",
                this.emits.map((one) => `${event(one)}}`),
            ) +
            list(
                "schedule",
                this.schedules.map((one) => {
                    const due =
                        "atMs" in one.due ? `"at_ms":${one.due.atMs}` : `"after_ms":${one.due.afterMs}`;
                    const mode = one.keep === undefined ? "" : `,"mode":"keep_${one.keep}"`;
                    return `${event(one)},"key":${JSON.stringify(one.key)},${due}${mode}}`;
                }),
            ) +
            list(
                "cancel",
                this.cancels.map(({ object, key }) => JSON.stringify({ object, key })),
            ) +
            (this.result === undefined ? "" : `,"result":${inOneLine(this.result)}`)
        );
    }

    private take(emits: number, ...texts: string[]): void {
        this.checkOpen("emit");
        const bytes = texts.reduce((sum, text) => sum + Buffer.byteLength(text), 0);
        if (emits > this.emitsLeft || bytes > this.bytesLeft) {
            throw new EmitsFull();
        }
        this.emitsLeft -= emits;
        this.bytesLeft -= bytes;
    }
}

/** JSON allows line ends only between its parts, so a blank in their place changes nothing. */
function inOneLine(json: string): string {
    return json.replace(/[\r\n]/g, " ");
}
