/** The handlers of a program, by the types of events. */
import type { HandlerContext } from "./context.js";

/** A value that JSON has. */
export type JsonValue = null | boolean | number | string | JsonValue[] | { [name: string]: JsonValue };

/**
 * A handler of an event. If it returns, the event is delivered. An outcome that it throws (`Transient`, `Rejected`,
 * …) says what becomes of the event; any other error is transient.
 */
export type Handler<T> = (event: T, cx: HandlerContext) => unknown;

export class Handlers {
    private readonly byType = new Map<string, Handler<never>>();
    private other: Handler<never> | undefined;

    /** Registers the handler of the events with this type, the member `type` of the event. */
    on<T = JsonValue>(type: string, handler: Handler<T>): void {
        if (typeof type !== "string" || typeof handler !== "function") {
            throw new TypeError("a handler is registered with a type and a function");
        }
        if (this.byType.has(type)) {
            throw new TypeError(`the type ${JSON.stringify(type)} has a handler already`);
        }
        this.byType.set(type, handler);
    }

    /** Registers the handler of the events that no handler for a type takes. */
    onOther<T = JsonValue>(handler: Handler<T>): void {
        if (typeof handler !== "function") {
            throw new TypeError("the handler of other events is a function");
        }
        if (this.other !== undefined) {
            throw new TypeError("there is a handler of other events already");
        }
        this.other = handler;
    }

    /** Returns the handler for events of this type. */
    for(type: string | undefined): Handler<never> | undefined {
        return (type === undefined ? undefined : this.byType.get(type)) ?? this.other;
    }

    get isEmpty(): boolean {
        return this.byType.size === 0 && this.other === undefined;
    }
}

/** Returns the type of an event: its member `type`, if that is a string. */
export function typeOf(event: unknown): string | undefined {
    const type = textMember(event, "type");
    return type;
}

/** Returns a member of an event, if that is a string. */
export function textMember(event: unknown, name: string): string | undefined {
    if (typeof event !== "object" || event === null || Array.isArray(event) || !Object.hasOwn(event, name)) {
        return undefined;
    }
    const value = (event as Record<string, unknown>)[name];
    return typeof value === "string" ? value : undefined;
}
