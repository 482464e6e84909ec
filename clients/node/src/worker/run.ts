/** Runs the handler of one event. The worker and the test kit share this code. */
import { HandlerContext, type Run } from "./context.js";
import { type Handlers, typeOf } from "./handlers.js";
import { type Outcome, outcomeOf, Unknown } from "./outcomes.js";

/** The end of a run. With `ok`, the effects of the run count. */
export type Ended =
    | { readonly type: "ok" }
    | { readonly type: "cancelled" }
    | { readonly type: "failed"; readonly outcome: Outcome };

const OK: Ended = { type: "ok" };
const CANCELLED: Ended = { type: "cancelled" };

/** Begins the run of an event's handler. Returns or throws what the handler does. The caller awaits this value, and ends the run. */
export function begin(handlers: Handlers, run: Run): unknown {
    const { event } = run.hand;
    const type = typeOf(event);
    const handler = handlers.for(type);
    if (handler === undefined) {
        const which = type === undefined ? "without a type" : `of type ${JSON.stringify(type)}`;
        throw new Unknown(`no handler is registered for events ${which}`);
    }
    return handler(event as never, new HandlerContext(run));
}

/** Ends a run whose handler has returned. */
export function succeeded(run: Run): Ended {
    run.end();
    // A handler that returns because of its signal has not done its work, so the event must come again.
    return run.isCancelled ? CANCELLED : OK;
}

/** Ends a run whose handler has thrown. */
export function failed(run: Run, thrown: unknown): Ended {
    // The outcome is made first: the text of a thrown value may be made by code of the program.
    const outcome = outcomeOf(thrown);
    run.end();
    return run.isCancelled ? CANCELLED : { type: "failed", outcome };
}

/** Runs an event's handler until it has ended. */
export async function toEnd(handlers: Handlers, run: Run): Promise<Ended> {
    try {
        await begin(handlers, run);
    } catch (thrown) {
        return failed(run, thrown);
    }
    return succeeded(run);
}
